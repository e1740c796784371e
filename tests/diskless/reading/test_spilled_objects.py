"""Objects in a file that is used as a ring."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.diskless.reading import spilled_objects
from moldau.diskless.reading.spilled_objects import FILE_NAME, SpilledObjects, SpillSettings
from moldau.runtime import InlineWorkers, LocalDisk

CAPACITY = 100


def content(key: str, size: int) -> bytes:
    return (key.encode() * size)[:size]


def play(folder: Path, story: Callable[[SpilledObjects], Awaitable[None]], max_bytes: int = CAPACITY) -> None:
    async def playing() -> None:
        objects = SpilledObjects(LocalDisk(), InlineWorkers(), SpillSettings(str(folder), max_bytes))
        await story(objects)
        await objects.close()
        assert not (folder / FILE_NAME).exists()

    asyncio.run(playing())


async def written(objects: SpilledObjects) -> None:
    while objects._writer is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def put(objects: SpilledObjects, key: str, size: int, *, is_needed: bool = False) -> None:
    """``is_needed`` shows that objects are worth being written."""
    if is_needed:
        objects.dropped("needed", memoryview(bytes(CAPACITY + 1)))
        objects.requested("needed")
    objects.dropped(key, memoryview(content(key, size)))
    await written(objects)


def test_objects_are_not_written_any_more_if_they_are_not_read(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        for number in range(10):
            await put(objects, f"{number}", 10)
        kept = [number for number in range(10) if await objects.read(f"{number}", 0, 10) is not None]
        assert kept == [0, 1, 2], "a quarter of the file"
        for number in range(10, 20):
            await put(objects, f"{number}", 10)
        assert await objects.read("12", 0, 10) is not None, "an object was read, so objects are written again"
        assert await objects.read("13", 0, 10) is None

    play(tmp_path, story)


def test_objects_are_written_again_after_one_was_requested_twice(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        for number in range(10):
            await put(objects, f"{number}", 10)
        objects.requested("new")
        await put(objects, "new", 10)
        assert await objects.read("new", 0, 10) is None
        objects.requested("9")
        await put(objects, "next", 10)
        assert bytes(await objects.read("next", 2, 5) or b"") == b"xtnex"

    play(tmp_path, story)


def test_an_object_is_readable_while_it_is_written(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        objects.dropped("a", memoryview(b"0123456789"))
        assert bytes(await objects.read("a", 3, 4) or b"") == b"3456"
        await written(objects)
        assert bytes(await objects.read("a", 3, 4) or b"") == b"3456"

    play(tmp_path, story)


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(1, CAPACITY + 20)), max_size=60))
def test_what_is_read_is_what_was_put(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("ring")

    async def story(objects: SpilledObjects) -> None:
        newest: dict[str, int] = {}
        for number, (letter, size) in enumerate(puts):
            key = f"{letter}{number}"
            newest[key] = size
            await put(objects, key, size)
            if size <= CAPACITY:
                assert await objects.read(key, 0, size) == content(key, size), "the newest object is kept"
            kept = 0
            for each, each_size in newest.items():
                found = await objects.read(each, 0, each_size)
                assert found is None or found == content(each, each_size)
                kept += each_size if found is not None else 0
            assert kept <= CAPACITY
        assert not (folder / FILE_NAME).exists() or (folder / FILE_NAME).stat().st_size <= CAPACITY

    play(folder, story)


def test_small_objects_fill_the_whole_file(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        for number in range(25):
            await put(objects, f"{number}", 10, is_needed=True)
        found = [number for number in range(25) if await objects.read(f"{number}", 0, 10) is not None]
        assert found == list(range(15, 25))

    play(tmp_path, story)


def test_a_read_that_was_overtaken_by_a_write_gives_nothing(tmp_path: Path) -> None:
    class LateWorkers(InlineWorkers):
        """A thread that reads late."""

        async def run(self, function, *args, **kwargs):  # type: ignore[no-untyped-def]
            if function.__name__ == "read_at":
                await put(objects, "b", CAPACITY, is_needed=True)
            return function(*args, **kwargs)

    objects: SpilledObjects

    async def story() -> None:
        nonlocal objects
        objects = SpilledObjects(LocalDisk(), LateWorkers(), SpillSettings(str(tmp_path), CAPACITY))
        await put(objects, "a", CAPACITY)
        assert await objects.read("a", 0, CAPACITY) is None
        await objects.close()

    asyncio.run(story())


def test_an_error_of_the_disk_ends_the_use_of_the_file(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        await put(objects, "a", 10)
        assert await objects.read("a", 0, 10) is None
        await put(objects, "b", 10)
        assert await objects.read("b", 0, 10) is None

    play(tmp_path / "missing", story)


def test_no_file_is_created_on_a_full_disk(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        await put(objects, "a", 10)
        assert await objects.read("a", 0, 10) is None
        assert not (tmp_path / FILE_NAME).exists()

    play(tmp_path, story, max_bytes=1 << 60)


def test_no_file_is_written_without_a_size(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        await put(objects, "a", 10)
        assert await objects.read("a", 0, 10) is None

    play(tmp_path, story, max_bytes=0)


@pytest.mark.parametrize("max_bytes", [0, CAPACITY])
def test_a_file_that_a_killed_process_left_is_removed(tmp_path: Path, max_bytes: int) -> None:
    (tmp_path / FILE_NAME).write_bytes(bytes(500))

    async def story(objects: SpilledObjects) -> None:
        assert not (tmp_path / FILE_NAME).exists()

    play(tmp_path, story, max_bytes=max_bytes)


def test_the_space_is_given_back_after_an_error_of_the_disk(tmp_path: Path) -> None:
    class FullWorkers(InlineWorkers):
        async def run(self, function, *args, **kwargs):  # type: ignore[no-untyped-def]
            if function.__name__ == "write_at" and args[0] > 0:
                raise OSError(28, "No space left on device")
            return function(*args, **kwargs)

    async def story() -> None:
        objects = SpilledObjects(LocalDisk(), FullWorkers(), SpillSettings(str(tmp_path), CAPACITY))
        await put(objects, "a", 10)
        assert (tmp_path / FILE_NAME).exists()
        await put(objects, "b", 10)
        assert objects._ending is not None
        await objects._ending
        assert not (tmp_path / FILE_NAME).exists()
        assert await objects.read("a", 0, 10) is None
        await objects.close()

    asyncio.run(story())


class PermittedWorkers(InlineWorkers):
    """A disk that writes an object for each permit."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)

    def apart(self, count, name):  # type: ignore[no-untyped-def]
        return self

    async def run(self, function, *args, **kwargs):  # type: ignore[no-untyped-def]
        if function.__name__ == "write_at":
            await self.permits.acquire()
        return function(*args, **kwargs)


