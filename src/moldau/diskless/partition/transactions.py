"""Transactions in a diskless partition, and the steps that a broker performs for them.

Every broker may write the partition, so only the coordinator knows which transactions are open. Before the
first batch of a transaction, a broker requests the producer's guard and verifies the transaction. If it leads
both coordinators, it does this at once, without a request. Later batches have the same guard. Before
transaction version 2, another broker may have ended the transaction without a new epoch, so the guard is
requested for each batch. If it differs from the previous guard, either a transaction has begun, or another
broker now leads the coordinator, and the transaction is verified again. A batch with a guard that is no
longer valid is not committed, and the producer sends it again.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from moldau.coordinators.diskless.calls import GuardToIssue, MarkerToWrite
from moldau.diskless.partition.client_errors import client_error
from moldau.diskless.partition.local_guards import LocalGuards
from moldau.diskless.partition.services import TransactionParts
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import (
    ActiveProducer,
    AppendAnswer,
    AppendOutcome,
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


class _Verified(NamedTuple):
    """The guard with which a transaction of a producer was verified: the partition belongs to it."""

    producer_epoch: int
    guard: int


class DisklessTransactions:
    """The guards of a partition on this broker.

    Implements :class:`moldau.replication.partition_interface.TransactionParticipant`.
    """

    any_broker_marks = True
    """Any broker can call the partition's coordinator, even if no replica is alive."""

    def __init__(
        self,
        key: PartitionKey,
        coordinator: TransactionParts,
        guards: LocalGuards,
        append: GuardedAppend,
    ) -> None:
        self._key = key
        self._coordinator = coordinator
        self._guards = guards
        self._append = append
        self._verified: dict[int, _Verified] = {}

    def append(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        """Append with the guard of the producer's open transaction, or request a guard first."""
        if turn.is_free:
            guard = self._kept_guard(batch, turn) or self._confirmed_guard(batch, turn)
            if guard:
                return self._write(batch, guard)
        return turn.wait(partial(self._guarded, batch.kept(), turn))

    def _kept_guard(self, batch: TransactionalBatch, turn: ProducerTurn) -> int:
        """The guard with which the producer's transaction was verified, if the batch may have it; otherwise
        0.

        From transaction version 2 on, each transaction of a producer has another epoch, so a batch of this
        epoch belongs to the verified transaction. In older versions, the transaction is still open only if
        the coordinator has not replaced the guard. Without a request, this is known only to the broker that
        leads the coordinator.
        """
        verified = self._verified.get(batch.producer_id)
        if verified is None or verified.producer_epoch != batch.producer_epoch:
            return 0
        if not batch.required_acks:
            return 0  # a refusal of the guard would not be noticed
        if turn.has_own_epoch:
            return verified.guard
        wanted = GuardToIssue(*self._key, batch.producer_id, batch.producer_epoch)
        return verified.guard if self._guards.known(wanted) == verified.guard else 0

    def _confirmed_guard(self, batch: TransactionalBatch, turn: ProducerTurn) -> int:
        """A guard that this broker issues itself, if it knows that the partition belongs to the transaction;
        otherwise 0. No marker can arrive between the two steps."""
        if not turn.is_confirmed():
            return 0
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        guard = self._guards.issue(GuardToIssue(*self._key, producer_id, epoch))
        if guard:
            self._keep(producer_id, _Verified(epoch, guard))
        return guard

    async def _guarded(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        guard = self._kept_guard(batch, turn)
        if not guard:
            guard = await self._verified_guard(batch, turn)
        return self._write(batch, guard)

    async def _verified_guard(self, batch: TransactionalBatch, turn: ProducerTurn) -> int:
        """Get a guard from the coordinator. If it is a new guard, verify the transaction."""
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        guard = await self._guard(producer_id, epoch)
        if self._verified.get(producer_id) != (epoch, guard):
            await turn.verify()
            self._keep(producer_id, _Verified(epoch, guard))
        return guard

    def _write(self, batch: TransactionalBatch, guard: int) -> AppendAnswer:
        answer = self._append(
            batch.records,
            required_acks=batch.required_acks,
            timeout_ms=batch.timeout_ms,
            client=batch.client,
            guard=guard,
        )
        if not isinstance(answer, AppendOutcome):
            answer.add_done_callback(partial(self._appended, batch.producer_id))
        return answer

    def _appended(self, producer_id: int, answer: "asyncio.Future[AppendOutcome]") -> None:
        # The guard may be unknown to a new leader of the coordinator. The producer sends the batch again, and
        # then a new guard is needed.
        if answer.cancelled() or answer.exception() or answer.result().error is not ErrorCode.none:
            self._verified.pop(producer_id, None)

    async def _guard(self, producer_id: int, producer_epoch: int) -> int:
        """The producer's current guard. Raises INVALID_PRODUCER_EPOCH and COORDINATOR_NOT_AVAILABLE."""
        wanted = GuardToIssue(*self._key, producer_id, producer_epoch)
        (issued,) = await self._coordinator.guard_transactions([wanted])
        if issued.error is not ErrorCode.none:
            raise client_error(issued.error, issued.message, ErrorCode.coordinator_not_available)
        return issued.guard

    def _keep(self, producer_id: int, verified: "_Verified") -> None:
        """Keep a guard that was issued before the transaction was verified."""
        self._verified.pop(producer_id, None)
        self._verified[producer_id] = verified
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
