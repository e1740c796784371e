"""StoreChunkSegment: a broker that has an inactive chunk stores one of its segments in the remote tier.

The leader of the partition sends the request twice for each segment. First, without a segment id, it
requests the description of the segment. Then it records the start of the copy in the metadata of the tier,
and requests the copy.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode

NO_SEGMENT = UUID(int=0)
"""The segment id in a request that only asks for a description of the segment."""


@message
class StoredSegmentEpoch(Message):
    """A leader epoch with records in the segment, and its first offset there."""

    leader_epoch: int = wire("int32")
    start_offset: int = wire("int64")


@message
class StoreChunkSegmentRequest(Message):
    API_KEY = 11148
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    start_offset: int = wire("int64")
    """The first offset of the chunk, which identifies the chunk."""
    segment_offset: int = wire("int64")
    """An offset in the segment."""
    segment_id: UUID = wire("uuid", default=NO_SEGMENT)
    """The id of the segment in the remote tier. If it is zero, the segment is only described."""
    leader_id: int = wire("int32", default=-1)
    """The broker that has recorded the start of the copy."""
    event_timestamp: int = wire("int64", default=-1)
    """The time at which the start of the copy was recorded."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class StoreChunkSegmentResponse(Message):
    API_KEY = 11148
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    base_offset: int = wire("int64", default=-1)
    end_offset: int = wire("int64", default=-1)
    """The last offset of the segment."""
    max_timestamp: int = wire("int64", default=-1)
    size_bytes: int = wire("int64", default=-1)
    has_aborted: bool = wire("bool", default=False)
    """Whether the segment contains markers of aborted transactions."""
    leader_epochs: Sequence[StoredSegmentEpoch] = wire([StoredSegmentEpoch], default=())
    custom_metadata: bytes | None = wire("bytes", nullable="0+", default=None)
    """The custom metadata that the storage manager returned after it stored the segment."""


REQUEST = StoreChunkSegmentRequest
RESPONSE = StoreChunkSegmentResponse
