"""TieredEventOffsets: get the offsets of a partition of ``__remote_log_metadata`` from its leader."""

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class TieredEventOffsetsRequest(Message):
    API_KEY = 11663
    VERSIONS = "0"
    FLEXIBLE = "0+"
    metadata_partition: int = wire("int32")
    metadata_leader_epoch: int = wire("int32")
    """The leader epoch of the metadata partition, as the sender knows it. The receiver must be the leader of
    the metadata partition in this epoch."""
    epoch: int = wire("int32", default=-1)
    """A leader epoch whose end offset is requested. It is -1 if no end offset is requested."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time in ms for which the caller waits for the answer."""


@message
class TieredEventOffsetsResponse(Message):
    API_KEY = 11663
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    start_offset: int = wire("int64", default=-1)
    end_offset: int = wire("int64", default=-1)
    """The high watermark of the metadata partition."""
    log_end_offset: int = wire("int64", default=-1)
    epoch_end_offset: int = wire("int64", default=-1)
    """End of the requested epoch. It is -1 when the log does not have the epoch."""


REQUEST = TieredEventOffsetsRequest
RESPONSE = TieredEventOffsetsResponse
