"""Listeners, limits and counters of a socket server. ``server.py`` refuses connections above the limits."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

_UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Listener:
    """An address at which the server accepts connections.

    If ``host`` is ``None`` or empty, all interfaces are used. ``port`` 0 means a free port. ``ssl_context``
    is set if ``security_protocol`` requires TLS.
    """

    name: str
    host: str | None
    port: int
    security_protocol: str = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """Limits of a socket server. The comment at a limit names Kafka's property for this limit, if there is
    one.
    """

    max_request_bytes: int = 100 * 1024 * 1024  # socket.request.max.bytes
    queued_max_request_bytes: int | None = None  # queued.max.request.bytes, None for -1
    max_in_flight_requests_per_connection: int = 512
    max_in_flight_bytes_per_connection: int = 64 * 1024 * 1024
    max_connections: int = _UNLIMITED  # max.connections
    max_connections_by_listener: Mapping[str, int] = field(default_factory=dict)
    """The configs ``listener.name.NAME.max.connections``, by the listener's name in lower case."""
    protected_listener: str | None = None
    """The name of the protected listener. When ``max_connections`` is reached, a new connection to this
    listener closes a connection of another listener."""
    max_connections_per_ip: int = _UNLIMITED  # max.connections.per.ip
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    connections_max_idle_ms: int = 600_000  # connections.max.idle.ms, negative for never
    backlog: int = 50  # socket.listen.backlog.size
    send_buffer_bytes: int = -1  # socket.send.buffer.bytes, -1 for the system's own
    receive_buffer_bytes: int = -1  # socket.receive.buffer.bytes, -1 for the system's own
    write_high_water_bytes: int = 1024 * 1024
    linger_ms: int = 5_000  # maximum time for which a closing connection sends written data


class NetworkCounters:
    """Counters and current amounts of a server. They are plain integers for meters."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections_closed",
        "connections_created",
        "connections_failed",
        "connections_idle_closed",
        "connections_refused",
        "in_flight_bytes",
        "in_flight_requests",
        "requests",
        "responses",
    )

    def __init__(self) -> None:
        self.connections_created = 0
        self.connections_closed = 0
        self.connections_refused = 0
        self.connections_failed = 0
        self.connections_idle_closed = 0
        self.requests = 0
        self.responses = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.in_flight_requests = 0
        self.in_flight_bytes = 0

    @property
    def connections_open(self) -> int:
        return self.connections_created - self.connections_closed
