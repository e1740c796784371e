"""A limit on bytes in flight. Requests for bytes are granted in the order in which they arrive."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """At most ``max_bytes`` are in use at a time. If no bytes are in use, a single request is granted even if
    it exceeds this limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.taken_bytes = 0

    @asynccontextmanager
    async def taking(self, size_bytes: int) -> AsyncIterator[None]:
        """Reserve ``size_bytes`` of the budget, after waiting in the queue."""
        await self._reserve(size_bytes)
        try:
            yield
        finally:
            self._give_back(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self._max_bytes

    async def _reserve(self, size_bytes: int) -> None:
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(size_bytes)
            raise

    def _give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        waiting = self._waiting
        while waiting:
            wanted, granted = waiting[0]
            if granted.done():
                waiting.popleft()
                continue
            if not self._fits(wanted):
                return
            waiting.popleft()
            self.taken_bytes += wanted
            granted.set_result(None)
