"""DisklessHandOver: the owner of a file hands it over to the next coordinator that has batches in the file.
KIP-1164 describes this step without an API."""

from collections.abc import Sequence

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessHandedOverFile(Message):
    object_key: str = wire("string")
    file_size: int = wire("int64")
    created_ms: int = wire("int64")
    remaining_owner_ids: Sequence[int] = wire(["int32"], default=())
    """The remaining owners of the file. The first of them is the receiver of this request."""


@message
class DisklessHandedOverResult(Message):
    object_key: str = wire("string")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)


@message
class DisklessHandOverRequest(Message):
    API_KEY = 11652
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    files: Sequence[DisklessHandedOverFile] = wire([DisklessHandedOverFile], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessHandOverResponse(Message):
    API_KEY = 11652
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    files: Sequence[DisklessHandedOverResult] = wire([DisklessHandedOverResult], default=())


REQUEST = DisklessHandOverRequest
RESPONSE = DisklessHandOverResponse
