"""DisklessPrune: remove offsets from the WAL of partitions, because these offsets are in remote storage. A
coordinator does this only if the partition's WAL still begins at the offset in the request."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessPrunePartition(Message):
    partition_index: int = wire("int32")
    from_offset: int = wire("int64")
    """The first offset to remove. If ``from_offset`` and ``to_offset`` are -1, no offset is removed and only
    the epoch of the request is stored. After that, prunes with older epochs are refused.
    """
    to_offset: int = wire("int64")
    epoch: int = wire("int32")
    remote_metadata_position: int = wire("int64", default=-1)


@message
class DisklessPruneTopic(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessPrunePartition] = wire([DisklessPrunePartition], default=())


@message
class DisklessPrunePartitionResult(Message):
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    log_start_offset: int = wire("int64", default=-1)
    wal_start_offset: int = wire("int64", default=-1)
    remote_metadata_position: int = wire("int64", default=-1)
    """Position in the remote metadata at the last prune."""
    wal_size_bytes: int = wire("int64", default=-1)
    wal_batches: int = wire("int32", default=-1)


@message
class DisklessPruneTopicResult(Message):
    topic_id: UUID = wire("uuid")
    partitions: Sequence[DisklessPrunePartitionResult] = wire([DisklessPrunePartitionResult], default=())


@message
class DisklessPruneRequest(Message):
    API_KEY = 11653
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    topics: Sequence[DisklessPruneTopic] = wire([DisklessPruneTopic], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessPruneResponse(Message):
    API_KEY = 11653
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    topics: Sequence[DisklessPruneTopicResult] = wire([DisklessPruneTopicResult], default=())


REQUEST = DisklessPruneRequest
RESPONSE = DisklessPruneResponse
