"""DisklessDescribeTopics: get the offsets and sizes of diskless topics, for tools."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessDescribedPartition(Message):
    partition_index: int = wire("int32")
    log_start_offset: int = wire("int64")
    wal_start_offset: int = wire("int64")
    high_watermark: int = wire("int64")
    size_bytes: int = wire("int64")
    batches: int = wire("int64")
    objects_bytes: int = wire("int64")
    deleted_bytes: int = wire("int64")


@message
class DisklessDescribedTopic(Message):
    topic_id: UUID = wire("uuid")
    name: str = wire("string")
    objects: int = wire("int64", default=0)
    """Number of objects that contain live batches of the topic at this coordinator. Each object is counted
    once.
    """
    objects_bytes: int = wire("int64", default=0)
    deleted_bytes: int = wire("int64", default=0)
    object_keys: Sequence[str] = wire(["string"], default=())
    """Keys of the objects that contain live batches of the topic. The list is empty if the request does not
    ask for keys."""
    partitions: Sequence[DisklessDescribedPartition] = wire([DisklessDescribedPartition], default=())


@message
class DisklessDescribeTopicsRequest(Message):
    API_KEY = 11654
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    topic_ids: Sequence[UUID] | None = wire(["uuid"], nullable="0+", default=None)
    """The requested topics. Null means all topics."""
    timeout_ms: int = wire("int32", default=60000)
    with_object_keys: bool = wire("bool", default=False)
    """Whether to list object keys. With the keys, a tool counts an object of several coordinators only once.
    """


@message
class DisklessDescribeTopicsResponse(Message):
    API_KEY = 11654
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessDescribedTopic] = wire([DisklessDescribedTopic], default=())


REQUEST = DisklessDescribeTopicsRequest
RESPONSE = DisklessDescribeTopicsResponse
