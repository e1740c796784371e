"""Appends that are acknowledged only after they are flushed (``flush.messages``).

A partition uses :class:`FlushQueue` or ``GroupCommit``. :class:`FlushQueue` is for logs with the policy
WRITTEN. There, only every n-th message needs a flush, and the appends between two flushes are acknowledged
when they are written. Appends with acks=1 wait for a flush, too. If the flush fails, the appends that wait
for it are refused. ``GroupCommit`` is for logs with the policy FSYNCED. There, every append is synced, an
append with acks=1 is acknowledged before the sync, and a failed sync ends the leadership.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from moldau.replication.appending.slow_batches import DEFECT, pass_on
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import KafkaError
from moldau.storage.log.partition_log import PartitionLog


class FlushQueue:
    """The appends of one partition that wait for a flush because of ``flush.messages``.

    All appends that arrive during a flush share the next flush. The high watermark stays below an append
    until the append is flushed. Otherwise consumers could read records that a loss of power removes.
    """

    def __init__(
        self, log: PartitionLog, on_flushed: Callable[[int], None], unexpected: UnexpectedErrors
    ) -> None:
        """``on_flushed`` is called after each flush, with the offset below which the log is flushed."""
        self._log = log
        self._on_flushed = on_flushed
        self._unexpected = unexpected
        self._waiting: deque[tuple[int, Callable[[], AppendAnswer], asyncio.Future[AppendOutcome]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, last_offset: int, go_on: Callable[[], AppendAnswer]) -> "asyncio.Future[AppendOutcome]":
        """Queue an append, and call ``go_on`` when the append is flushed. The result of ``go_on`` completes
        the returned future."""
        answer: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((last_offset, go_on, answer))
        self.begin()
        return answer

    def begin(self) -> None:
        """Start a task that flushes until no further flush is needed. Do nothing if the task is already
        running."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="flush.messages")

    def refuse(self, outcome: AppendOutcome) -> None:
        """Complete all waiting appends with ``outcome``."""
        while self._waiting:
            pass_on(outcome, self._waiting.popleft()[2])

    async def _run(self) -> None:
        log = self._log
        try:
            while log.must_flush:
                await log.flush()
                self._settle(log.flushed_offset if log.must_flush else log.log_end_offset)
            # Another flush may already have completed these appends.
            self._settle(log.log_end_offset)
        except KafkaError as error:
            self.refuse(AppendOutcome(error.code, message=error.message))
        except Exception as error:
            self._unexpected.report("flushing an append", error)
            self.refuse(DEFECT)
        finally:
            self._task = None

    def _settle(self, end_offset: int) -> None:
        self._on_flushed(end_offset)
        while self._waiting and self._waiting[0][0] < end_offset:
            _, go_on, answer = self._waiting.popleft()
            outcome: AppendAnswer = DEFECT
            with self._unexpected.contained("acknowledging a flushed append"):
                outcome = go_on()
            pass_on(outcome, answer)
