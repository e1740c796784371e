"""The context of a request, and the contract between the network and the server.

A :data:`DispatchRequest` is called synchronously, once per request, in the order of the requests of a
connection. Its response may be ready later. The network sends the responses of a connection in request order.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from moldau.runtime.buffers import Buffer

Buffers: TypeAlias = list[Buffer]
"""A response body in parts. The network adds the length and the header, and does not join large parts.

Parts must not change until they are sent, and must not be views of the request.
"""

LaterAnswer: TypeAlias = "asyncio.Future[Buffers] | asyncio.Future[Buffers | None]"

Answer: TypeAlias = "Buffers | LaterAnswer | None"
"""The answer of a handler: a body, a future of a body, or ``None`` when the protocol has no response
(acks=0)."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated identity of the client that has opened a connection."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


class ConnectionControl(Protocol):
    """Operations that a handler may call on the connection of its request."""

    def mute(self, seconds: float) -> None:
        """Stop reading and dispatching for ``seconds`` (KIP-219 throttling)."""
        ...

    def hold(self) -> None:
        """Stop reading and dispatching until :meth:`release`. Calls may be nested."""
        ...

    def release(self) -> None:
        """End a :meth:`hold`. Does nothing when the connection is closed."""
        ...

    def yield_turn(self) -> None:
        """Dispatch no more requests in this iteration of the event loop, because the request was
        expensive."""
        ...

    def close_when_answered(self) -> None:
        """Dispatch no more requests. Close the connection after every pending response was sent."""
        ...


class ConnectionContext:
    """One client connection. This object exists as long as the connection.

    Authentication sets ``principal``. ApiVersions sets the client's rack, software name and version.
    ``attributes`` belongs to the handlers (SASL state, fetch session hints).
    """

    __slots__ = (
        "__weakref__",
        "_on_close",
        "attributes",
        "client_software_name",
        "client_software_version",
        "closed",
        "connection_id",
        "control",
        "listener_name",
        "peer_host",
        "peer_port",
        "principal",
        "rack",
        "security_protocol",
    )

    def __init__(
        self,
        connection_id: str,
        listener_name: str,
        security_protocol: str = "PLAINTEXT",
        peer_host: str = "",
        peer_port: int = 0,
        principal: Principal = ANONYMOUS,
        control: ConnectionControl | None = None,
    ) -> None:
        self.connection_id = connection_id
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.principal = principal
        self.control = control
        self.client_software_name: str | None = None
        self.client_software_version: str | None = None
        self.rack: str | None = None
        self.attributes: dict[str, Any] = {}
        self.closed = False
        self._on_close: tuple[Callable[[], None], ...] = ()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the connection ends; at once if it has ended."""
        if self.closed:
            callback()
        else:
            self._on_close += (callback,)

    def mark_closed(self) -> None:
        """Called once by the network, when the connection has ended."""
        self.closed = True
        self.control = None
        callbacks, self._on_close = self._on_close, ()
        for callback in callbacks:
            callback()


class RequestContext:
    """One request: its header, its connection and the time when its bytes arrived (``loop.time()``, in
    seconds)."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "received_at",
        "size_bytes",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        connection: ConnectionContext,
        received_at: float = 0.0,
        size_bytes: int = 0,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection
        self.received_at = received_at
        self.size_bytes = size_bytes

    @property
    def principal(self) -> Principal:
        return self.connection.principal

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name

    def __repr__(self) -> str:
        return (
            f"RequestContext(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r}, "
            f"connection={self.connection.connection_id!r})"
        )


DispatchRequest: TypeAlias = Callable[[RequestContext, memoryview], Answer]
"""A function that gets the context and the body of a request, and returns the answer. The body is a view that
is valid only until the call returns.

If the call raises, the connection is closed with one log line.
"""
