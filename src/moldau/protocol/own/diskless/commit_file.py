"""DisklessCommitFile: commit the batches of an uploaded object at a coordinator (KIP-1164's API 95).

Version 0 is the KIP's version, with a structure for each batch. It also has the fields that fencing needs.
Version 1 is Moldau's own. Its batches are columns in a single byte string, in the form of
``moldau.coordinators.diskless.codecs.batch_columns``. Version 1 needs about 12 bytes for each batch, and
version 0 needs 85 bytes. Version 2 adds the guards of transactional batches, and version 3 adds the order of
a broker's commits.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class DisklessCommitBatch(Message):
    magic: int = wire("int8", default=2)
    request_id: int = wire("int32", default=0)
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    byte_offset: int = wire("int32")
    size: int = wire("int32")
    base_offset: int = wire("int64", default=0)
    last_offset: int = wire("int64")
    batch_max_timestamp: int = wire("int64")
    timestamp_type: int = wire("int8", default=0)
    producer_id: int = wire("int64", default=-1)
    producer_epoch: int = wire("int16", default=-1)
    base_sequence: int = wire("int32", default=-1)
    last_sequence: int = wire("int32", default=-1)
    is_transactional: bool = wire("bool", default=False)
    """Moldau's own field: whether the batch belongs to a transaction."""


@message
class DisklessCommitBatchResult(Message):
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    assigned_base_offset: int = wire("int64", default=-1)
    log_append_time: int = wire("int64", default=-1)
    log_start_offset: int = wire("int64", default=-1)
    is_duplicate: bool = wire("bool", default=False)


@message
class DisklessCommitFileRequest(Message):
    API_KEY = 11642
    VERSIONS = "0-3"
    FLEXIBLE = "0+"
    coordinator_id: int = wire("int32", default=0)
    """Moldau's own field: the partition of ``__diskless_metadata`` whose coordinator must answer. A broker
    may lead several of these partitions."""
    object_key: str = wire("string")
    object_format: int = wire("int8", default=1)
    file_size: int = wire("int64")
    created_ms: int = wire("int64", default=-1)
    """Moldau's own field: the time when the uploader began the object. A file that is too old is refused."""
    uploader_broker_id: int = wire("int32", default=-1)
    """Moldau's own field: the broker that uploaded the object."""
    owner_ids: Sequence[int] = wire(["int32"], default=())
    batches: Sequence[DisklessCommitBatch] = wire([DisklessCommitBatch], "0", default=())
    columns: bytes = wire("bytes", "1+", default=b"")
    timeout_ms: int = wire("int32", default=60000)
    broker_epoch: int = wire("int64", "3+", default=-1)
    commit_number: int = wire("int64", "3+", default=-1)
    """Running number of this commit. The uploader counts its commits at this coordinator. The number is -1
    for a commit without an order."""
    open_from: int = wire("int64", "3+", default=-1)
    """The lowest number of a commit whose outcome the uploader does not know yet."""


@message
class DisklessCommitFileResponse(Message):
    API_KEY = 11642
    VERSIONS = "0-3"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """Moldau's own field: the error of the whole call."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    batches: Sequence[DisklessCommitBatchResult] = wire([DisklessCommitBatchResult], "0", default=())
    columns: bytes = wire("bytes", "1+", default=b"")
    backlog_bytes: int = wire("int64", tag=0, tagged="0+", default=-1)
    """Moldau's own field: the WAL backlog of the coordinator; -1 if it was not measured.
    Older nodes ignore it."""


REQUEST = DisklessCommitFileRequest
RESPONSE = DisklessCommitFileResponse
