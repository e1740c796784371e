"""Listeners. The server accepts connections within the limits, closes idle connections, and stops cleanly.

It uses only the event loop's own ``create_server``, so that a simulated network can replace the real network.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from moldau.network.connection import ServerConnection
from moldau.network.context import ANONYMOUS, ConnectionContext, DispatchRequest
from moldau.network.limits import Listener, NetworkCounters, NetworkLimits
from moldau.network.memory import ReceiveMemory, RequestMemory
from moldau.network.reserve import ReservedPlaces, is_own_machine
from moldau.network.writing import TurnShare, transport_sends_vectors
from moldau.runtime.files.descriptor_shares import last_descriptor_for_clients

log = logging.getLogger("moldau.network")


def _nothing() -> None:
    """The default of ``end_turn``. It does nothing. It is for a dispatcher that completes each request
    separately."""


class SocketServer:
    """Serves one dispatcher on any number of listeners.

    ``start`` returns the bound port of each listener by name. ``counters`` may be read at any time.
    """

    memory: ReceiveMemory

    def __init__(
        self,
        dispatcher: DispatchRequest,
        listeners: Sequence[Listener],
        limits: NetworkLimits | None = None,
        *,
        end_turn: Callable[[], None] = _nothing,
    ) -> None:
        """``end_turn`` is called when the requests that arrived together have been dispatched.

        It completes the common work of these requests, for example a write of all their records. No response
        is sent before it returns. If it raises, no response is sent.
        """
        names = [listener.name for listener in listeners]
        if len(set(names)) != len(names):
            raise ValueError(f"two listeners have the same name: {names}")
        self.dispatch = dispatcher
        self.end_turn = end_turn
        self.listeners = tuple(listeners)
        self.limits = limits if limits is not None else NetworkLimits()
        self.counters = NetworkCounters()
        self.budget = RequestMemory(self.limits.queued_max_request_bytes)
        self.vectored = False
        self.turn_share = TurnShare()
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: dict[ServerConnection, None] = {}
        self._connections_by_ip: Counter[str] = Counter()
        self._connections_by_listener: Counter[str] = Counter()
        self._reserve = ReservedPlaces(self._connections)
        self._next_connection = 0
        self._last_descriptor: int | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._all_gone: asyncio.Event | None = None

    @property
    def connections(self) -> list[ConnectionContext]:
        """The open connections, the oldest first."""
        return [connection.context for connection in self._connections]

    async def start(self) -> dict[str, int]:
        """Accept connections. Returns the bound port by listener name. Raises ``OSError`` with the name of
        the listener."""
        loop = asyncio.get_running_loop()
        self.memory = ReceiveMemory.of_running_loop()
        self._last_descriptor = last_descriptor_for_clients()
        self.vectored = transport_sends_vectors(loop)
        ports: dict[str, int] = {}
        try:
            for listener in self.listeners:
                ports[listener.name] = await self._listen(loop, listener)
        except BaseException:
            await self.stop(0)
            raise
        self._schedule_idle_check()
        return ports

    async def _listen(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> int:
        arguments: dict[str, Any] = {"backlog": self.limits.backlog}
        if listener.ssl_context is not None:
            arguments["ssl"] = listener.ssl_context
        try:
            server = await loop.create_server(
                lambda: ServerConnection(self, listener.name, listener.security_protocol),
                # The port is chosen once for all interfaces. Otherwise each address family would get a
                # different free port.
                listener.host or ("0.0.0.0" if listener.port == 0 else None),
                listener.port,
                **arguments,
            )
        except OSError as error:
            where = f"{listener.host or '*'}:{listener.port}"
            raise OSError(
                error.errno, f"listener {listener.name} cannot listen on {where}: {error.strerror or error}"
            ) from error
        self._servers.append(server)
        for bound in server.sockets:
            return int(bound.getsockname()[1])
        return listener.port

    async def stop(self, grace: float = 5.0) -> None:
        """Stop accepting and reading, send the pending responses within ``grace`` seconds, then close."""
        self._stopping = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not self._connections:
            return
        gone = self._all_gone = asyncio.Event()
        for connection in list(self._connections):
            connection.close_when_answered()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), grace)
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            await gone.wait()

    # The interface for connections.

    def admit(self, connection: ServerConnection, transport: asyncio.Transport) -> ConnectionContext | None:
        peer_host, peer_port = _address(transport.get_extra_info("peername"))
        local_host, local_port = _address(transport.get_extra_info("sockname"))
        is_own = is_own_machine(peer_host, local_host)
        reason = self._reason_to_refuse(peer_host, is_own, connection)
        if reason is None:
            lack = self._lack_of_descriptors(transport)
            reason = None if lack is None or self._assign_reserved(connection, is_own) else lack
        if reason is not None:
            self.counters.connections_refused += 1
            log.warning(
                "refusing a connection from %s on listener %s: %s",
                peer_host,
                connection.listener_name,
                reason,
                extra={"peer_host": peer_host, "listener": connection.listener_name, "reason": reason},
            )
            return None
        self._tune(transport)
        number = self._next_connection
        self._next_connection += 1
        context = ConnectionContext(
            connection_id=f"{local_host}:{local_port}-{peer_host}:{peer_port}-{number}",
            listener_name=connection.listener_name,
            security_protocol=connection.security_protocol,
            peer_host=peer_host,
            peer_port=peer_port,
            principal=ANONYMOUS,
            control=connection,
        )
        self.counters.connections_created += 1
        self._connections[connection] = None
        self._connections_by_ip[peer_host] += 1
        self._connections_by_listener[connection.listener_name] += 1
        return context

    def _reason_to_refuse(self, peer_host: str, is_own: bool, connection: ServerConnection) -> str | None:
        limits = self.limits
        if self._stopping:
            return "the server is stopping"
        overrides = limits.max_connections_per_ip_overrides
        per_ip = overrides.get(peer_host, limits.max_connections_per_ip)
        if self._connections_by_ip[peer_host] >= per_ip:
            # A limit that is configured for the address of another machine always applies. But the general
            # limit, or a limit for an address of this machine, could exclude every operator. Therefore a
            # connection may use a reserved place in these two cases.
            is_override = peer_host in overrides
            if (is_override and not is_own) or not self._assign_reserved(connection, is_own):
                key = "max.connections.per.ip" + (".overrides" if is_override else "")
                return f"{key}={per_ip} is reached for {peer_host}"
        of_listener = limits.max_connections_by_listener.get(connection.listener_name.lower())
        if of_listener is not None and self._connections_by_listener[connection.listener_name] >= of_listener:
            if not self._assign_reserved(connection, is_own):
                name = connection.listener_name.lower()
                return f"listener.name.{name}.max.connections={of_listener} is reached"
        elif len(self._connections) >= limits.max_connections and not self._make_room(connection, is_own):
            return f"max.connections={limits.max_connections} is reached"
        return None

    def _make_room(self, connection: ServerConnection, is_own: bool) -> bool:
        """Try to make room for a connection when ``max.connections`` is reached. Returns whether the
        connection is accepted.

        On the protected listener it is accepted, and the least recently active connection of another listener
        is closed instead (KIP-402). Therefore brokers can connect regardless of the number of clients.
        """
        listener_name = connection.listener_name
        if listener_name != self.limits.protected_listener:
            return False
        others = (
            each for each in self._connections if each.listener_name != listener_name and not each.is_closing
        )
        idlest = min(others, key=lambda each: each.last_active, default=None)
        if idlest is None:
            return self._assign_reserved(connection, is_own)
        self._close_for(idlest, connection)
        return True

    def _assign_reserved(self, connection: ServerConnection, is_own: bool) -> bool:
        """Try to use a reserved place for a connection to the protected listener. Returns whether the
        connection got the place. The connection may then be accepted even if a limit is reached.
        """
        if connection.listener_name != self.limits.protected_listener:
            return False
        previous = self._reserve.assign(is_own, connection, asyncio.get_running_loop().time())
        if previous is not None:
            self._close_for(previous, connection)
        return self._reserve.has(is_own, connection)

    def _close_for(self, connection: ServerConnection, other: ServerConnection) -> None:
        log.warning(
            "closing connection %s of listener %s: connections are limited, and listener %s needs one",
            connection.context.connection_id,
            connection.listener_name,
            other.listener_name,
            extra={"connection_id": connection.context.connection_id, "reason": "max.connections"},
        )
        connection.close()

    def _lack_of_descriptors(self, transport: asyncio.Transport) -> str | None:
        """Return the reason to refuse a connection because it would use one of the last file descriptors. The
        result is None if the connection can be accepted.

        Without descriptors, a log cannot open its files and goes offline.
        """
        connected = transport.get_extra_info("socket")
        last = self._last_descriptor
        if last is None or not hasattr(connected, "fileno") or connected.fileno() <= last:
            return None
        return f"only open files up to number {last} are for connections"

    def forget(self, connection: ServerConnection) -> None:
        self.counters.connections_closed += 1
        del self._connections[connection]
        peer_host = connection.context.peer_host
        self._connections_by_listener[connection.listener_name] -= 1
        self._connections_by_ip[peer_host] -= 1
        if not self._connections_by_ip[peer_host]:
            del self._connections_by_ip[peer_host]
        if not self._connections and self._all_gone is not None:
            self._all_gone.set()

    def _tune(self, transport: asyncio.Transport) -> None:
        connected = transport.get_extra_info("socket")
        if connected is None or not hasattr(connected, "setsockopt"):
            return
        limits = self.limits
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if limits.send_buffer_bytes > 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
            if limits.receive_buffer_bytes > 0:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)

    # Idle connections.

    def _schedule_idle_check(self) -> None:
        idle_seconds = self.limits.connections_max_idle_ms / 1000
        if idle_seconds <= 0 or self._stopping:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        oldest = min((connection.last_active for connection in self._connections), default=now)
        # Idle connections are closed in groups. Therefore a connection may stay open for up to 1% longer than
        # the limit for idle connections.
        delay = max(oldest + idle_seconds - now, idle_seconds / 100)
        self._idle_timer = loop.call_later(delay, self._close_idle)

    def _close_idle(self) -> None:
        idle_seconds = self.limits.connections_max_idle_ms / 1000
        now = asyncio.get_running_loop().time()
        for connection in list(self._connections):
            if now - connection.last_active < idle_seconds:
                continue
            if not connection.has_no_pending_responses and not connection.is_write_blocked:
                continue  # a response is pending, for example for a long poll
            self.counters.connections_idle_closed += 1
            log.info(
                "closing connection %s from %s: idle for %d ms",
                connection.context.connection_id,
                connection.context.peer_host,
                int((now - connection.last_active) * 1000),
                extra={"connection_id": connection.context.connection_id, "reason": "idle"},
            )
            connection.close()
        self._schedule_idle_check()


def _address(name: Any) -> tuple[str, int]:
    """Host and port of a socket name. They are unknown for a pipe and for a simulated transport."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return "unknown", 0
