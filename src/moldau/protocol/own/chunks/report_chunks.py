"""ReportChunks: a broker reports to the controller which inactive chunks it has copied, moved or lost."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import ZERO_UUID, Message, message, wire
from moldau.runtime import ErrorCode


@message
class ReportedChunk(Message):
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    start_offset: int = wire("int64")
    is_held: bool = wire("bool")
    """True if the broker now has the whole chunk on its disk. False if the broker has lost the chunk."""
    directory_id: UUID = wire("uuid", default=ZERO_UUID)
    """The log directory of the chunk, if the broker has it."""
    chunk_epoch: int = wire("int32", default=-1, tag=0)
    """The epoch of the chunk in the broker's metadata. The controller refuses the report when its own epoch
    differs, because the chunk may have been moved away and back since. -1 is not compared."""


@message
class ReportedChunkResult(Message):
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    start_offset: int = wire("int64")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class ReportChunksRequest(Message):
    API_KEY = 11145
    VERSIONS = "0"
    FLEXIBLE = "0+"
    broker_id: int = wire("int32", default=-1)
    broker_epoch: int = wire("int64", default=-1)
    chunks: Sequence[ReportedChunk] = wire([ReportedChunk], default=())
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class ReportChunksResponse(Message):
    API_KEY = 11145
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """STALE_BROKER_EPOCH means that a later process of the broker has registered."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    chunks: Sequence[ReportedChunkResult] = wire([ReportedChunkResult], default=())


REQUEST = ReportChunksRequest
RESPONSE = ReportChunksResponse
