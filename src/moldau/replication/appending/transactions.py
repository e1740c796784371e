"""Refuses transactional batches that belong to no open transaction (KIP-890).

A batch may arrive late, after its transaction was aborted. If the batch were appended after the marker, it
would open a transaction that never ends. Therefore the first batch of a transaction needs a guard. The guard
is issued before the coordinator is asked whether the partition belongs to the transaction. A marker, or the
end of the leadership, makes the guard invalid.
"""

from typing import Final, NamedTuple

from moldau.records.batch import BatchHeader
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.partition_log import PartitionLog

VERSION_WITH_BUMPS: Final = 2
"""The first transaction version in which the producer epoch in a marker is one higher than the epoch of its
transaction (KIP-890)."""


class TransactionGuard:
    """The guard of a producer. If several checks by the coordinator are in progress for the producer, they
    share one guard. Guards are compared by identity."""

    __slots__ = ()


class AppendTerms(NamedTuple):
    """The conditions of a client's append. The first batch of a transaction needs a guard."""

    required_acks: int
    timeout_ms: int
    guard: TransactionGuard | None = None


class _Issued(NamedTuple):
    producer_epoch: int
    guard: TransactionGuard
    checks: int
    """Number of checks by the coordinator that share the guard."""


class TransactionChecks:
    """The guards of one partition. This class is used on the event loop."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._issued: dict[int, _Issued] = {}
        self._spared: int | None = None
        """The producer whose guard stays valid after the marker that was checked last."""
        self.refuses_markers = False
        """Whether markers are refused, because appends to the partition are delayed."""

    @property
    def count(self) -> int:
        """Number of producers with a guard."""
        return len(self._issued)

    def guard(self, producer_id: int, producer_epoch: int) -> TransactionGuard | None:
        """A guard for the producer's next batch. The result is ``None`` if the producer's transaction is
        already open in this partition.

        The caller must withdraw the guard when the batch is appended or refused. Raises
        INVALID_PRODUCER_EPOCH if this partition has a newer epoch of the producer.
        """
        if self._is_open(producer_id, producer_epoch):
            return None
        issued = self._issued.get(producer_id)
        if issued is None or issued.producer_epoch < producer_epoch:
            issued = _Issued(producer_epoch, TransactionGuard(), 0)
        self._issued[producer_id] = issued._replace(checks=issued.checks + 1)
        return issued.guard

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's transaction is already open in this partition, so that its next batch needs
        no guard.

        Raises INVALID_PRODUCER_EPOCH if this partition has a newer epoch of the producer.
        """
        return self._is_open(producer_id, producer_epoch)

    def check(self, producer_id: int, producer_epoch: int, guard: TransactionGuard | None) -> None:
        """Raise INVALID_TXN_STATE for a batch that would open a transaction without a valid guard."""
        if self._is_open(producer_id, producer_epoch):
            return
        issued = self._issued.get(producer_id)
        if guard is None or issued is None or issued.guard is not guard:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"a batch of producer {producer_id} belongs to no open transaction",
            )

    def check_marker(self, producer_id: int, producer_epoch: int, version: int) -> None:
        """Check a marker of a transaction version before the marker is appended, in the same iteration of the
        event loop.

        From version 2 on, the end of a transaction increases the epoch. Therefore a marker with the epoch of
        an open transaction is a late copy of the previous transaction's marker. Such a marker is refused with
        INVALID_PRODUCER_EPOCH. If no transaction is open, a late copy changes nothing, and is accepted.

        For the same reason, the guard of the producer's next transaction stays valid: the marker of the last
        transaction has the epoch of this guard.
        """
        if self.refuses_markers:
            raise KafkaError(ErrorCode.not_leader_or_follower, "the active chunk of the partition ends")
        if version >= VERSION_WITH_BUMPS and self._is_open(producer_id, producer_epoch):
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id} has begun another transaction since this marker was made",
            )
        issued = self._issued.get(producer_id)
        is_of_next = issued is not None and issued.producer_epoch == producer_epoch
        self._spared = producer_id if version >= VERSION_WITH_BUMPS and is_of_next else None

    def withdraw(self, producer_id: int, guard: TransactionGuard) -> None:
        """Withdraw the guard of a check after which nothing was appended. The guard becomes invalid, unless
        another check shares it."""
        issued = self._issued.get(producer_id)
        if issued is None or issued.guard is not guard:
            return
        if issued.checks > 1:
            self._issued[producer_id] = issued._replace(checks=issued.checks - 1)
        else:
            del self._issued[producer_id]

    def appended(self, header: BatchHeader) -> None:
        """Remove the producer's guard after an append. A marker makes the guard invalid, except as
        :meth:`check_marker` describes, and an open transaction needs no guard."""
        spared, self._spared = self._spared, None
        if not (header.is_control and header.producer_id == spared):
            self._issued.pop(header.producer_id, None)

    def clear(self) -> None:
        """Remove all guards, because the leadership has ended."""
        self._issued.clear()

    def _is_open(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self._log.producer(producer_id)
        if entry is None:
            return False
        if producer_epoch < entry.producer_epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"epoch {producer_epoch} of producer {producer_id} is older than {entry.producer_epoch}",
            )
        return entry.producer_epoch == producer_epoch and entry.current_txn_first_offset is not None
