"""Transactions in a diskless partition, and the steps that a broker performs for them.

Every broker may write the partition, so only the coordinator knows which transactions are open. A broker
requests the producer's guard for each transactional batch. If the guard differs from the previous guard,
either a transaction has begun, or another broker now leads the coordinator. The broker then verifies the
transaction after the guard was issued and before the batch is written.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import GuardToIssue, MarkerToWrite
from moldau.diskless.partition.client_errors import client_error
from moldau.diskless.partition.services import TransactionParts
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import (
    ActiveProducer,
    AppendAnswer,
    ProducerTurn,
    TransactionalBatch,
    TransactionMarker,
)
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient

VERIFIED_MAX: Final = 1_000
"""Number of producers for which a partition keeps verified guards. For other producers, transactions are
verified again."""


class GuardedAppend(Protocol):
    """Append a batch with the guard of its transaction, like ``Partition.append``."""

    def __call__(
        self,
        records: memoryview,
        *,
        required_acks: int,
        timeout_ms: int,
        client: FairClient | None,
        guard: int,
    ) -> AppendAnswer: ...


class DisklessTransactions:
    """The guards of a partition on this broker.

    Implements :class:`moldau.replication.partition_interface.TransactionParticipant`.
    """

    any_broker_marks = True
    """Any broker can call the partition's coordinator, even if no replica is alive."""

    def __init__(self, key: PartitionKey, coordinator: TransactionParts, append: GuardedAppend) -> None:
        self._key = key
        self._coordinator = coordinator
        self._append = append
        self._verified: dict[int, int] = {}

    def append(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        """Request a guard from the partition's coordinator before each batch."""
        return turn.wait(partial(self._guarded, batch.kept(), turn))

    async def _guarded(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        producer_id = batch.producer_id
        guard = await self.guard(producer_id, batch.producer_epoch)
        if not self.is_verified(producer_id, guard):
            await turn.verify()
            self.verified(producer_id, guard)
        return self._append(
            batch.records,
            required_acks=batch.required_acks,
            timeout_ms=batch.timeout_ms,
            client=batch.client,
            guard=guard,
        )

    async def guard(self, producer_id: int, producer_epoch: int) -> int:
        """The producer's current guard. Raises INVALID_PRODUCER_EPOCH and COORDINATOR_NOT_AVAILABLE."""
        wanted = GuardToIssue(*self._key, producer_id, producer_epoch)
        (issued,) = await self._coordinator.guard_transactions([wanted])
        if issued.error is not ErrorCode.none:
            raise client_error(issued.error, issued.message, ErrorCode.coordinator_not_available)
        return issued.guard

    def is_verified(self, producer_id: int, guard: int) -> bool:
        """Whether the producer's transaction was verified with this guard."""
        return self._verified.get(producer_id) == guard

    def verified(self, producer_id: int, guard: int) -> None:
        """Store that the transaction of this guard was verified: the partition belongs to it. The guard must
        have been issued before the verification."""
        self._verified.pop(producer_id, None)
        self._verified[producer_id] = guard
        if len(self._verified) > VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]

    async def write_marker(self, marker: TransactionMarker) -> None:
        """Let the coordinator append a marker. Returns when the marker is committed. Raises
        ``KafkaError``.
        """
        self._verified.pop(marker.producer_id, None)
        wanted = MarkerToWrite(
            *self._key,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.committed,
            marker.transaction_version,
            marker.decision_partition,
            marker.decision_offset,
        )
        (ended,) = await self._coordinator.end_transactions([wanted])
        if ended.error is not ErrorCode.none:
            raise KafkaError(ended.error)

    async def producers(self) -> Sequence[ActiveProducer] | None:
        """The producers that the coordinator has. The result is ``None`` if an older broker leads the
        coordinator, because such a broker does not support this request.
        """
        try:
            found = await self._coordinator.describe_producers(self._key)
        except KafkaError as error:
            if error.code is ErrorCode.unsupported_version:
                return None
            raise client_error(error.code, error.message, ErrorCode.not_leader_or_follower) from error
        if found.error is not ErrorCode.none:
            raise client_error(found.error, found.message, ErrorCode.not_leader_or_follower)
        return [ActiveProducer(*each) for each in found.producers]
