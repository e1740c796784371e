"""The producers that wait for an object, and their timeouts."""

import asyncio
from collections.abc import Sequence

from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode

__all__ = ["TIMED_OUT", "ObjectWaiters", "WaitingProducer"]

TIMED_OUT = AppendOutcome(
    ErrorCode.request_timed_out, message="the object store or the coordinator did not answer in time"
)
"""The outcome for a producer after its timeout. Java's client and librdkafka retry after this error, and
treat the records as possibly written."""


class WaitingProducer:
    """A producer request that waits for a batch; ``deadline`` is in seconds of the event loop."""

    __slots__ = ("answer", "deadline", "guard", "held_until", "is_expired", "request_id")

    def __init__(
        self, answer: "asyncio.Future[AppendOutcome]", deadline: float, request_id: int, guard: int = 0
    ) -> None:
        self.answer = answer
        self.deadline = deadline
        self.request_id = request_id
        self.guard = guard
        """The guard of a transactional batch; 0 for other batches."""
        self.held_until: float | None = None
        """If an earlier batch was missing, the commit of this batch is repeated until this time. The value is
        None if no earlier batch was missing.
        """
        self.is_expired = False

    def resolve(self, outcome: AppendOutcome) -> None:
        """Send the response to the producer, unless the producer already got one or its connection is
        closed."""
        if not self.answer.done():
            self.answer.set_result(outcome)


class ObjectWaiters:
    """A single timer for all producers that wait for an object. One timer is enough because requests have
    only a few different timeouts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[WaitingProducer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.last_deadline = 0.0

    @property
    def all(self) -> Sequence[WaitingProducer]:
        return self._waiters

    @property
    def all_expired(self) -> bool:
        return all(waiter.is_expired for waiter in self._waiters)

    def add(self, waiter: WaitingProducer) -> None:
        self._waiters.append(waiter)
        deadline = waiter.deadline
        if deadline > self.last_deadline:
            self.last_deadline = deadline
        if self._timer is None or deadline < self._timer_at:
            self._arm(deadline)

    def remove(self, waiter: WaitingProducer) -> None:
        """Remove a producer whose batch is committed with another object."""
        self._waiters.remove(waiter)

    def stop(self) -> None:
        """Cancel all timeouts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline: float) -> None:
        self.stop()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        following = None
        for waiter in self._waiters:
            if waiter.is_expired:
                continue
            if waiter.deadline <= now:
                waiter.is_expired = True
                waiter.resolve(TIMED_OUT)
            elif following is None or waiter.deadline < following:
                following = waiter.deadline
        if following is not None:
            self._arm(following)
