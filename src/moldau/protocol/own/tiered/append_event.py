"""TieredAppendEvent: a leader sends an event about a remote segment to the leader of the metadata
partition."""

from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class TieredAppendEventRequest(Message):
    API_KEY = 11662
    VERSIONS = "0"
    FLEXIBLE = "0+"
    metadata_partition: int = wire("int32")
    metadata_leader_epoch: int = wire("int32")
    """The leader epoch of the metadata partition, as the sender knows it. The receiver must be the leader of
    the metadata partition in this epoch."""
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    """The epoch in which the sender leads the event's partition."""
    event: bytes = wire("bytes")
    """The event, in the form of the value of a record of ``__remote_log_metadata``."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time in ms for which the caller waits for the answer."""


@message
class TieredAppendEventResponse(Message):
    API_KEY = 11662
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    offset: int = wire("int64", default=-1)


REQUEST = TieredAppendEventRequest
RESPONSE = TieredAppendEventResponse
