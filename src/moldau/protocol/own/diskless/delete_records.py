"""DisklessDeleteRecords: move the log start offsets of diskless partitions (KIP-1164's API 96)."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessDeleteRecordsPartition(Message):
    partition_index: int = wire("int32")
    offset: int = wire("int64")


@message
class DisklessDeleteRecordsTopic(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessDeleteRecordsPartition] = wire([DisklessDeleteRecordsPartition], default=())


@message
class DisklessDeleteRecordsPartitionResult(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    low_watermark: int = wire("int64", default=-1)


@message
class DisklessDeleteRecordsTopicResult(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessDeleteRecordsPartitionResult] = wire(
        [DisklessDeleteRecordsPartitionResult], default=()
    )


@message
class DisklessDeleteRecordsRequest(Message):
    API_KEY = 11643
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    topics: Sequence[DisklessDeleteRecordsTopic] = wire([DisklessDeleteRecordsTopic], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessDeleteRecordsResponse(Message):
    API_KEY = 11643
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessDeleteRecordsTopicResult] = wire([DisklessDeleteRecordsTopicResult], default=())


REQUEST = DisklessDeleteRecordsRequest
RESPONSE = DisklessDeleteRecordsResponse
