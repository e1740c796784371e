"""Operations on the files of a log that wait for the disk, in steps.

An operation is a generator. What it does itself runs on the event loop, which owns the log's state; what it
yields is a function that waits for the disk, and it is sent what that function returns. So one description
of an operation serves the loop, which leaves the yielded functions to a worker, and a blocking caller.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

FileSteps: TypeAlias = Generator[Callable[[], Any], Any, T]


def run_steps(steps: FileSteps[T]) -> T:
    """Run an operation on this thread."""
    found: Any = None
    while True:
        try:
            job = steps.send(found)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        found = job()


async def run_whole(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, which goes on to its end when the caller is cancelled; only then is that seen."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
