"""The arguments and the result of SaveLogs: the logs that a broker saves, and the stored pieces. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.backup.cut_format import LogPiece
from moldau.protocol.partitions import PartitionKey

__all__ = ["LogToSave", "LogsToSave", "SavedLog"]


class LogToSave(NamedTuple):
    """A log that must be saved, and the end offset up to which the last complete cut contains the log. The
    fields are the same as in :class:`SaveLogsLog`.
    """

    log_id: PartitionKey
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
    """The logs to save; empty for a broker that leads none of the logs. A request without logs only informs
    the broker that a new round begins."""
    maker: str = ""
    """A unique name of the caller. The caller takes a new name whenever it counts its rounds from 0 again."""


class SavedLog(NamedTuple):
    """The pieces that were stored for a log. ``pieces`` is empty when the log has no new records."""

    log_id: PartitionKey
    begins_anew: bool
    pieces: Sequence[LogPiece]
