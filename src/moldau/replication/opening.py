"""Batches that take long to look into before they are appended: opened by a worker, appended in order.

One thread of a node does it, so that two at once do not take too much time and memory. What is appended to
the same partition meanwhile waits behind them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from moldau.replication.partition import AppendAnswer, AppendOutcome
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.workers import Workers

LANE: Final = "moldau-opening"
"""The thread (see ``Workers.lane``) that opens what is larger than the event loop should look into."""

_DEFECT: Final = AppendOutcome(ErrorCode.unknown_server_error, message="unexpected error")

Look = Callable[[], Any]
GoOn = Callable[[Any], AppendAnswer]
Refuse = Callable[[KafkaError], AppendOutcome]


class OpeningQueue:
    """The batches of one partition that wait to be opened."""

    def __init__(self, workers: Workers, unexpected: UnexpectedErrors) -> None:
        self._workers = workers
        self._unexpected = unexpected
        self._waiting: deque[tuple[Look, GoOn, Refuse, asyncio.Future[AppendOutcome]]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether what is appended now must wait behind something."""
        return self._task is not None

    def put(self, look: Look, go_on: GoOn, refuse: Refuse) -> "asyncio.Future[AppendOutcome]":
        """Run ``look`` in a worker, then ``go_on`` with its result; ``refuse`` gets what either raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AppendOutcome] = loop.create_future()
        self._waiting.append((look, go_on, refuse, answer))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                look, go_on, refuse, answer = self._waiting.popleft()
                try:
                    outcome = go_on(await self._workers.lane(LANE).run(look))
                except KafkaError as error:
                    outcome = refuse(error)
                except Exception as error:
                    self._unexpected.report("opening a batch", error)
                    outcome = _DEFECT
                except BaseException:
                    answer.cancel()
                    raise
                _pass_on(outcome, answer)
        finally:
            self._task = None
            for *_, answer in self._waiting:
                answer.cancel()
            self._waiting.clear()


def _pass_on(outcome: AppendAnswer, answer: "asyncio.Future[AppendOutcome]") -> None:
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
            answer.set_result(_DEFECT)
        else:
            answer.set_result(settled.result())

    outcome.add_done_callback(done)
