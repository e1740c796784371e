"""DropChunks: the leader of a partition reports the first offset of the partition's log to the controller.

The controller removes the inactive chunks before that offset.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DropChunksPartition(Message):
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    log_start_offset: int = wire("int64")
    """The first offset of the partition. Chunks that end before it are removed."""


@message
class DropChunksResult(Message):
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class DropChunksRequest(Message):
    API_KEY = 11146
    VERSIONS = "0"
    FLEXIBLE = "0+"
    broker_id: int = wire("int32", default=-1)
    broker_epoch: int = wire("int64", default=-1)
    partitions: Sequence[DropChunksPartition] = wire([DropChunksPartition], default=())
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class DropChunksResponse(Message):
    API_KEY = 11146
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """STALE_BROKER_EPOCH means that a later process of the broker has registered."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    partitions: Sequence[DropChunksResult] = wire([DropChunksResult], default=())


REQUEST = DropChunksRequest
RESPONSE = DropChunksResponse
