"""DisklessOldestFile: get the creation time of a coordinator's oldest file. KIP-1164's orphan scan
needs this call, but the KIP defines no API for it."""

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessOldestFileRequest(Message):
    API_KEY = 11650
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessOldestFileResponse(Message):
    API_KEY = 11650
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    created_ms: int = wire("int64", default=-1)
    """The creation time of the oldest file. It is -1 when the coordinator has no file."""


REQUEST = DisklessOldestFileRequest
RESPONSE = DisklessOldestFileResponse
