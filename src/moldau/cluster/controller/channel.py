"""The channel from a broker to the active controller: in the same process, or over the network."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

from moldau.network.context import Principal, RequestContext
from moldau.protocol.schema import Message

DEADLINE_MAX_S: Final = 300.0
"""Maximum duration of a request in seconds. A caller cannot ask for a longer duration."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client whose request is sent to the controller."""

    principal: Principal
    client_id: str | None
    host: str

    @classmethod
    def of(cls, context: RequestContext) -> "Caller":
        """The client that sent a request."""
        return cls(context.principal, context.client_id, context.connection.peer_host)

    def __str__(self) -> str:
        return f"{self.principal} (client {self.client_id!r} at {self.host or 'an unknown host'})"


def deadline_of(context: RequestContext, request: Message) -> float | None:
    """Return the deadline of a request, in seconds of the event loop's clock. It is computed from the
    request's TimeoutMs.

    The deadline is ``None`` if the request has no TimeoutMs, or if TimeoutMs is 0 or less.
    """
    timeout_ms: int = getattr(request, "timeout_ms", 0)
    if timeout_ms <= 0:
        return None
    return context.received_at + min(timeout_ms / 1000, DEADLINE_MAX_S)


class ControllerChannel(Protocol):
    """Sends requests to the active controller."""

    async def send(
        self, request: Message, caller: Caller | None = None, deadline: float | None = None
    ) -> Any:
        """Send ``request`` and return its response. The controller sends the response when its decision is
        committed.

        ``caller`` is the requesting client. It is ``None`` for a request of the node itself. A request is not
        started after its ``deadline`` (in seconds of the event loop's clock).

        If the controller refuses a whole request, the error code is in the response and no exception is
        raised, provided that the response has a field for it. Raises ``KafkaError(not_controller)``, which is
        retriable, while no controller is known, and when the controller lost its leadership. Raises
        ``request_timed_out`` when the deadline passed before the response. After a lost leadership or a
        passed deadline, it is unknown whether the change was made.
        """
        ...
