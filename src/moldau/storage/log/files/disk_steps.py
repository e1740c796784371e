"""Operations on the files of a log that wait for the disk, in steps.

An operation is a generator. The generator's own code runs on the event loop, which owns the log's state. It
yields functions that wait for the disk, and receives their results. The event loop passes these functions to
a worker. A blocking caller calls them directly. Therefore one implementation is enough for both cases.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from moldau.runtime import Workers
from moldau.storage.log.state.log_state import LogState
from moldau.storage.segments.segment import Segment

T = TypeVar("T")

FILES_HELD_TOGETHER: Final = 64
"""Number of segments whose files are opened in one step. This takes some milliseconds."""

FileSteps: TypeAlias = Generator[Callable[[], Any], Any, T]


def run_steps(steps: FileSteps[T]) -> T:
    """Run all steps of an operation on this thread."""
    found: Any = None
    while True:
        try:
            job = steps.send(found)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        found = job()


async def run_whole(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``. The work is completed even if the caller is cancelled. The cancellation is raised after
    the work."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
    finally:
        del task  # the task's exception refers to this frame, and a reference back would be a cycle


class FileOperations:
    """Carries out operations on a log's files, one at a time. Workers wait for the disk."""

    def __init__(self, workers: Workers, state: LogState) -> None:
        self._workers = workers
        self._state = state

    async def do(self, doing: str, steps: FileSteps[T]) -> T:
        """Carry out an operation. The operation is completed even if the caller is cancelled."""
        return await run_whole(self._in_turn(doing, steps))

    def do_now(self, doing: str, steps: FileSteps[T]) -> T:
        """Carry out an operation on this thread. This call blocks."""
        with self._state.access.disk_work(doing):
            return run_steps(steps)

    async def _in_turn(self, doing: str, steps: FileSteps[T]) -> T:
        async with self._state.segments.changing:
            with self._state.access.disk_work(doing):
                return await self._with_workers(steps)

    async def _with_workers(self, steps: FileSteps[T]) -> T:
        found: Any = None
        self._state.segments.hold_files()
        try:
            while True:
                try:
                    job = steps.send(found)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                found = await self._workers.run(job)
                # While the operation waited, the log may have been deleted. It is also possible that its
                # whole folder is offline after a failure of another log.
                self._state.access.check()
        finally:
            self._state.segments.release_files()


def holding_files(segments: Sequence[Segment]) -> FileSteps[None]:
    """Open the files of the segments. Reads can then continue while the files are renamed."""
    for start in range(0, len(segments), FILES_HELD_TOGETHER):
        for segment in segments[start : start + FILES_HELD_TOGETHER]:
            segment.hold_files()
        if start + FILES_HELD_TOGETHER < len(segments):
            yield _nothing


def _nothing() -> None: ...
