"""DisklessListOffsets: find offsets of partitions by timestamp (KIP-1164's API 97). Version 1 adds the last
stable offset. In version 2 the batch of an offset may be a marker."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.own.diskless.find_batches import DisklessBatchInfo
from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessListOffsetsPartition(Message):
    partition_index: int = wire("int32")
    timestamp: int = wire("int64")


@message
class DisklessListOffsetsTopic(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessListOffsetsPartition] = wire([DisklessListOffsetsPartition], default=())


@message
class DisklessListOffsetsPartitionResult(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    timestamp: int = wire("int64", default=-1)
    offset: int = wire("int64", default=-1)
    log_start_offset: int = wire("int64", default=-1)
    """Moldau's own field: the log start offset of the partition."""
    wal_start_offset: int = wire("int64", default=-1)
    """Moldau's own field: the first offset of the partition that is still in the WAL."""
    batches: Sequence[DisklessBatchInfo] = wire([DisklessBatchInfo], default=())
    """Moldau's own field: the batch that contains the record. There is at most one such batch."""
    last_stable_offset: int = wire("int64", "1+", default=-1)
    """Moldau's own field: the last stable offset of the partition."""
    remote_metadata_position: int = wire("int64", tag=0, tagged="0+", default=-1)
    """Moldau's own field: a reader that has read the remote metadata up to this position knows all segments
    before ``wal_start_offset``. Older nodes ignore it."""


@message
class DisklessListOffsetsTopicResult(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessListOffsetsPartitionResult] = wire(
        [DisklessListOffsetsPartitionResult], default=()
    )


@message
class DisklessListOffsetsRequest(Message):
    API_KEY = 11644
    VERSIONS = "0-2"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    topics: Sequence[DisklessListOffsetsTopic] = wire([DisklessListOffsetsTopic], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessListOffsetsResponse(Message):
    API_KEY = 11644
    VERSIONS = "0-2"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessListOffsetsTopicResult] = wire([DisklessListOffsetsTopicResult], default=())


REQUEST = DisklessListOffsetsRequest
RESPONSE = DisklessListOffsetsResponse
