"""ReadChunk: read records of an inactive chunk from a broker that has the chunk."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, Records, message, wire
from moldau.runtime import ErrorCode


@message
class ReadChunkAborted(Message):
    """An aborted transaction with records in the chunk."""

    producer_id: int = wire("int64")
    first_offset: int = wire("int64")


@message
class ReadChunkRequest(Message):
    API_KEY = 11143
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    start_offset: int = wire("int64")
    """The first offset of the chunk, which identifies the chunk."""
    fetch_offset: int = wire("int64")
    max_bytes: int = wire("int32")
    min_one_batch: bool = wire("bool", default=True)
    """Whether a first batch that is larger than ``max_bytes`` is returned whole."""
    end_offset: int = wire("int64", default=-1)
    """Batches at or after this offset are not returned. The value -1 means that the chunk's end is the only
    limit."""
    with_aborted: bool = wire("bool", default=False)
    """Whether aborted transactions are returned, for a reader of committed records."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class ReadChunkResponse(Message):
    API_KEY = 11143
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    aborted: Sequence[ReadChunkAborted] = wire([ReadChunkAborted], default=())
    records: Records = wire("records", nullable="0+", default=None)
    next_offset: int = wire("int64", default=-1)
    """The offset after the returned records."""
    open_offset: int = wire("int64", default=-1)
    """The first offset of a transaction that is open at the end of the chunk. It is -1 if there is no such
    transaction."""


REQUEST = ReadChunkRequest
RESPONSE = ReadChunkResponse
