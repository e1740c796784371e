"""The network between simulated hosts. It simulates latency, segments, cut links, and refused and reset
connections."""

import asyncio
import contextvars
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.simulation.seeds import stream
from moldau.simulation.world.listening import SimulatedServer
from moldau.simulation.world.loop import SimulatedLoop, SimulationError, current_process
from moldau.simulation.world.process import Process
from moldau.simulation.world.transport import (
    FIN,
    RECEIVE_WINDOW_BYTES,
    RST,
    SimulatedTransport,
)

if TYPE_CHECKING:
    from moldau.simulation.world.host import Host

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "", None})
EPHEMERAL_PORT_FIRST = 32_768
CONNECT_TIMEOUT_S = 127.0
"""Time limit of an attempt to connect. It is Linux's default, in which a SYN is sent again six times."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How links behave. Times are in seconds; probabilities are in [0, 1]."""

    latency_s_min: float = 0.000_1
    latency_s_max: float = 0.002
    loopback_latency_s: float = 0.000_03
    jitter_s: float = 0.000_3
    bandwidth_bytes_per_s: float = 0.0
    split_chance: float = 0.2
    pieces_max: int = 4
    reset_at_heal_chance: float = 0.3


class Network:
    """All links of a world. Each direction of a link is cut and healed separately. A pair of host names, the
    sender and the receiver, identifies a direction."""

    def __init__(self, loop: SimulatedLoop, seed: int, options: NetworkOptions | None = None) -> None:
        self.loop = loop
        self.options = options or NetworkOptions()
        self.hosts: dict[str, Host] = {}
        self.bytes_delivered = 0
        self._random = stream(seed, "network")
        self._latency_s: dict[tuple[str, str], float] = {}
        self._cut: set[tuple[str, str]] = set()
        self._delay_s: dict[tuple[str, str], float] = {}
        self._held: list[SimulatedTransport] = []
        self._waiting: list[tuple[tuple[str, str], asyncio.Future[None]]] = []
        self._servers: dict[tuple[str, int], SimulatedServer] = {}
        self._ports: dict[str, int] = {}
        self._transports: dict[int, SimulatedTransport] = {}
        self._number = 0
        loop.network = self

    # Names -----------------------------------------------------------------------------------

    def resolve(self, name: str | None) -> "Host":
        """The host with this name. For a local name, the caller's own host."""
        if name in LOCAL_NAMES:
            host: Host | None = current_process(self.loop).host
        else:
            host = self.hosts.get(str(name)) or next(
                (host for host in self.hosts.values() if host.ip == name), None
            )
        if host is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no host of this world is called {name!r}")
        return host

    def addresses(self, name: Any, port: Any) -> list[Any]:
        """Return an address like ``getaddrinfo``."""
        host = self.resolve(name.decode() if isinstance(name, bytes) else name)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host.ip, int(port or 0)))]

    # Listening and connecting --------------------------------------------------------------------

    async def listen(
        self, protocol_factory: Callable[[], Any], name: Any, port: int | None, **options: Any
    ) -> SimulatedServer:
        """Implements ``create_server`` of the event loop: opens a listening socket on the caller's host."""
        _refuse_unsimulated(options)
        process = current_process(self.loop)
        if isinstance(name, list | tuple):
            name = name[0]
        host = self.resolve(name)
        if host is not process.host:
            raise OSError(errno.EADDRNOTAVAIL, f"{name} is not an address of {process.host}")
        port = port or self._ephemeral_port(host)
        if (host.name, port) in self._servers:
            raise OSError(errno.EADDRINUSE, f"{host.name}:{port} is in use")
        server = SimulatedServer(self, protocol_factory, (host.ip, port), process, contextvars.copy_context())
        self._servers[host.name, port] = server
        server.key = (host.name, port)
        return server

    def stop_listening(self, server: SimulatedServer) -> None:
        if self._servers.get(server.key) is server:
            del self._servers[server.key]

    def _ephemeral_port(self, host: "Host") -> int:
        port = self._ports.get(host.name, EPHEMERAL_PORT_FIRST)
        while (host.name, port) in self._servers:
            port += 1
        self._ports[host.name] = port + 1
        return port

    async def connect(
        self, protocol_factory: Callable[[], Any], name: Any, port: int, **options: Any
    ) -> tuple[SimulatedTransport, Any]:
        """Implements ``create_connection`` of the event loop: sends a SYN, waits for the response, and makes
        two transports."""
        _refuse_unsimulated(options)
        process = current_process(self.loop)
        if process.host is None:
            raise SimulationError(f"{process.name} runs on no host and has no network")
        source: Host = process.host
        target = self.resolve(name)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._pass(source, target)
                while not target.up:  # noqa: ASYNC110
                    await asyncio.sleep(1.0)  # SYNs to a machine without power are sent again
                server = self._servers.get((target.name, port))
                if server is not None:
                    theirs = self._accept(server, source, port)
                await self._pass(target, source)
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, f"connect to {name}:{port} timed out") from None
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connect to {name}:{port} refused")
        mine = theirs.peer
        mine.protocol = protocol = protocol_factory()
        protocol.connection_made(mine)
        self.loop.call_soon(mine.read_ready, context=mine.context)
        return mine, protocol

    async def _pass(self, source: "Host", target: "Host") -> None:
        """Wait for the latency of a packet. While the link is cut, wait longer."""
        await asyncio.sleep(self._latency(source.name, target.name))
        while (link := (source.name, target.name)) in self._cut:
            healed: asyncio.Future[None] = self.loop.create_future()
            self._waiting.append((link, healed))
            await healed

    def _accept(self, server: SimulatedServer, source: "Host", port: int) -> SimulatedTransport:
        """Create both ends of a new connection. Returns the server's end. This end gets its protocol when the
        server accepts the connection."""
        target: Host = server.process.host
        client_address = (source.ip, self._ephemeral_port(source))
        client_context = contextvars.copy_context()
        mine = SimulatedTransport(
            self, source, client_context, client_address, (target.ip, port), self._number
        )
        theirs = SimulatedTransport(
            self, target, server.context, (target.ip, port), client_address, self._number + 1
        )
        self._number += 2
        mine.peer, theirs.peer = theirs, mine
        self._transports[mine.number] = mine
        self._transports[theirs.number] = theirs
        self.loop.call_soon(server.accept, theirs, context=server.context)
        return theirs

    def forget(self, transport: SimulatedTransport) -> None:
        """Remove the transport from the open connections, because its protocol was notified that the
        connection is lost."""
        self._transports.pop(transport.number, None)

    # Bytes in flight -----------------------------------------------------------------------------

    def _latency(self, source: str, target: str) -> float:
        options = self.options
        if source == target:
            return options.loopback_latency_s
        link = (source, target)
        base = self._latency_s.get(link)
        if base is None:
            base = self._random.uniform(options.latency_s_min, options.latency_s_max)
            self._latency_s[link] = base
        jitter_s = self._random.expovariate(1.0) * options.jitter_s
        return base + jitter_s + self._delay_s.get(link, 0.0) if self._delay_s else base + jitter_s

    def send(self, sender: SimulatedTransport, data: bytes) -> None:
        """Send data, or the end of the stream (FIN) or a reset (RST), to the sender's peer."""
        if sender.peer.vanished:
            self._reset_from_rebooted(sender)
            return
        size = len(data)
        if data is FIN or data is RST or size < 2 or self._random.random() >= self.options.split_chance:
            self._push(sender, data)
            return
        count = self._random.randint(1, self.options.pieces_max - 1)
        cuts = sorted({self._random.randrange(1, size) for _ in range(count)})
        start = 0
        for cut in (*cuts, size):
            self._push(sender, data[start:cut])
            start = cut

    def _push(self, sender: SimulatedTransport, chunk: bytes) -> None:
        options = self.options
        due = self.loop.time() + self._latency(sender.host.name, sender.peer.host.name)
        if options.bandwidth_bytes_per_s:
            due = max(due, sender.outgoing_due_s + len(chunk) / options.bandwidth_bytes_per_s)
        due = sender.outgoing_due_s = max(due, sender.outgoing_due_s)
        sender.outgoing.append((due, chunk))
        if chunk is not FIN and chunk is not RST:
            sender.outgoing_bytes += len(chunk)
        if sender.outgoing_timer is None:
            self._arm(sender, due)

    def _arm(self, sender: SimulatedTransport, due: float) -> None:
        # The segment arrives in the receiver's process. An ended process ignores it, and a paused process
        # handles it later.
        sender.outgoing_timer = self.loop.call_at(due, self._arrive, sender, context=sender.peer.context)

    def _arrive(self, sender: SimulatedTransport) -> None:
        sender.outgoing_timer = None
        receiver = sender.peer
        if (sender.host.name, receiver.host.name) in self._cut:
            self._held.append(sender)
            return
        now = self.loop.time()
        outgoing = sender.outgoing
        taken_bytes = 0
        while outgoing and outgoing[0][0] <= now:
            chunk = outgoing[0][1]
            marker = chunk is FIN or chunk is RST
            if not marker and len(receiver.received) >= RECEIVE_WINDOW_BYTES:
                break
            outgoing.popleft()
            if not marker:
                taken_bytes += len(chunk)
                if receiver.lost:
                    self._refuse_late_bytes(receiver)
                    continue
            receiver.arrived(chunk)
        if outgoing and outgoing[0][0] > now:
            self._arm(sender, outgoing[0][0])
        if taken_bytes:
            sender.outgoing_bytes -= taken_bytes
            self.bytes_delivered += taken_bytes
            self.loop.trace(b"%d:%d@%d" % (sender.number, taken_bytes, int(now * 1e6)))
            sender.drained()
        receiver.read_ready()

    def window_opened(self, receiver: SimulatedTransport) -> None:
        """Called when the receiver has read some bytes. Delivers segments that had to wait for free space."""
        sender = receiver.peer
        if sender.outgoing and sender.outgoing_timer is None and sender not in self._held:
            self._arm(sender, max(self.loop.time(), sender.outgoing[0][0]))

    def _refuse_late_bytes(self, receiver: SimulatedTransport) -> None:
        """Respond with a reset to bytes for a closed socket."""
        if not receiver.peer.lost and not any(chunk is RST for _, chunk in receiver.outgoing):
            self._push(receiver, RST)

    def drop_outgoing(self, sender: SimulatedTransport) -> None:
        """Drop the data of ``sender`` that are in flight."""
        sender.outgoing.clear()
        sender.outgoing_bytes = 0
        if sender.outgoing_timer is not None:
            sender.outgoing_timer.cancel()
            sender.outgoing_timer = None

    # Faults ----------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Hold back all messages from one host to another. The other direction is not affected."""
        self._cut.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """Deliver messages again. Each connection that was held back continues or is reset; the seed
        chooses."""
        self._cut.discard((source, target))
        held, self._held = self._held, []
        for sender in held:
            if (sender.host.name, sender.peer.host.name) in self._cut:
                self._held.append(sender)
            elif self._random.random() < self.options.reset_at_heal_chance:
                self.break_connection(sender)
            elif sender.outgoing:
                self._arm(sender, self.loop.time() + self._latency(source, target))
        for link, healed in self._waiting:
            if link not in self._cut and not healed.done():
                healed.set_result(None)
        self._waiting = [(link, healed) for link, healed in self._waiting if not healed.done()]

    def heal_all(self) -> None:
        self._delay_s.clear()
        for source, target in sorted(self._cut):
            self.heal(source, target)

    def delay(self, source: str, target: str, seconds: float) -> None:
        """From now on, delay all messages from one host to another. The other direction is not affected. A
        delay of 0 ends the delay."""
        self._delay_s[source, target] = seconds

    def connections(self) -> list[SimulatedTransport]:
        """One of the two ends of every open connection, in the order of creation."""
        return [end for end in self._transports.values() if end.number % 2 == 0 and not end.lost]

    def break_connection(self, end: SimulatedTransport) -> None:
        """Reset both ends of a connection together. Data in flight are lost, even in the middle of a
        frame.
        """
        for side in (end, end.peer):
            side.reset(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def tear(self, end: SimulatedTransport) -> None:
        """Reset an end of a connection. The bytes that this end had sent arrive at their usual times. A reset
        follows.

        Without this fault, the bytes of a connection would never arrive after bytes of a later connection.
        """
        under_way = list(end.outgoing)
        end.reset(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        end.outgoing.extend(chunk for chunk in under_way if chunk[1] is not FIN)
        end.outgoing_bytes = sum(len(chunk) for _, chunk in end.outgoing if chunk is not RST)
        if end.outgoing:
            self._arm(end, end.outgoing[0][0])
        # The reset is not sent immediately, because a reset discards bytes that the receiver has not read.
        end.outgoing_due_s += self.options.latency_s_max
        self._push(end, RST)

    def process_killed(self, process: Process, *, power_lost: bool) -> None:
        """Close the connections of an ended process. A kill resets them. After a loss of power, the peers get
        no message."""
        for server in [server for server in self._servers.values() if server.process is process]:
            self.stop_listening(server)
        for end in [end for end in self._transports.values() if end.process is process]:
            del self._transports[end.number]
            if power_lost:
                end.vanished = True
                self.drop_outgoing(end)
            elif not end.lost:
                self._cut_short(end)
            end.lost = True
            end._closing = True

    def _cut_short(self, end: SimulatedTransport) -> None:
        """Deliver the bytes of a killed process up to a random segment. A reset follows."""
        kept = self._random.randint(0, len(end.outgoing))
        segments = list(end.outgoing)[:kept]
        self.drop_outgoing(end)
        end.outgoing.extend(segments)
        end.outgoing_bytes = sum(len(chunk) for _, chunk in segments)
        if segments:
            self._arm(end, segments[0][0])
        self._push(end, RST)

    def host_booted(self, host: "Host") -> None:
        """Called when a machine runs again. Peers may still send on connections from before the start. These
        connections are reset."""
        for end in list(self._transports.values()):
            if end.peer.vanished and end.peer.host is host and (end.outgoing or end.outgoing_bytes):
                self._reset_from_rebooted(end)

    def _reset_from_rebooted(self, end: SimulatedTransport) -> None:
        if not end.peer.host.up or end.lost:
            return
        delay = self._latency(end.host.name, end.peer.host.name) * 2
        error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        self.loop.call_later(delay, end.reset, error, context=end.context)


def _refuse_unsimulated(options: dict[str, Any]) -> None:
    if options.get("ssl") or options.get("sock"):
        raise SimulationError("TLS and ready-made sockets are not simulated")
