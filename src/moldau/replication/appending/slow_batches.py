"""Batches that need a long check before the append. A worker opens them (decompresses and parses them), and
they are appended in order.

The node has one thread for opening batches (``Machine.opening``). The node's clients share this thread
fairly. An append of a client to the partition waits for earlier batches of this client, but not for batches
of other clients.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from moldau.replication.partition_interface import AppendAnswer, AppendOutcome
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient, FairLane
from moldau.runtime.steps import Steps

DEFECT: Final = AppendOutcome(ErrorCode.unknown_server_error, message="unexpected error")

GoOn = Callable[[Any], AppendAnswer]
Refuse = Callable[[KafkaError], AppendOutcome]


class OpeningQueue:
    """The batches of one partition that wait to be opened."""

    def __init__(self, lane: FairLane, unexpected: UnexpectedErrors) -> None:
        self._lane = lane
        self._unexpected = unexpected
        self._waiting: Counter[FairClient | None] = Counter()

    def is_busy(self, client: FairClient | None) -> bool:
        """Whether the next append of ``client`` must wait for its earlier batches."""
        return client in self._waiting

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return not self._waiting

    def put(
        self, client: FairClient | None, steps: Steps[Any], go_on: GoOn, refuse: Refuse, *, is_lasting: bool
    ) -> "asyncio.Future[AppendOutcome]":
        """Open a batch in ``steps``, then call ``go_on`` with the result. If ``steps`` or ``go_on`` raises an
        exception, call ``refuse`` with this exception.

        ``is_lasting`` means that the batch is appended even if its client closes the connection first.
        """
        opened = self._lane.put(client, steps, is_lasting=is_lasting)
        answer: asyncio.Future[AppendOutcome] = opened.get_loop().create_future()
        self._waiting[client] += 1
        opened.add_done_callback(partial(self._opened, client, go_on, refuse, answer))
        return answer

    def _opened(
        self,
        client: FairClient | None,
        go_on: GoOn,
        refuse: Refuse,
        answer: "asyncio.Future[AppendOutcome]",
        opened: "asyncio.Future[Any]",
    ) -> None:
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]
        if opened.cancelled():
            answer.cancel()
            return
        try:
            outcome = go_on(opened.result())
        except KafkaError as error:
            outcome = refuse(error)
        except Exception as error:
            self._unexpected.report("opening a batch", error)
            outcome = DEFECT
        pass_on(outcome, answer)


def pass_on(outcome: AppendAnswer, answer: "asyncio.Future[AppendOutcome]") -> None:
    """Complete the future ``answer`` with an outcome, now or when the outcome is available."""
    if isinstance(outcome, AppendOutcome):
        if not answer.done():
            answer.set_result(outcome)
        return

    def done(settled: "asyncio.Future[AppendOutcome]") -> None:
        if answer.done():
            return
        if settled.cancelled():
            answer.cancel()
        elif settled.exception() is not None:
            answer.set_result(DEFECT)
        else:
            answer.set_result(settled.result())

    outcome.add_done_callback(done)
