"""DisklessFindBatches: find the batches of partitions, each from an offset on (KIP-1164's API 98). Version 1
adds the last stable offset and the aborted transactions. Version 2 adds the markers of transactions."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessMarkerInfo(Message):
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    coordinator_epoch: int = wire("int32")
    committed: bool = wire("bool")


@message
class DisklessBatchInfo(Message):
    batch_id: int = wire("int64", default=-1)
    object_key: str = wire("string")
    magic: int = wire("int8", default=2)
    byte_offset: int = wire("int64")
    byte_size: int = wire("int64")
    base_offset: int = wire("int64")
    last_offset: int = wire("int64")
    log_append_timestamp: int = wire("int64")
    batch_max_timestamp: int = wire("int64")
    timestamp_type: int = wire("int8")
    is_transactional: bool = wire("bool", "2+", default=False)
    """Moldau's own field: whether the batch belongs to a transaction."""
    markers: Sequence[DisklessMarkerInfo] = wire([DisklessMarkerInfo], "2+", default=())
    """Moldau's own field: the marker, if this entry is the marker of a transaction. The list then has one
    entry, and the marker has no object. For a batch of records the list is empty.
    """


@message
class DisklessFindBatchesPartition(Message):
    partition_index: int = wire("int32")
    offset: int = wire("int64")
    max_partition_fetch_bytes: int = wire("int32")


@message
class DisklessFindBatchesTopic(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessFindBatchesPartition] = wire([DisklessFindBatchesPartition], default=())


@message
class DisklessAbortedRange(Message):
    producer_id: int = wire("int64")
    first_offset: int = wire("int64")
    last_offset: int = wire("int64")
    """The offset of the marker that aborted the transaction."""


@message
class DisklessFindBatchesPartitionResult(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    log_start_offset: int = wire("int64", default=-1)
    high_watermark: int = wire("int64", default=-1)
    wal_start_offset: int = wire("int64", default=-1)
    """Moldau's own field: the first offset of the partition that is still in the WAL."""
    moved_to_tier: bool = wire("bool", default=False)
    """Moldau's own field: whether the requested offset must be read from remote storage."""
    batches: Sequence[DisklessBatchInfo] = wire([DisklessBatchInfo], default=())
    last_stable_offset: int = wire("int64", "1+", default=-1)
    """Moldau's own field: the last stable offset of the partition."""
    aborted: Sequence[DisklessAbortedRange] = wire([DisklessAbortedRange], "1+", default=())
    """Moldau's own field: the aborted transactions that have records among these batches."""
    remote_metadata_position: int = wire("int64", tag=0, tagged="0+", default=-1)
    """Moldau's own field: a reader that has read the remote metadata up to this position knows all segments
    before ``wal_start_offset``. Older nodes ignore it."""


@message
class DisklessFindBatchesTopicResult(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessFindBatchesPartitionResult] = wire(
        [DisklessFindBatchesPartitionResult], default=()
    )


@message
class DisklessFindBatchesRequest(Message):
    API_KEY = 11645
    VERSIONS = "0-2"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    fetch_max_bytes: int = wire("int32")
    max_batches_per_partition: int = wire("int32", default=0)
    topics: Sequence[DisklessFindBatchesTopic] = wire([DisklessFindBatchesTopic], default=())
    min_bytes: int = wire("int32", default=0)
    """Moldau's own field: the coordinator answers when it has found ``min_bytes`` bytes of batches."""
    max_wait_ms: int = wire("int32", default=0)
    """Moldau's own field: the maximum time, in ms, for which the coordinator waits for batches."""
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessFindBatchesResponse(Message):
    API_KEY = 11645
    VERSIONS = "0-2"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessFindBatchesTopicResult] = wire([DisklessFindBatchesTopicResult], default=())


REQUEST = DisklessFindBatchesRequest
RESPONSE = DisklessFindBatchesResponse
