"""The rules of the FileSyncs port, and what happens when the kernel refuses or fails a sync."""

import asyncio
import contextlib
import errno
import os
import pathlib
from collections.abc import Callable, Iterator

import pytest

from moldau.runtime import DiskError, LocalDisk, ThreadWorkers
from moldau.runtime.files.disk import File
from moldau.runtime.files.kernel_syncs import IN_PROGRESS_MAX, KernelQueue, KernelSyncs
from moldau.runtime.files.syncs import FileSyncs, WorkerSyncs


def kernel_queue() -> KernelQueue:
    try:
        return KernelQueue()
    except OSError as error:
        pytest.skip(f"this system has no Linux AIO: {error.strerror}")


class RecordingSyncs:
    """Notes the paths of the files, and calls ``then``."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.is_closed = False

    async def sync(self, file: File, then: Callable[[], None]) -> None:
        self.paths.append(file.path)
        then()

    def close(self) -> None:
        self.is_closed = True


class ScriptedQueue:
    """A queue without a kernel. The test decides what happens to a request."""

    def __init__(self, refusal: int = 0) -> None:
        self._refusal = refusal
        self._results: list[tuple[int, int]] = []
        self.numbers: list[int] = []
        self.descriptor, self._report = os.pipe()

    def submit(self, descriptor: int, number: int) -> int:
        os.fstat(descriptor)  # the file is open
        if not self._refusal:
            self.numbers.append(number)
        return self._refusal

    def end(self, *results: tuple[int, int]) -> None:
        self._results += results
        os.write(self._report, b"1")

    def ended(self) -> list[tuple[int, int]]:
        os.read(self.descriptor, 1)
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._report)


@pytest.fixture(params=["workers", "kernel"])
def syncs(request: pytest.FixtureRequest) -> Iterator[FileSyncs]:
    workers = ThreadWorkers(2)
    with contextlib.closing(workers):
        made: FileSyncs = WorkerSyncs(workers)
        if request.param == "kernel":
            kernel_queue().close()
            made = KernelSyncs(RecordingSyncs())
        with contextlib.closing(made):
            yield made


@pytest.fixture
def file(tmp_path: pathlib.Path) -> Iterator[File]:
    made = LocalDisk().open(str(tmp_path / "file"), create=True)
    with contextlib.closing(made):
        yield made


def test_then_is_called_once_after_the_sync(syncs: FileSyncs, file: File) -> None:
    calls: list[str] = []

    async def story() -> None:
        file.write_at(0, [b"some bytes"])
        await syncs.sync(file, lambda: calls.append("then"))
        assert calls == ["then"]

    asyncio.run(story())


def test_many_syncs_run_at_the_same_time(tmp_path: pathlib.Path) -> None:
    """Syncs that do not fit into the queue are made in another way."""
    kernel_queue().close()
    others = RecordingSyncs()
    syncs = KernelSyncs(others)
    count = IN_PROGRESS_MAX + 5

    async def story() -> None:
        ended: list[int] = []
        disk = LocalDisk()
        files = [disk.open(str(tmp_path / str(number)), create=True) for number in range(count)]
        works = [
            syncs.sync(each, lambda number=number: ended.append(number)) for number, each in enumerate(files)
        ]
        await asyncio.gather(*works)
        assert sorted(ended) == list(range(count))
        assert others.paths == [each.path for each in files[IN_PROGRESS_MAX:]]
        for each in files:
            each.close()

    asyncio.run(story())
    syncs.close()
    assert others.is_closed


def test_a_closed_file_cannot_be_synced(syncs: FileSyncs, file: File) -> None:
    file.close()
    with pytest.raises(DiskError) as raised:
        asyncio.run(syncs.sync(file, lambda: pytest.fail("the file was not synced")))
    assert raised.value.errno == errno.EBADF
    assert raised.value.filename == file.path


def test_a_file_may_be_closed_while_the_kernel_syncs_it(file: File) -> None:
    kernel_queue().close()
    syncs = KernelSyncs(RecordingSyncs())

    async def story() -> None:
        sync = asyncio.ensure_future(syncs.sync(file, lambda: None))
        await asyncio.sleep(0)
        file.close()
        await sync

    asyncio.run(story())
    syncs.close()


def test_one_object_serves_several_event_loops_in_turn(syncs: FileSyncs, file: File) -> None:
    for _ in range(3):
        asyncio.run(syncs.sync(file, lambda: None))


def test_a_failed_sync_raises_the_error_with_the_path(file: File) -> None:
    queue = ScriptedQueue()
    syncs = KernelSyncs(RecordingSyncs(), lambda: queue)

    async def story() -> None:
        failing = asyncio.ensure_future(syncs.sync(file, lambda: pytest.fail("the sync has failed")))
        passing = asyncio.ensure_future(syncs.sync(file, lambda: None))
        await asyncio.sleep(0)
        first, second = queue.numbers
        queue.end((second, 0), (first, -errno.EIO))
        await passing
        with pytest.raises(DiskError) as raised:
            await failing
        assert (raised.value.errno, raised.value.filename) == (errno.EIO, file.path)

    asyncio.run(story())
    syncs.close()


@pytest.mark.parametrize("refusal", [errno.EAGAIN, errno.EINVAL])
def test_workers_make_a_sync_that_the_kernel_refuses(file: File, refusal: int) -> None:
    others, queue = RecordingSyncs(), ScriptedQueue(refusal)
    syncs = KernelSyncs(others, lambda: queue)
    asyncio.run(syncs.sync(file, lambda: None))
    assert others.paths == [file.path]
    syncs.close()


@pytest.mark.parametrize(("number", "expected_attempts"), [(errno.ENOSYS, 1), (errno.EAGAIN, 3)])
def test_without_support_of_the_system_workers_make_all_syncs(
    file: File, number: int, expected_attempts: int
) -> None:
    """If only the queues of the machine are used up, the next sync tries again."""
    others, attempts = RecordingSyncs(), 0

    def unsupported() -> ScriptedQueue:
        nonlocal attempts
        attempts += 1
        raise OSError(number, os.strerror(number))

    async def story() -> None:
        syncs = KernelSyncs(others, unsupported)
        for _ in range(3):
            await syncs.sync(file, lambda: None)

    asyncio.run(story())
    assert others.paths == [file.path] * 3
    assert attempts == expected_attempts


def test_a_sync_may_end_after_its_caller_was_cancelled(file: File) -> None:
    queue = ScriptedQueue()
    syncs = KernelSyncs(RecordingSyncs(), lambda: queue)
    unhandled: list[object] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        cancelled = asyncio.ensure_future(syncs.sync(file, lambda: pytest.fail("nobody waits")))
        other = asyncio.ensure_future(syncs.sync(file, lambda: None))
        await asyncio.sleep(0)
        cancelled.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled
        queue.end(*((number, 0) for number in queue.numbers))
        await other

    asyncio.run(story())
    syncs.close()
    assert not unhandled


def test_a_queue_without_an_owner_is_released() -> None:
    queue = kernel_queue()
    descriptor = queue.descriptor
    del queue
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_two_event_loops_cannot_use_one_object_at_the_same_time(file: File) -> None:
    syncs = KernelSyncs(RecordingSyncs(), ScriptedQueue)

    async def outer() -> None:
        waiting = asyncio.ensure_future(syncs.sync(file, lambda: None))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another running event loop"):
            await asyncio.to_thread(asyncio.run, syncs.sync(file, lambda: None))
        waiting.cancel()

    asyncio.run(outer())
    syncs.close()
