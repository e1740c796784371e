"""Inactive chunks whose folders are removed or replaced, or whose logs are closed, while they are used."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast
from uuid import UUID

import pytest
from chunk_stores import FIRST, NAME, TOPIC_ID, Copied, append, with_one_chunk

from created_logs import get_or_create
from moldau.chunks.calls import ChunkSearch, SegmentCopy
from moldau.chunks.holder import ChunkHolder
from moldau.runtime import InlineWorkers, KafkaError
from moldau.server.subsystems.chunks.tiering import ChunkSegmentStore
from moldau.storage.chunks import chunk_store
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.folders.file_names import chunk_folder, is_stray_folder
from moldau.storage.folders.partition_metadata import format_partition_metadata
from moldau.storage.log.config import LogConfig
from moldau.storage.log_manager import LogManager

P = ParamSpec("P")
T = TypeVar("T")

FOLDER = chunk_folder(NAME, 0)
NEXT_TOPIC_ID = UUID(int=10)


class HeldWorkers(InlineWorkers):
    """Holds the calls of one function until ``may_go_on`` is set. The function ends, but its caller waits."""

    def __init__(self) -> None:
        self.held = ""
        self.may_go_on = asyncio.Event()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        found = function(*args, **kwargs)
        if getattr(getattr(function, "func", function), "__name__", "") == self.held:
            await self.may_go_on.wait()
        return found


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def files_of(box: Any) -> dict[str, bytes]:
    folder = f"/data/{FOLDER}"
    return {name: box.disk.read(f"{folder}/{name}") for name in box.disk.list(folder)}


class HeldOpening(NamedTuple):
    """A store with one chunk, whose log is being opened by ``task``."""

    logs: LogManager
    store: ChunkStore
    content: dict[str, bytes]
    """The files of the chunk before the opening."""
    workers: HeldWorkers
    task: asyncio.Task[Any]

    async def end(self) -> None:
        """Let the opening end, with any result."""
        self.workers.may_go_on.set()
        await asyncio.gather(self.task, return_exceptions=True)


async def held_opening(box: Any) -> HeldOpening:
    workers = HeldWorkers()
    box.machine = replace(box.machine, workers=workers)
    logs, store = await with_one_chunk(box, 10)
    content = files_of(box)
    workers.held = "_open_folder"
    task = asyncio.create_task(store.open(NAME, FIRST))
    await turns()
    return HeldOpening(logs, store, content, workers, task)


def test_a_log_that_is_opened_while_its_chunk_is_removed_is_not_used(box: Any) -> None:
    """A later copy of the chunk would otherwise be read through the files of the removed folder."""

    async def run() -> None:
        opening = await held_opening(box)
        store = opening.store
        dropping = asyncio.create_task(store.drop(NAME, FIRST))
        await turns()
        assert FOLDER in box.disk.list("/data"), "the folder was renamed while its log was opened"
        opening.workers.may_go_on.set()
        with pytest.raises(KafkaError, match="is removed"):
            await opening.task
        await dropping
        assert FOLDER not in box.disk.list("/data")
        await store.copy(NAME, FIRST, 10, Copied(opening.content))
        log = await store.open(NAME, FIRST)
        assert not log.is_offline
        assert log.read(3, 10**6, upper_bound_offset=10).next_offset == 10
        await opening.logs.stop()

    asyncio.run(run())


def test_a_chunk_is_not_moved_aside_while_its_log_is_opened(box: Any) -> None:
    async def run() -> None:
        opening = await held_opening(box)
        store = opening.store
        moving = asyncio.create_task(store.put_aside(FIRST))
        await turns()
        assert FOLDER in box.disk.list("/data")
        opening.workers.may_go_on.set()
        await asyncio.gather(opening.task, moving, return_exceptions=True)
        assert FOLDER not in box.disk.list("/data")
        with pytest.raises(KafkaError):
            await store.open(NAME, FIRST)
        await opening.logs.stop()

    asyncio.run(run())


def test_a_chunk_that_is_removed_while_a_new_copy_waits_for_it_is_removed_once(box: Any) -> None:
    async def run() -> None:
        opening = await held_opening(box)
        store = opening.store
        copying = asyncio.create_task(store.copy(NAME, FIRST, 10, Copied(opening.content)))
        await turns()
        dropping = asyncio.create_task(store.drop(NAME, FIRST))
        await turns()
        await opening.end()
        await dropping
        await copying
        assert (FIRST in store, box.disk.list("/data").count(FOLDER)) == (True, 1)
        assert files_of(box) == opening.content
        await opening.logs.stop()

    asyncio.run(run())


def test_a_new_copy_waits_until_the_folder_of_the_removed_chunk_has_another_name(box: Any) -> None:
    async def run() -> None:
        opening = await held_opening(box)
        store = opening.store
        dropping = asyncio.create_task(store.drop(NAME, FIRST))
        await turns()
        copying = asyncio.create_task(store.copy(NAME, FIRST, 10, Copied(opening.content)))
        await turns()
        assert not copying.done()
        await opening.end()
        await dropping
        await copying
        assert files_of(box) == opening.content
        assert (await store.open(NAME, FIRST)).log_end_offset == 10
        await opening.logs.stop()

    asyncio.run(run())


@pytest.mark.parametrize("is_dropped", [True, False])
def test_the_chunk_of_a_new_topic_gets_the_folder_of_a_deleted_topic_of_the_same_name(
    box: Any, is_dropped: bool
) -> None:
    """If the folder of the old chunk still had its name, the rename would fail, and the broker would treat
    this as a failure of the disk."""

    async def run() -> None:
        opening = await held_opening(box)
        store = opening.store
        dropping = asyncio.create_task(store.drop(NAME, FIRST) if is_dropped else turns())
        await turns()
        log = await get_or_create(opening.logs, NAME, LogConfig(), NEXT_TOPIC_ID)
        append(box, log, 3)
        new = ChunkId(NEXT_TOPIC_ID, 0, 0)
        carving = asyncio.create_task(store.carve(NAME, new, 3))
        await turns()
        assert not carving.done()
        await opening.end()
        await dropping
        await carving
        assert list(store) == [new]
        found = await store.open(NAME, new)
        assert (found.topic_id, found.log_end_offset) == (NEXT_TOPIC_ID, 3)
        assert sum(map(is_stray_folder, box.disk.list("/data"))) == (not is_dropped)
        assert opening.logs.directories[0].is_online
        await opening.logs.stop()

    asyncio.run(run())


class LoadingWorkers(HeldWorkers):
    """While a log is opened, its folder has a temporary file, until ``may_go_on`` is set."""

    def __init__(self, disk: Any) -> None:
        super().__init__()
        self._disk = disk

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        path = f"/data/{FOLDER}/leader-epoch-checkpoint.tmp"
        if getattr(getattr(function, "func", function), "__name__", "") == "_open_folder":
            self._disk.write_atomically(path, b"")
            await self.may_go_on.wait()
            self._disk.remove(path)
        return function(*args, **kwargs)


def test_temporary_files_of_a_log_that_is_opened_are_not_listed(box: Any) -> None:
    """Such a file may be gone when its size is read. The copy would then be taken for damaged."""

    async def run() -> None:
        workers = LoadingWorkers(box.disk)
        box.machine = replace(box.machine, workers=workers)
        logs, store = await with_one_chunk(box, 10)
        names = set(await store.files(FIRST))
        opening = asyncio.create_task(store.open(NAME, FIRST))
        await turns()
        listing = asyncio.create_task(store.files(FIRST))
        await turns()
        workers.may_go_on.set()
        assert set(await listing) == names
        assert (await opening).log_end_offset == 10
        await logs.stop()

    asyncio.run(run())


class ClosingLookup:
    """A search in the batches of a chunk. Before the first batch is searched, ``meanwhile`` is called."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        self._meanwhile: Callable[[], Any] | None = meanwhile
        self.searched = 0

    async def at_or_after(
        self, batch: Any, timestamp_ms: int, starting_offset: int
    ) -> tuple[int, int] | None:
        self.searched += 1
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
            return None
        return 7, timestamp_ms


