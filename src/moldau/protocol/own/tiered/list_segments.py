"""TieredListSegments: list the remote segments of a partition, for tools and for engines that read them."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import ZERO_UUID, Message, message, wire
from moldau.runtime import ErrorCode


@message
class TieredSegmentEpoch(Message):
    epoch: int = wire("int32")
    start_offset: int = wire("int64")


@message
class TieredSegment(Message):
    """The fields are the same as in ``RemoteLogSegmentMetadataRecord``."""

    id: UUID = wire("uuid")
    start_offset: int = wire("int64")
    end_offset: int = wire("int64")
    state: int = wire("int8")
    size_bytes: int = wire("int32")
    max_timestamp_ms: int = wire("int64")
    event_timestamp_ms: int = wire("int64")
    broker_id: int = wire("int32")
    txn_index_empty: bool = wire("bool")
    leader_epochs: Sequence[TieredSegmentEpoch] = wire([TieredSegmentEpoch], default=())
    custom_metadata: bytes | None = wire("bytes", nullable="0+", default=None)
    """The custom metadata, with which the storage manager finds the segment's objects; null if there are
    none."""


@message
class TieredListSegmentsRequest(Message):
    API_KEY = 11661
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic: str = wire("string")
    partition_index: int = wire("int32")
    skip: int = wire("int32", default=0)
    """Number of segments that are skipped, in the order of their start offsets, because earlier responses
    contained them."""
    limit: int = wire("int32", default=1000)
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time in ms for which the caller waits for the answer."""


@message
class TieredListSegmentsResponse(Message):
    API_KEY = 11661
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    segments: Sequence[TieredSegment] = wire([TieredSegment], default=())


REQUEST = TieredListSegmentsRequest
RESPONSE = TieredListSegmentsResponse
