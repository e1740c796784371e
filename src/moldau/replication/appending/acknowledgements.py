"""Appends with acks=all, which wait until the high watermark is above them.

Waiting appends are ordered by offset. When the watermark moves, the code examines only the appends that are
completed by this move, and the next append after them. The deadlines of these appends are in the structure
that all waiters of the node share, so thousands of waiting producers and fetches share one timer.

That structure finds a waiting fetch by the key of its partition, because a fetch waits for any change of its
partitions. If it also found waiting appends by key, each move of the watermark would wake all appends of a
partition. Therefore this class stores the appends in the order of their offsets.
"""

import asyncio
from collections import deque
from typing import Final

from moldau.replication.partition_interface import AppendOutcome
from moldau.replication.waiters import Deadlines
from moldau.runtime.errors import ErrorCode

TIMED_OUT: Final = AppendOutcome(ErrorCode.request_timed_out)
KEPT_DONE_MAX: Final = 64


class _UnacknowledgedAppend:
    """One waiting append."""

    __slots__ = ("_queue", "due", "future", "last_offset", "outcome")

    def __init__(
        self,
        queue: "Acknowledgements",
        last_offset: int,
        outcome: AppendOutcome,
        due: float,
        future: "asyncio.Future[AppendOutcome]",
    ) -> None:
        self._queue = queue
        self.last_offset = last_offset
        self.outcome = outcome
        self.due = due
        self.future = future

    def expire(self) -> None:
        if not self.future.done():
            self.future.set_result(TIMED_OUT)
        self._queue._expired(self)


class Acknowledgements:
    """The waiting appends of one partition."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._waiting: deque[_UnacknowledgedAppend] = deque()
        self._done_count = 0

    def __len__(self) -> int:
        """Number of waiting appends."""
        return len(self._waiting) - self._done_count

    def add(
        self, last_offset: int, outcome: AppendOutcome, timeout_ms: int
    ) -> "asyncio.Future[AppendOutcome]":
        """Complete an append with ``outcome`` when the watermark has passed ``last_offset``. After
        ``timeout_ms`` the append is completed with a time-out."""
        deadlines = self._deadlines
        due = deadlines.due(timeout_ms / 1000)
        append = _UnacknowledgedAppend(self, last_offset, outcome, due, deadlines.loop.create_future())
        waiting = self._waiting
        position = len(waiting)
        # Offsets are in ascending order, with one exception: a duplicate waits for the offset of the original
        # append.
        while position and waiting[position - 1].last_offset > last_offset:
            position -= 1
        if position == len(waiting):
            waiting.append(append)
        else:
            waiting.insert(position, append)
        deadlines.add(due, append)
        return append.future

    def advance(self, high_watermark: int, refusal: AppendOutcome | None = None) -> None:
        """Complete the appends below the watermark. If ``refusal`` is given, it is the outcome of these
        appends."""
        waiting = self._waiting
        while waiting and waiting[0].last_offset < high_watermark:
            append = waiting.popleft()
            self._answer(append, append.outcome if refusal is None else refusal)

    def fail(self, outcome: AppendOutcome) -> None:
        """Complete all waiting appends with ``outcome``."""
        waiting = self._waiting
        while waiting:
            self._answer(waiting.popleft(), outcome)

    def _answer(self, append: _UnacknowledgedAppend, outcome: AppendOutcome) -> None:
        if append.due < 0:
            self._done_count -= 1
            return
        self._deadlines.remove(append.due, append)
        if not append.future.done():
            append.future.set_result(outcome)

    def _expired(self, append: _UnacknowledgedAppend) -> None:
        append.due = -1.0
        self._done_count += 1
        waiting = self._waiting
        if self._done_count > max(KEPT_DONE_MAX, len(waiting) // 2):
            self._waiting = deque(each for each in waiting if each.due >= 0)
            self._done_count = 0
