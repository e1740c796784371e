"""TieredDescribeTopics: get the offsets of the partitions that a broker leads, and the sizes and numbers of
their remote segments, for tools."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class TieredDescribedPartition(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """REPLICA_NOT_AVAILABLE means that the partition's remote metadata are loading. In this case the offsets
    are set, and the sizes and numbers of segments are not set."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    log_start_offset: int = wire("int64", default=-1)
    local_log_start_offset: int = wire("int64", default=-1)
    high_watermark: int = wire("int64", default=-1)
    highest_remote_offset: int = wire("int64", default=-1)
    """The last copied offset (ListOffsets' latest tiered). It is -1 if no offset was copied."""
    local_size_bytes: int = wire("int64", default=0)
    """Size of the leader's log, and of the inactive chunks on the brokers of these chunks. Each chunk is
    counted once."""
    remote_size_bytes: int = wire("int64", default=0)
    """Size of the finished segments without their indexes."""
    remote_segments: int = wire("int32", default=0)
    unfinished_segments: int = wire("int32", default=0)
    """Number of segments that are being copied or deleted, or whose copy failed."""


@message
class TieredDescribedTopic(Message):
    name: str = wire("string")
    topic_id: UUID = wire("uuid")
    partitions: Sequence[TieredDescribedPartition] = wire([TieredDescribedPartition], default=())


@message
class TieredDescribeTopicsRequest(Message):
    API_KEY = 11660
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topics: Sequence[str] | None = wire(["string"], nullable="0+", default=None)
    """Names of topics. Null means all tiered topics."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time in ms for which the caller waits for the answer."""


@message
class TieredDescribeTopicsResponse(Message):
    API_KEY = 11660
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """UNSUPPORTED_VERSION means that the broker has no remote tier."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[TieredDescribedTopic] = wire([TieredDescribedTopic], default=())


REQUEST = TieredDescribeTopicsRequest
RESPONSE = TieredDescribeTopicsResponse