def test_a_search_continues_when_the_log_of_its_chunk_was_closed(
    box: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of other chunks close the log of a chunk that was not used for the longest time. The copy of this
    chunk is good, and must not be copied again."""

    async def run() -> None:
        monkeypatch.setattr(chunk_store, "OPEN_LOGS_MAX", 1)
        logs, store = await with_one_chunk(box, 10)
        other = ChunkId(NEXT_TOPIC_ID, 0, 0)
        await store.copy(NAME._replace(topic="u"), other, 10, Copied({**files_of(box), **metadata(other)}))
        unused: Any = None
        holder = ChunkHolder(box.machine, store, unused)
        lookup: Any = ClosingLookup(lambda: store.open(NAME._replace(topic="u"), other))
        found = await holder.find("t", ChunkSearch(TOPIC_ID, 0, 0, box.clock.time_ms), lookup)
        assert (found.offset, found.timestamp_ms, lookup.searched) == (7, box.clock.time_ms, 2)
        await logs.stop()

    asyncio.run(run())


def metadata(chunk: ChunkId) -> dict[str, bytes]:
    return {"partition.metadata": format_partition_metadata(chunk.topic_id)}


def test_a_search_in_a_chunk_that_is_removed_ends(box: Any) -> None:
    async def run() -> None:
        logs, store = await with_one_chunk(box, 10)
        unused: Any = None
        lookup: Any = ClosingLookup(lambda: store.drop(NAME, FIRST))
        with pytest.raises(KafkaError, match="no chunk 0 here"):
            await ChunkHolder(box.machine, store, unused).find(
                "t", ChunkSearch(TOPIC_ID, 0, 0, box.clock.time_ms), lookup
            )
        await logs.stop()

    asyncio.run(run())


class ClosingWorkers(InlineWorkers):
    """Closes a log before a worker reads one of its segments."""

    def __init__(self) -> None:
        self.log: Any = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if function.__name__ == "read_segment":
            self.log.take_offline("other chunks are read")
        return function(*args, **kwargs)


class Tier:
    """A fake of the remote tier, which keeps the last segment."""

    data: Any = None

    async def copy_log_segment_data(self, metadata: Any, data: Any) -> None:
        self.data = data


def test_no_file_stays_open_when_the_log_of_a_chunk_is_closed_while_its_segment_is_stored(box: Any) -> None:
    async def run() -> None:
        logs, store = await with_one_chunk(box, 10)
        workers, tier = ClosingWorkers(), Tier()
        workers.log = log = await store.open(NAME, FIRST)
        (segment,) = log.segments.segments
        machine, storage = replace(box.machine, workers=workers), cast(Any, tier)
        wanted = SegmentCopy(TOPIC_ID, 0, 0, 0, segment_id=UUID(int=3))
        await ChunkSegmentStore(machine, store, storage).store_segment("t", wanted)
        assert bytes(tier.data.log_segment) == box.disk.read(segment.path(".log"))
        assert segment._file is None
        await logs.stop()

    asyncio.run(run())
