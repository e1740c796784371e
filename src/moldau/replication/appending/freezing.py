"""Delays the appends of a partition while its active chunk ends (KIP-1114).

A partition has a queue for batches that must be opened (decompressed and parsed) before the append. While the
partition is frozen, another queue replaces it. This queue is busy for every client, so all batches wait in
it. Partitions that are not frozen therefore need no check. When the freeze ends, the batches go to the real
queue in their order. There they are appended, or they are refused because the leadership has ended.
"""

import asyncio
from typing import Any, Final

from moldau.replication.appending.slow_batches import GoOn, OpeningQueue, Refuse, pass_on
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.runtime.machine import Machine
from moldau.runtime.steps import Steps

_ENDING: Final = "the active chunk of the partition ends"


class _HeldAppends(OpeningQueue):
    """The queue of a frozen partition."""

    def __init__(self, queue: OpeningQueue) -> None:
        self._queue = queue
        self._held: list[
            tuple[FairClient | None, Steps[Any], GoOn, Refuse, bool, asyncio.Future[AppendOutcome]]
        ] = []
        self._is_refusing = False

    def is_busy(self, client: FairClient | None) -> bool:
        return True

    def put(
        self, client: FairClient | None, steps: Steps[Any], go_on: GoOn, refuse: Refuse, *, is_lasting: bool
    ) -> "asyncio.Future[AppendOutcome]":
        answer: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        self._held.append((client, steps, go_on, refuse, is_lasting, answer))
        if self._is_refusing:
            self.refuse()
        return answer

    def refuse(self) -> None:
        """Refuse all batches, including batches that arrive later."""
        self._is_refusing = True
        held, self._held = self._held, []
        for _, _, _, refuse, _, answer in held:
            if not answer.done():
                answer.set_result(refuse(KafkaError(ErrorCode.not_leader_or_follower, _ENDING)))

    def release(self) -> None:
        """Pass all batches to the real queue."""
        held, self._held = self._held, []
        for client, steps, go_on, refuse, is_lasting, answer in held:
            pass_on(self._queue.put(client, steps, go_on, refuse, is_lasting=is_lasting), answer)


async def _refuse_deletion(before_offset: int, timeout_s: float | None = None) -> int:
    # The state for the next chunk already contains the start of the log, so the start must not move.
    raise KafkaError(ErrorCode.not_leader_or_follower, _ENDING)


class AppendFreeze:
    """Freezes one partition. During the freeze producers wait. Markers of transactions and deletions of
    records are refused, and their senders retry."""

    def __init__(self, partition: ClassicPartition, machine: Machine) -> None:
        self._partition = partition
        self._queue = partition.opening or OpeningQueue(machine.opening, machine.unexpected)
        self._held = _HeldAppends(self._queue)
        self._delete_records = partition.delete_records

    def begin(self) -> None:
        self._partition.delete_records = _refuse_deletion
        self._partition.opening = self._held
        self._partition.guards.refuses_markers = True

    @property
    def is_drained(self) -> bool:
        """Whether all appends from before the freeze are in the log and committed."""
        partition = self._partition
        return self._queue.is_empty and partition.high_watermark == partition.log.log_end_offset

    def refuse(self) -> None:
        """Answer NOT_LEADER_OR_FOLLOWER to all batches from now until the end of the freeze. No batch waits
        until the end of the freeze, because the freeze takes too long."""
        self._held.refuse()

    def end(self) -> None:
        """End the freeze. The waiting batches are appended or refused."""
        self._partition.guards.refuses_markers = False
        self._partition.delete_records = self._delete_records
        self._partition.opening = self._queue
        self._held.release()


def is_frozen(partition: ClassicPartition) -> bool:
    """Whether the partition is frozen, so that its appends are delayed."""
    return isinstance(partition.opening, _HeldAppends)
