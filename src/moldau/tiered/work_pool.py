"""Limits the number of concurrent jobs, and the number of jobs in one iteration of the event loop. Further
jobs wait in order."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["TurnLane", "WorkPool"]


class WorkPool:
    """Limit for concurrent jobs, similar to the size of Kafka's thread pools. ``size`` may change at any
    time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._running = 0
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        """Waiting jobs in order of arrival. A job is removed in constant time, even if thousands of jobs
        wait."""

    @property
    def size(self) -> int:
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = size
        self._wake()

    @property
    def waiting_count(self) -> int:
        """Number of jobs that wait for a free slot (Kafka's TaskQueueSize)."""
        return len(self._waiting)

    @property
    def idle_share(self) -> float:
        """The fraction of slots that are free, 0 to 1 (Kafka's AvgIdlePercent)."""
        return max(0.0, 1.0 - self._running / self._size)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a free slot and occupy it."""
        if self._running < self._size and not self._waiting:
            self._running += 1
        else:
            await self._wait()
        try:
            yield
        finally:
            self._running -= 1
            self._wake()

    async def _wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                # The slot was assigned to the job at the same moment at which the job was cancelled.
                self._running -= 1
                self._wake()
            else:
                # ``_wake`` may have removed the job between the cancellation and this line.
                self._waiting.pop(future, None)
            raise

    def _wake(self) -> None:
        while self._waiting and self._running < self._size:
            future, _ = self._waiting.popitem(last=False)
            if not future.done():
                self._running += 1
                future.set_result(None)


class TurnLane:
    """Lets a few concurrent jobs continue in each iteration of the event loop.

    Other work can run between the turns.
    """

    def __init__(self, jobs_a_turn: int) -> None:
        self._jobs_a_turn = jobs_a_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._went_on = 0
        """Number of jobs that continued in this turn."""

    async def turn(self) -> None:
        """Continue immediately if this is one of the first jobs in this iteration of the event loop.
        Otherwise continue in a later iteration."""
        loop = asyncio.get_running_loop()
        if not self._went_on:
            loop.call_soon(self._begin_turn, loop)
        if self._went_on < self._jobs_a_turn and not self._waiting:
            self._went_on += 1
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        await future

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._went_on = 0
        while self._waiting and self._went_on < self._jobs_a_turn:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._went_on += 1
        if self._went_on:
            loop.call_soon(self._begin_turn, loop)
