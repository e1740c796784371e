"""HandOverChunk: the leader sends the state at the border to a broker of the next active chunk."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class HandedOverEpoch(Message):
    """The first offset of a leader epoch."""

    leader_epoch: int = wire("int32")
    start_offset: int = wire("int64")


@message
class HandOverChunkRequest(Message):
    API_KEY = 11142
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    leader_id: int = wire("int32")
    leader_epoch: int = wire("int32")
    """The epoch in which the sender leads the partition."""
    start_offset: int = wire("int64")
    """The border: the first offset of the next active chunk."""
    log_start_offset: int = wire("int64")
    """The first offset of the partition."""
    producer_snapshot: bytes = wire("bytes", default=b"")
    """Idempotent producers and open transactions at the border, in the format of Kafka's snapshots. A
    producer has an entry for each of its last batches."""
    leader_epochs: Sequence[HandedOverEpoch] = wire([HandedOverEpoch], default=())
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class HandOverChunkResponse(Message):
    """A response without an error means that the state is on the receiver's disk."""

    API_KEY = 11142
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


REQUEST = HandOverChunkRequest
RESPONSE = HandOverChunkResponse
