"""SaveLogs: the leader of partitions stores the committed end of their logs in the object store.

The module has the messages of the call and its declaration.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol
from uuid import UUID

from moldau.backup.cut_format import LogPiece, ObjectPart
from moldau.backup.logs_to_save import LogsToSave, LogToSave, SavedLog
from moldau.network.own_calls import BrokerCall, Fields
from moldau.protocol.own.rights import Right
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode

__all__ = ["CALLS", "REQUEST", "RESPONSE", "SAVE_LOGS", "LogSaving", "LogToSave", "LogsToSave", "SavedLog"]


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
    """The end offset of the partition's records in the last complete cut; -1 when no cut contains the
    partition."""
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
    """Whether the new parts replace all saved parts of the log. This is the case if the leader's log does not
    continue the saved parts.
    """
    pieces: Sequence[SavedPiece] = wire([SavedPiece], default=())


@message
class SaveLogsRequest(Message):
    API_KEY = 11680
    VERSIONS = "0"
    FLEXIBLE = "0+"
    object_key: str = wire("string")
    """The prefix of the keys of the objects that are stored."""
    rounds: int = wire("int32")
    """Number of times that the sender has saved all logs before this call. A broker that wants to delete data
    waits until this number has increased.
    """
    logs: Sequence[SaveLogsLog] = wire([SaveLogsLog], default=())
    """The partitions to save. The array is empty for a broker that leads none of the logs. Such a broker only
    receives ``rounds``."""
    maker: str = wire("string", default="", tag=1)
    """A name that only this sender has. When the sender begins again to count its saves from 0, the sender
    takes another name."""
    timeout_ms: int = wire("int32", default=60_000, tag=0)
    """Time for which the caller waits for the response."""


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


class LogSaving(Protocol):
    """Saves logs that this broker leads."""

    async def save_logs(self, wanted: LogsToSave) -> Sequence[SavedLog]:
        """Store the committed records of every log, beginning at ``from_offset``.

        Raises ``KafkaError``: NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH if this broker does not lead a
        log in the given epoch, KAFKA_STORAGE_ERROR when the store fails.
        """
        ...


async def _serve(saving: LogSaving, wanted: LogsToSave) -> Sequence[SavedLog]:
    return await saving.save_logs(wanted)


def _request(wanted: LogsToSave, version: int) -> Fields:
    logs = [
        SaveLogsLog(
            topic_id=log.log_id.topic_id,
            partition_index=log.log_id.partition,
            leader_epoch=log.leader_epoch,
            saved_end_offset=log.saved_end_offset,
            saved_epoch=log.saved_epoch,
            from_offset=log.from_offset,
        )
        for log in wanted.logs
    ]
    return {
        "object_key": wanted.object_key,
        "rounds": wanted.rounds,
        "maker": wanted.maker,
        "logs": logs,
    }


def _arguments(request: Any) -> LogsToSave:
    return LogsToSave(
        request.object_key,
        request.rounds,
        [
            LogToSave(
                PartitionKey(log.topic_id, log.partition_index),
                log.leader_epoch,
                log.saved_end_offset,
                log.saved_epoch,
                log.from_offset,
            )
            for log in request.logs
        ],
        request.maker,
    )


def _response(saved: Sequence[SavedLog], version: int) -> Fields:
    logs = [
        SaveLogsResult(
            topic_id=log.log_id.topic_id,
            partition_index=log.log_id.partition,
            begins_anew=log.begins_anew,
            pieces=[
                SavedPiece(
                    **each.part._asdict(),
                    base_offset=each.base_offset,
                    end_offset=each.end_offset,
                    epoch=each.epoch,
                    is_snapshot=each.is_snapshot,
                )
                for each in log.pieces
            ],
        )
        for log in saved
    ]
    return {"logs": logs}


def _result(response: Any) -> Sequence[SavedLog]:
    return [
        SavedLog(
            PartitionKey(log.topic_id, log.partition_index),
            log.begins_anew,
            [
                LogPiece(
                    ObjectPart(each.object_key, each.byte_offset, each.size_bytes, each.crc),
                    each.base_offset,
                    each.end_offset,
                    each.epoch,
                    each.is_snapshot,
                )
                for each in log.pieces
            ],
        )
        for log in response.logs
    ]


SAVE_LOGS: Final[BrokerCall[LogSaving, LogsToSave, Sequence[SavedLog]]] = BrokerCall(
    request=SaveLogsRequest,
    response=SaveLogsResponse,
    right=Right.CLUSTER_ACTION,
    serve=_serve,
    request_fields=_request,
    arguments=_arguments,
    response_fields=_response,
    result=_result,
)

CALLS: Final[Mapping[int, BrokerCall[LogSaving, Any, Any]]] = MappingProxyType({SAVE_LOGS.api_key: SAVE_LOGS})
REQUEST = SaveLogsRequest
RESPONSE = SaveLogsResponse
