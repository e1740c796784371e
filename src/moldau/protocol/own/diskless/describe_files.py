"""DisklessDescribeFiles: get the state of files at a coordinator (KIP-1164's API 100)."""

from collections.abc import Sequence

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessDescribeFileEntry(Message):
    object_key: str = wire("string")


@message
class DisklessDescribeFileResult(Message):
    object_key: str = wire("string")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    has_live_batches: bool = wire("bool", default=False)
    is_known: bool = wire("bool", default=False)
    """Moldau's own field, like all fields after it: whether the coordinator knows the object."""
    is_closed: bool = wire("bool", default=False)
    file_size: int = wire("int64", default=-1)
    used_bytes: int = wire("int64", default=0)
    live_batches: int = wire("int32", default=0)
    created_ms: int = wire("int64", default=-1)
    is_owned: bool = wire("bool", default=False)
    next_owner_ids: Sequence[int] = wire(["int32"], default=())
    unused_since_ms: int = wire("int64", default=-1)


@message
class DisklessDescribeFilesRequest(Message):
    API_KEY = 11647
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    files: Sequence[DisklessDescribeFileEntry] | None = wire(
        [DisklessDescribeFileEntry], nullable="0+", default=()
    )
    """The files to describe. The value null is Moldau's own. With null, tools request the files after
    ``after_key``."""
    after_key: str = wire("string", default="")
    limit: int = wire("int32", default=1000)
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessDescribeFilesResponse(Message):
    API_KEY = 11647
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    files: Sequence[DisklessDescribeFileResult] = wire([DisklessDescribeFileResult], default=())


REQUEST = DisklessDescribeFilesRequest
RESPONSE = DisklessDescribeFilesResponse
