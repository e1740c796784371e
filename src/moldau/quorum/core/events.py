"""The events that the core accepts."""

from dataclasses import dataclass
from typing import TypeAlias

from moldau.quorum.core.messages import Request, Response
from moldau.quorum.core.offsets import OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: :attr:`RaftCore.next_deadline_ms` has been reached."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer has sent a request. One reply effect with the same ``request_id`` answers it, possibly later."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A peer has answered the request that was sent with this ``correlation_id``."""

    correlation_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request got no answer. The connection was lost, the time was over, or the answer was not
    understood."""

    correlation_id: int


@dataclass(frozen=True, slots=True)
class AppendRequested:
    """The state machine appends records. ``append_id`` is the driver's own identifier."""

    append_id: int
    epoch: int
    """The epoch in which the records were decided. They are refused in any other epoch."""


@dataclass(frozen=True, slots=True)
class LogAppended:
    """An append effect was carried out, and the log view contains its records."""


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """A truncate effect was carried out, and the log view does not contain the removed records any more."""


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """All records below ``offset`` are durable."""

    offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """A downloaded snapshot is durable and the log begins at its end."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """The leadership of ``epoch`` must end, because the state machine or a clean stop requests it."""

    epoch: int


Event: TypeAlias = (
    Tick
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | AppendRequested
    | LogAppended
    | LogTruncated
    | LogFlushed
    | SnapshotInstalled
    | ResignRequested
)
