"""FindInChunk: find the first record of an inactive chunk at or after a time."""

from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class FindInChunkRequest(Message):
    API_KEY = 11144
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    start_offset: int = wire("int64")
    """The first offset of the chunk, which identifies the chunk."""
    timestamp: int = wire("int64")
    """The searched time, in milliseconds since the epoch."""
    from_offset: int = wire("int64", default=-1)
    """Records before this offset are skipped. The value -1 means the beginning of the chunk."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class FindInChunkResponse(Message):
    API_KEY = 11144
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    offset: int = wire("int64", default=-1)
    """The offset of the record. It is -1 if no record of the chunk is at or after that time."""
    timestamp: int = wire("int64", default=-1)
    leader_epoch: int = wire("int32", default=-1)


REQUEST = FindInChunkRequest
RESPONSE = FindInChunkResponse
