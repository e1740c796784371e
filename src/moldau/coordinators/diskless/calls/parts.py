"""Parts of transactions in diskless partitions: guards, and markers."""

from typing import Final, NamedTuple
from uuid import UUID

from moldau.runtime import ErrorCode

MARKER_SIZE_BYTES: Final = 78
"""Size of the control batch that stands for a marker."""


class TransactionEnd(NamedTuple):
    """The content of a marker."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool


class GuardToIssue(NamedTuple):
    """A producer that is about to write transactional batches to a partition."""

    topic_id: UUID
    partition_index: int
    producer_id: int
    producer_epoch: int


class IssuedGuard(NamedTuple):
    """The producer's guard in the partition: the same until a marker, or another term, makes it void."""

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


class EndedTransactionPart(NamedTuple):
    """The outcome of a marker, as of WriteTxnMarkers."""

    topic_id: UUID
    partition_index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
