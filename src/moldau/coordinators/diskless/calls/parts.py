"""The parts of transactions in diskless partitions: guards and markers."""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from moldau.runtime import ErrorCode

MARKER_SIZE_BYTES: Final = 78
"""Size of the control batch that readers build for a marker."""


class TransactionEnd(NamedTuple):
    """The decision that a marker contains: commit or abort."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool


class GuardToIssue(NamedTuple):
    """A producer that will soon write transactional batches to a partition."""

    topic_id: UUID
    partition_index: int
    producer_id: int
    producer_epoch: int


class IssuedGuard(NamedTuple):
    """The producer's guard in the partition. The guard stays valid until a marker of the producer is written,
    or until the coordinator begins a new leader epoch."""

    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    guard: int = 0


class MarkerToWrite(NamedTuple):
    """The end of a producer's transaction in a partition."""

    topic_id: UUID
    partition_index: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int = 0
    decision_partition: int = -1
    decision_offset: int = -1
    """The position of the record that decides the transaction: its partition of ``__transaction_state``, and
    its offset in this partition; -1 if they are not known. A restore compares the offset with the end of the
    saved log."""


class EndedTransactionPart(NamedTuple):
    """The result of writing a marker, as in WriteTxnMarkers."""

    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class ProducerOfPartition(NamedTuple):
    """A producer that has written to a partition. The partition still stores this producer's last batches.
    The value -1 means that a number is not known."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int
    """First offset of the producer's open transaction."""


class ProducersOfPartition(NamedTuple):
    """The producers of a partition with their open transactions (DescribeProducers)."""

    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    producers: Sequence[ProducerOfPartition] = ()
