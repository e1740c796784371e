"""DisklessGuardTransactions: get guards for transactional batches, before their transactions are verified."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessGuardedPartition(Message):
    partition_index: int = wire("int32")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")


@message
class DisklessGuardedTopic(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessGuardedPartition] = wire([DisklessGuardedPartition], default=())


@message
class DisklessGuardedPartitionResult(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    guard: int = wire("int64", default=0)


@message
class DisklessGuardedTopicResult(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessGuardedPartitionResult] = wire([DisklessGuardedPartitionResult], default=())


@message
class DisklessGuardTransactionsRequest(Message):
    API_KEY = 11670
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    topics: Sequence[DisklessGuardedTopic] = wire([DisklessGuardedTopic], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessGuardTransactionsResponse(Message):
    API_KEY = 11670
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessGuardedTopicResult] = wire([DisklessGuardedTopicResult], default=())


REQUEST = DisklessGuardTransactionsRequest
RESPONSE = DisklessGuardTransactionsResponse
