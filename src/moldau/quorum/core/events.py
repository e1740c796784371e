"""Events for the core."""

from dataclasses import dataclass
from typing import TypeAlias

from moldau.quorum.core.messages import Request, Response
from moldau.quorum.core.offsets import OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: :attr:`RaftCore.next_deadline_ms` is reached."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A request of a peer; answered once by a reply effect with the same ``request_id``, possibly later."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A peer answered the request that was sent with this ``correlation_id``."""

    correlation_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request that was sent got no answer: connection lost, timed out, or not understood."""

    correlation_id: int


@dataclass(frozen=True, slots=True)
class AppendRequested:
    """The state machine above appends records. ``append_id`` is the driver's own handle."""

    append_id: int
    epoch: int
    """The epoch in which the records were decided; they are refused in any other."""


@dataclass(frozen=True, slots=True)
class LogAppended:
    """An append effect was carried out; the log view shows it."""


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """A truncate effect was carried out; the log view shows it."""


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """Everything below ``offset`` is durable."""

    offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """A downloaded snapshot is durable and the log begins at its end."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """The state machine above, or a clean stop, resigns the leadership of ``epoch``."""

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
