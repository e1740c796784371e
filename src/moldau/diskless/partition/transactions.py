"""Transactions in one diskless partition, as a broker takes part in them.

Every broker may write the partition, so it is the coordinator that knows which transactions are open. A
broker requests the producer's guard for each transactional batch. Where it is another one than before, a
transaction has begun, or the coordinator was led elsewhere: then the transaction is verified, after the guard
was issued and before the batch is written.
"""

from typing import Final

from moldau.coordinators.diskless.calls import GuardToIssue, MarkerToWrite
from moldau.diskless.partition.client_errors import client_error
from moldau.diskless.partition.services import TransactionParts
from moldau.replication.partition import PartitionKey
from moldau.runtime import ErrorCode

VERIFIED_MAX: Final = 1_000
"""Producers of a partition whose verified guards are kept; the oldest are verified again."""


class DisklessTransactions:
    """The guards of one partition at this broker."""

    def __init__(self, key: PartitionKey, coordinator: TransactionParts) -> None:
        self._key = key
        self._coordinator = coordinator
        self._verified: dict[int, int] = {}

    async def guard(self, producer_id: int, producer_epoch: int) -> int:
        """The producer's guard of now. Raises INVALID_PRODUCER_EPOCH, and COORDINATOR_NOT_AVAILABLE."""
        wanted = GuardToIssue(*self._key, producer_id, producer_epoch)
        (issued,) = await self._coordinator.guard_transactions([wanted])
        if issued.error is not ErrorCode.none:
            raise client_error(issued.error, issued.message, ErrorCode.coordinator_not_available)
        return issued.guard

    def is_verified(self, producer_id: int, guard: int) -> bool:
        """Whether the producer's transaction was verified with this guard."""
        return self._verified.get(producer_id) == guard

    def verified(self, producer_id: int, guard: int) -> None:
        """The partition belongs to the producer's transaction; the guard was issued before that was asked."""
        self._verified.pop(producer_id, None)
        self._verified[producer_id] = guard
        if len(self._verified) > VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]

    async def end(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int,
    ) -> ErrorCode:
        """Have a marker appended; returns when it is committed. Raises ``KafkaError``."""
        self._verified.pop(producer_id, None)
        marker = MarkerToWrite(
            *self._key, producer_id, producer_epoch, coordinator_epoch, committed, transaction_version
        )
        (ended,) = await self._coordinator.end_transactions([marker])
        return ended.error
