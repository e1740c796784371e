"""The call to a broker to save logs that it leads (API 11680)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from moldau.backup.cut_format import LogId, LogPiece, ObjectPart
from moldau.network.own_calls import BrokerCall, Fields
from moldau.protocol.own.backup import save_logs as wire
from moldau.protocol.own.rights import Right

__all__ = ["CALLS", "SAVE_LOGS", "LogSaving", "LogToSave", "LogsToSave", "SavedLog"]


class LogToSave(NamedTuple):
    """A log that must be saved, and the end of its part that is in the last complete cut. The request has the
    same fields."""

    log_id: LogId
    leader_epoch: int
    saved_end_offset: int = -1
    saved_epoch: int = -1
    from_offset: int = -1


class LogsToSave(NamedTuple):
    """Logs that one broker leads, and a prefix for the keys of the objects that the broker stores."""

    object_key: str
    rounds: int
    """The number of times that the caller has already saved all logs."""
    logs: Sequence[LogToSave]
    """Empty for a broker that leads none of the logs. Such a request only informs the broker that a new round
    begins."""
    maker: str = ""
    """A unique name of the caller. The caller takes a new name whenever it counts its rounds from 0 again."""


class SavedLog(NamedTuple):
    """The pieces that were stored for a log. Empty when the log has no new records."""

    log_id: LogId
    begins_anew: bool
    pieces: Sequence[LogPiece]


class LogSaving(Protocol):
    """Saves logs that this broker leads."""

    async def save_logs(self, wanted: LogsToSave) -> Sequence[SavedLog]:
        """Store the committed records after ``from_offset`` of every log.

        Raises ``KafkaError``: NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR when the
        store fails.
        """
        ...


async def _serve(saving: LogSaving, wanted: LogsToSave) -> Sequence[SavedLog]:
    return await saving.save_logs(wanted)


def _request(wanted: LogsToSave, version: int) -> Fields:
    logs = [
        wire.SaveLogsLog(
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
                LogId(log.topic_id, log.partition_index),
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
        wire.SaveLogsResult(
            topic_id=log.log_id.topic_id,
            partition_index=log.log_id.partition,
            begins_anew=log.begins_anew,
            pieces=[
                wire.SavedPiece(
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
            LogId(log.topic_id, log.partition_index),
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
    request=wire.REQUEST,
    response=wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_serve,
    request_fields=_request,
    arguments=_arguments,
    response_fields=_response,
    result=_result,
)

CALLS: Final[Mapping[int, BrokerCall[LogSaving, Any, Any]]] = MappingProxyType({SAVE_LOGS.api_key: SAVE_LOGS})