@pytest.fixture
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue to the disk has space for five objects, and is long with three."""
    monkeypatch.setattr(spilled_objects, "_WRITING_BYTES", 50)
    monkeypatch.setattr(spilled_objects, "_BEHIND_BYTES", 25)


@pytest.mark.usefixtures("small_queue")
def test_requests_wait_while_the_disk_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait until the queue is short. This broker's own objects do not count."""
    monkeypatch.setattr(spilled_objects, "_WAIT_S", 3_600.0)

    async def story() -> None:
        workers = PermittedWorkers()
        objects = SpilledObjects(LocalDisk(), workers, SpillSettings(str(tmp_path), 1_000))
        for key in "abc":
            objects.dropped(key, memoryview(content(key, 10)), is_own=key == "c")
        await asyncio.wait_for(objects.until_written(), 60)
        for key in "def":
            objects.dropped(key, memoryview(content(key, 10)))
        waiting = asyncio.ensure_future(objects.until_written())
        for _ in range(2):
            await asyncio.sleep(0.001)
            assert not waiting.done()
            workers.permits.release()
        await asyncio.wait_for(waiting, 60)
        for _ in range(6):
            workers.permits.release()
        await written(objects)
        found = [key for key in "abcdef" if await objects.read(key, 0, 10) is not None]
        assert found == ["a", "b", "c", "d", "e"], "there was no space for the last one"
        await objects.close()

    asyncio.run(story())


@pytest.mark.usefixtures("small_queue")
def test_a_disk_that_does_not_write_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        workers = PermittedWorkers()
        objects = SpilledObjects(LocalDisk(), workers, SpillSettings(str(tmp_path), 1_000))
        for key in "abcde":
            objects.dropped(key, memoryview(content(key, 10)))
        monkeypatch.setattr(spilled_objects, "_WAIT_S", 0.01)
        await asyncio.wait_for(objects.until_written(), 60)
        monkeypatch.setattr(spilled_objects, "_WAIT_S", 3_600.0)
        await asyncio.wait_for(objects.until_written(), 60)
        workers.permits.release()
        while not await objects.read("a", 0, 10) or "a" in objects._writing:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(objects.until_written())
        await asyncio.sleep(0.001)
        assert not waiting.done(), "it writes again"
        for _ in range(5):
            workers.permits.release()
        await asyncio.wait_for(waiting, 60)
        await objects.close()

    asyncio.run(story())


def test_a_range_past_the_end_of_an_object_is_not_here(tmp_path: Path) -> None:
    async def story(objects: SpilledObjects) -> None:
        await put(objects, "a", 10)
        await put(objects, "b", 10, is_needed=True)
        assert await objects.read("a", 5, 10) is None

    play(tmp_path, story)
