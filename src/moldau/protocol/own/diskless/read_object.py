"""DisklessReadObject: read a range of a WAL object for another broker of the rack."""

from moldau.protocol.schema import Message, Records, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessReadObjectRequest(Message):
    API_KEY = 11659
    VERSIONS = "0"
    FLEXIBLE = "0+"
    object_key: str = wire("string")
    byte_offset: int = wire("int64")
    byte_size: int = wire("int32")
    timeout_ms: int = wire("int32", default=60_000)
    """Time for which the caller waits for the answer."""


@message
class DisklessReadObjectResponse(Message):
    API_KEY = 11659
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    content: Records = wire("records", nullable="0+", default=None)
    """The bytes of the range; null if there is an error."""


REQUEST = DisklessReadObjectRequest
RESPONSE = DisklessReadObjectResponse
