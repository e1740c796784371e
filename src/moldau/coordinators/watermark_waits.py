"""Responses that are sent when the high watermark reaches an offset. They are ordered by this offset."""

import asyncio
from collections import deque
from typing import Any, NamedTuple

from moldau.runtime import ErrorCode, KafkaError


class _WatermarkWait(NamedTuple):
    covers_offset: int
    deadline: float
    future: "asyncio.Future[Any]"
    response: Any


class CommitQueue:
    """Keeps responses until the log has committed all records before an offset, or until their timeout."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        self._loop = loop
        self._timeout_s = timeout_ms / 1000
        self._waiting: deque[_WatermarkWait] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Fires at the deadline of the first response, or earlier. It is not cancelled when no response is
        left, because the next response needs a timer, too, and most responses wait for milliseconds."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, covers_offset: int, future: "asyncio.Future[Any]", response: Any) -> None:
        """Send ``response`` once the high watermark is at least ``covers_offset``.

        The offset must not be lower than the offset of the previous call.
        """
        deadline = self._loop.time() + self._timeout_s
        self._waiting.append(_WatermarkWait(covers_offset, deadline, future, response))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def advance(self, high_watermark: int) -> None:
        """Send all responses that depend only on records before ``high_watermark``."""
        waiting = self._waiting
        while waiting and waiting[0].covers_offset <= high_watermark:
            first = waiting.popleft()
            if not first.future.done():
                first.future.set_result(first.response)

    def fail(self, error: KafkaError) -> None:
        """Send ``error`` to all waiting requests."""
        waiting, self._waiting = self._waiting, deque()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for item in waiting:
            if not item.future.done():
                item.future.set_exception(KafkaError(error.code, error.message))

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        waiting = self._waiting
        while waiting and (waiting[0].future.done() or waiting[0].deadline <= now):
            late = waiting.popleft()
            if not late.future.done():
                late.future.set_exception(
                    KafkaError(ErrorCode.coordinator_not_available, "The write was not replicated in time.")
                )
        if waiting:
            self._timer = self._loop.call_at(waiting[0].deadline, self._expire)
