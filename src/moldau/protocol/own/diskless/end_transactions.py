"""DisklessEndTransactions: write the markers of ended transactions to the partitions of a diskless
coordinator."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessEndedPartition(Message):
    partition_index: int = wire("int32")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    coordinator_epoch: int = wire("int32")
    """The epoch of the transaction coordinator."""
    committed: bool = wire("bool")
    transaction_version: int = wire("int8", default=0)
    decision_partition: int = wire("int32", tag=0, tagged="0+", default=-1)
    """The partition of ``__transaction_state`` with the outcome. Older nodes ignore it."""
    decision_offset: int = wire("int64", tag=1, tagged="0+", default=-1)
    """The offset of the outcome in that partition. Older nodes ignore it."""


@message
class DisklessEndedTopic(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessEndedPartition] = wire([DisklessEndedPartition], default=())


@message
class DisklessEndedPartitionResult(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class DisklessEndedTopicResult(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessEndedPartitionResult] = wire([DisklessEndedPartitionResult], default=())


@message
class DisklessEndTransactionsRequest(Message):
    API_KEY = 11671
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    topics: Sequence[DisklessEndedTopic] = wire([DisklessEndedTopic], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessEndTransactionsResponse(Message):
    API_KEY = 11671
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessEndedTopicResult] = wire([DisklessEndedTopicResult], default=())


REQUEST = DisklessEndTransactionsRequest
RESPONSE = DisklessEndTransactionsResponse
