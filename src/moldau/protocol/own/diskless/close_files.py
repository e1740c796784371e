"""DisklessCloseFiles: a coordinator records that it will never commit the named objects, so that they may be
deleted as orphans."""

from collections.abc import Sequence

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessClosedFile(Message):
    object_key: str = wire("string")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class DisklessCloseFilesRequest(Message):
    API_KEY = 11651
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    object_keys: Sequence[str] = wire(["string"], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessCloseFilesResponse(Message):
    API_KEY = 11651
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    files: Sequence[DisklessClosedFile] = wire([DisklessClosedFile], default=())


REQUEST = DisklessCloseFilesRequest
RESPONSE = DisklessCloseFilesResponse
