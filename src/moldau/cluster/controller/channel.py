"""The channel from a broker to the active controller: in the same process, or over the network."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

from moldau.network.context import Principal, RequestContext
from moldau.protocol.schema import Message

DEADLINE_MAX_S: Final = 300.0
"""Maximum duration of a request in seconds, whatever its caller allows."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client on whose behalf a request is sent to the controller."""

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
    """The time of the loop, in seconds, until which a request's sender waits, by its TimeoutMs.

    ``None`` where the request has none, and for 0 or less.
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
        """The response that belongs to ``request``, once its decision is committed.

        ``caller`` is the requesting client; None for a request of the node itself. A request is not started
        after its ``deadline`` (the loop's time, in seconds).

        A request that is refused as a whole is answered, not raised, where its response has an error code.
        Raises ``KafkaError(not_controller)``, which is retriable, while no controller is known or when the
        outcome is unknown because the controller lost its leadership, and ``request_timed_out`` when the
        deadline passed first: then the outcome is unknown, too.
        """
        ...
