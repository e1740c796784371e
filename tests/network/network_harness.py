"""Frames, an in-memory transport and a driver for server connections without sockets."""

import asyncio
import struct
from collections.abc import Iterable

from moldau.network import Listener, NetworkLimits, SocketServer
from moldau.network.connection import ServerConnection

METADATA = 3
VERSION = 1  # request header v1, response header v0


def request_frame(correlation_id, body=b"", client_id="test", api_key=METADATA, version=VERSION):
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    payload = struct.pack(">hhih", api_key, version, correlation_id, length) + name + body
    return struct.pack(">i", len(payload)) + payload


def parse_responses(data: bytes) -> list[tuple[int, bytes]]:
    """The correlation id and the body of each response. Fails if a response is incomplete."""
    responses = []
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        (correlation_id,) = struct.unpack_from(">i", data, position + 4)
        assert position + 4 + size <= len(data)
        responses.append((correlation_id, bytes(data[position + 8 : position + 4 + size])))
        position += 4 + size
    return responses


class MemoryTransport(asyncio.Transport):
    """Stores the bytes that are written to it. With ``accept_bytes`` it applies back-pressure, like a peer
    that stops reading."""

    def __init__(self, peer_host="10.0.0.1"):
        super().__init__(extra={"peername": (peer_host, 4000), "sockname": ("10.0.0.9", 9092)})
        self.protocol = None
        self.written = bytearray()
        self.buffered = bytearray()
        self.blocked = False
        self.reading = True
        self.closing = False
        self.high = 64 * 1024
        self.paused_protocol = False

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high

    def write(self, data):
        if self.blocked:
            self.buffered += data
            if len(self.buffered) > self.high and not self.paused_protocol:
                self.paused_protocol = True
                self.protocol.pause_writing()
        else:
            self.written += data

    def unblock(self):
        self.blocked = False
        self.written += self.buffered
        self.buffered.clear()
        if self.paused_protocol:
            self.paused_protocol = False
            self.protocol.resume_writing()

    def get_write_buffer_size(self):
        return len(self.buffered)

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closing

    def close(self):
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


class Wire:
    """A server connection with a transport in memory, to which a test delivers bytes."""

    def __init__(self, server: SocketServer, peer_host="10.0.0.1"):
        from moldau.network.memory import ReceiveMemory

        server.memory = ReceiveMemory.of_running_loop()
        self.server = server
        self.transport = MemoryTransport(peer_host)
        self.connection = ServerConnection(server, "PLAINTEXT", "PLAINTEXT")
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self._unread = b""

    def feed(self, data: bytes, chunk_sizes: Iterable[int] = ()) -> None:
        """Deliver ``data`` as an event loop does. Then overwrite the shared buffer."""
        rest = self._unread + data
        self._unread = b""
        sizes = iter(chunk_sizes)
        while rest:
            if not self.transport.reading or self.transport.closing:
                self._unread = rest
                return
            buffer = self.connection.get_buffer(-1)
            size = min(next(sizes, len(rest)), len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            self.connection.buffer_updated(size)
            shared = self.server.memory.shared
            shared[:4096] = b"\xdd" * 4096

    async def settle(self) -> None:
        """Run a hundred iterations of the event loop. As soon as the connection reads again, deliver the
        bytes that were delayed while it did not read."""
        for _ in range(100):
            await asyncio.sleep(0)
            if self._unread and self.transport.reading:
                self.feed(b"")

    @property
    def responses(self) -> list[tuple[int, bytes]]:
        return parse_responses(bytes(self.transport.written))


def make_server(dispatch, **limits) -> SocketServer:
    return SocketServer(dispatch, [Listener("PLAINTEXT", "127.0.0.1", 0)], NetworkLimits(**limits))


def echo(context, body):
    return [bytes(body)]


async def until(condition) -> None:
    """Run the event loop until ``condition()`` is true."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")
