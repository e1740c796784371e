"""DisklessCommitParts: one request with the parts of a file for several coordinators. One broker leads these
coordinators.

The coordinator of a part commits it as with DisklessCommitFile. Each part has its own error.
"""

from collections.abc import Sequence

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessCommitPart(Message):
    coordinator_id: int = wire("int32")
    columns: bytes = wire("bytes")
    """The batches, in the form of ``moldau.coordinators.diskless.codecs.batch_columns``."""
    broker_epoch: int = wire("int64", default=-1)
    commit_number: int = wire("int64", default=-1)
    open_from: int = wire("int64", default=-1)


@message
class DisklessCommitPartResult(Message):
    coordinator_id: int = wire("int32")
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    columns: bytes = wire("bytes", default=b"")
    backlog_bytes: int = wire("int64", tag=0, tagged="0+", default=-1)
    """The WAL backlog of the coordinator; -1 if it was not measured. Older nodes ignore it."""


@message
class DisklessCommitPartsRequest(Message):
    API_KEY = 11673
    VERSIONS = "0"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """The coordinator of the first part."""
    object_key: str = wire("string")
    object_format: int = wire("int8", default=1)
    file_size: int = wire("int64")
    created_ms: int = wire("int64")
    uploader_broker_id: int = wire("int32")
    owner_ids: Sequence[int] = wire(["int32"], default=())
    parts: Sequence[DisklessCommitPart] = wire([DisklessCommitPart], default=())
    timeout_ms: int = wire("int32", default=60000)


@message
class DisklessCommitPartsResponse(Message):
    API_KEY = 11673
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    parts: Sequence[DisklessCommitPartResult] = wire([DisklessCommitPartResult], default=())


REQUEST = DisklessCommitPartsRequest
RESPONSE = DisklessCommitPartsResponse
