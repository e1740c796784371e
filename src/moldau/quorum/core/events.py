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
    """A peer has sent a request. The core answers it by one reply effect with the same ``request_id``. This
    effect may come later."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A peer has answered the request with this ``correlation_id``."""

    correlation_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request got no valid answer. The connection was lost, the request timed out, or the answer could not
    be read."""

    correlation_id: int


@dataclass(frozen=True, slots=True)
class AppendRequested:
    """The state machine appends records. The driver chooses ``append_id``."""

    append_id: int
    epoch: int
    """The epoch in which the records were decided. In any other epoch the records are refused."""


@dataclass(frozen=True, slots=True)
class LogAppended:
    """An append effect was carried out. The log view now contains its records."""


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """A truncate effect was carried out. The log view no longer contains the removed records."""


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """All records below ``offset`` are durable."""

    offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """A downloaded snapshot is durable, and the log begins at the end of this snapshot."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """The leadership of ``epoch`` must end, because the state machine has failed or the node stops
    cleanly."""

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
