"""A classic partition as a participant in transactions. The partition's leader verifies the first batch of
each transaction, and writes the marker at the end of the transaction."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from moldau.records.batch import BatchHeader, parse_header
from moldau.records.control import build_end_transaction_marker
from moldau.replication.appending.transactions import TransactionChecks, TransactionGuard
from moldau.replication.partition_interface import (
    ActiveProducer,
    AppendAnswer,
    AppendOutcome,
    ProducerTurn,
    TransactionalBatch,
    TransactionMarker,
)
from moldau.runtime import Clock
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.storage.log.append_info import AppendInfo, AppendOrigin

COMMIT_TIMEOUT_MS: Final = 5_000
"""Time for which a marker waits for the high watermark. After this time the coordinator sends the marker
again."""


class GuardedReplica(Protocol):
    """The methods of a classic partition that transactions use."""

    guards: TransactionChecks

    @property
    def is_leader(self) -> bool: ...

    def append(
        self,
        records: memoryview,
        *,
        required_acks: int,
        timeout_ms: int,
        client: FairClient | None = None,
        guard: TransactionGuard | None = None,
    ) -> AppendAnswer: ...

    def append_own(
        self, batches: bytes | bytearray, headers: list[BatchHeader], origin: AppendOrigin
    ) -> AppendInfo: ...

    def committed(self, offset: int, timeout_ms: int) -> "asyncio.Future[AppendOutcome]": ...


class ClassicTransactions:
    """A classic partition in transactions: a
    :class:`moldau.replication.partition_interface.TransactionParticipant`."""

    any_broker_marks = False

    def __init__(self, replica: GuardedReplica, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock

    def append(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        replica = self._replica
        if not replica.is_leader:
            # The append refuses the batch, because this replica is not the leader.
            return self._append(batch)
        guards, producer = replica.guards, (batch.producer_id, batch.producer_epoch)
        if turn.is_free and guards.is_open(*producer):
            return self._append(batch)
        if turn.is_free and turn.is_confirmed():
            return self._append_guarded(batch, guards.guard(*producer))
        return turn.wait(partial(self._checked, batch.kept(), turn))

    async def _checked(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        checks = self._replica.guards
        guard = checks.guard(batch.producer_id, batch.producer_epoch)
        if guard is not None:
            try:
                await turn.verify()
            except BaseException:
                checks.withdraw(batch.producer_id, guard)
                raise
        return self._append_guarded(batch, guard)

    def _append_guarded(self, batch: TransactionalBatch, guard: TransactionGuard | None) -> AppendAnswer:
        """Append, and withdraw the guard when the batch is appended or refused."""
        if guard is None:
            return self._append(batch)
        answer: AppendAnswer | None = None
        try:
            answer = self._append(batch, guard)
            return answer
        finally:
            _withdraw_after(answer, partial(self._replica.guards.withdraw, batch.producer_id, guard))

    def _append(self, batch: TransactionalBatch, guard: TransactionGuard | None = None) -> AppendAnswer:
        return self._replica.append(
            batch.records,
            required_acks=batch.required_acks,
            timeout_ms=batch.timeout_ms,
            client=batch.client,
            guard=guard,
        )

    async def producers(self) -> Sequence[ActiveProducer] | None:
        """Return None, because this replica's log contains all producers. No other node has newer
        information."""
        return None

    async def write_marker(self, marker: TransactionMarker) -> None:
        replica, producer_id, producer_epoch = self._replica, marker.producer_id, marker.producer_epoch
        batch = build_end_transaction_marker(
            producer_id,
            producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=self._clock.now_ms(),
        )
        replica.guards.check_marker(producer_id, producer_epoch, marker.transaction_version)
        info = replica.append_own(batch, [parse_header(batch)], AppendOrigin.COORDINATOR)
        outcome = await replica.committed(info.last_offset, COMMIT_TIMEOUT_MS)
        if outcome.error is not ErrorCode.none:
            raise KafkaError(outcome.error, outcome.message)


def _withdraw_after(answer: "AppendAnswer | None", withdraw: Callable[[], None]) -> None:
    """Withdraw the guard when the batch is appended or refused. This may happen later, on a worker."""
    if answer is None or isinstance(answer, AppendOutcome):
        withdraw()
    else:
        answer.add_done_callback(lambda _: withdraw())
