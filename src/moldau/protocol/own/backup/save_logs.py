"""SaveLogs: the leader of partitions stores the committed end of their logs in the object store."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode


@message
class SavedPiece(Message):
    object_key: str = wire("string")
    byte_offset: int = wire("int64")
    """Position of this part of the log in the object, in bytes."""
    size_bytes: int = wire("int32")
    crc: int = wire("uint32")
    """CRC-32C of this part of the log."""
    base_offset: int = wire("int64")
    """Offset of the first record of this part. For a snapshot, it is the position of the part in the
    snapshot's file."""
    end_offset: int = wire("int64")
    """Offset after the last record of this part. For a snapshot, it is the end offset of the snapshot."""
    epoch: int = wire("int32")
    """Leader epoch of the last record of this part. For a snapshot, it is the epoch of the snapshot."""
    is_snapshot: bool = wire("bool", default=False)


@message
class SaveLogsLog(Message):
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    leader_epoch: int = wire("int32")
    """The epoch in which the receiver leads the partition, according to the sender."""
    saved_end_offset: int = wire("int64", default=-1)
    """The end of the partition in the last complete cut. It is -1 when no cut contains the partition."""
    saved_epoch: int = wire("int32", default=-1)
    """Leader epoch of the last saved record."""
    from_offset: int = wire("int64", default=-1)
    """The offset at which the save begins. It is ``saved_end_offset`` or a lower offset. If it is lower, the
    new parts replace the saved parts at or after this offset. The value -1 means that the whole log is saved.
    """


@message
class SaveLogsResult(Message):
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    begins_anew: bool = wire("bool", default=False)
    """Whether the new parts replace all earlier parts of the log, because the log does not continue the
    earlier parts."""
    pieces: Sequence[SavedPiece] = wire([SavedPiece], default=())


@message
class SaveLogsRequest(Message):
    API_KEY = 11680
    VERSIONS = "0"
    FLEXIBLE = "0+"
    object_key: str = wire("string")
    """The prefix of the keys of the objects that are stored."""
    rounds: int = wire("int32")
    """Number of times that the sender has saved all logs before this call. Deletions depend on this number.
    """
    logs: Sequence[SaveLogsLog] = wire([SaveLogsLog], default=())
    """The partitions to save. It is empty for a broker that leads none of the logs. Such a broker only
    receives ``rounds``."""
    maker: str = wire("string", default="", tag=1)
    """A name that only this sender has. When the sender starts to count its saves from the beginning again,
    it takes another name."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the answer."""


@message
class SaveLogsResponse(Message):
    API_KEY = 11680
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    """If one log has an error, the whole call fails, because a cut must contain all logs."""
    error_message: str | None = wire("string", nullable="0+", default=None)
    logs: Sequence[SaveLogsResult] = wire([SaveLogsResult], default=())


REQUEST = SaveLogsRequest
RESPONSE = SaveLogsResponse
