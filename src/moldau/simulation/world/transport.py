"""One end of a simulated TCP connection. It behaves like asyncio's transports.

Written data are sent in segments, each with an arrival time. A segment stays with the sender until the
receiver's kernel has space for it. When too many segments stay with the sender, ``pause_writing`` is called.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from moldau.simulation.world.process import PROCESS, Process

if TYPE_CHECKING:
    from moldau.simulation.world.host import Host
    from moldau.simulation.world.loop import SimulatedLoop
    from moldau.simulation.world.network import Network

SocketAddress = tuple[str, int]

SEND_WINDOW_BYTES = 64 * 1024
RECEIVE_WINDOW_BYTES = 128 * 1024
READ_BYTES_MAX = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024

FIN = b"FIN"
RST = b"RST"


class SimulatedTransport(asyncio.Transport):
    """A stream transport. The other end of the connection is another object of this class."""

    peer: "SimulatedTransport"

    def __init__(
        self,
        network: "Network",
        host: "Host",
        context: contextvars.Context,
        local: SocketAddress,
        remote: SocketAddress,
        number: int,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": None})
        self.network = network
        self.loop: SimulatedLoop = network.loop
        self.host = host
        self.context = context
        self.process: Process = context[PROCESS]
        self.number = number
        self.protocol: Any = None
        self.outgoing: deque[tuple[float, bytes]] = deque()
        self.outgoing_bytes = 0
        self.outgoing_due_s = 0.0
        self.outgoing_timer: asyncio.TimerHandle | None = None
        self.received = bytearray()
        self.vanished = False
        self.lost = False
        self._closing = False
        self._eof_written = False
        self._eof_arrived = False
        self._eof_given = False
        self._reading_paused = False
        self._writing_paused = False
        self._high_water = HIGH_WATER_BYTES
        self._low_water = HIGH_WATER_BYTES // 4

    # Writing ---------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self.lost or self._closing:
            return
        self.network.send(self, bytes(data))
        if not self._writing_paused and self.get_write_buffer_size() > self._high_water:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._eof_written and not self.lost:
            self._eof_written = True
            self.network.send(self, FIN)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return max(0, self.outgoing_bytes - SEND_WINDOW_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water, self._low_water = high, low
        if not self._writing_paused and self.get_write_buffer_size() > high:
            self._writing_paused = True
            self.protocol.pause_writing()

    def drained(self) -> None:
        """Continue to write, because the network has sent bytes of ``outgoing``."""
        if self.lost or self.get_write_buffer_size() > self._low_water:
            return
        if self._writing_paused:
            self._writing_paused = False
            self.loop.call_soon(self._resume_writing, context=self.context)
        if self._closing and self.get_write_buffer_size() == 0:
            self._finish(None)

    def _resume_writing(self) -> None:
        if not self._writing_paused and self.protocol is not None:
            self.protocol.resume_writing()

    # Reading ---------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self.loop.call_soon(self.read_ready, context=self.context)

    def read_ready(self) -> None:
        """Pass received data to the protocol, as one read."""
        if self._reading_paused or self._closing or self.lost or self.protocol is None:
            return
        if self.received:
            try:
                self._feed()
            except Exception as error:
                self._fatal(error)
                return
            if self.received or self._eof_arrived:
                self.loop.call_soon(self.read_ready, context=self.context)
            self.network.window_opened(self)
        elif self._eof_arrived and not self._eof_given:
            self._eof_given = True
            try:
                keep_open = self.protocol.eof_received()
            except Exception as error:
                self._fatal(error)
                return
            if not keep_open:
                self.close()

    def _feed(self) -> None:
        received = self.received
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(buffer), len(received))
            if not size:
                raise RuntimeError("get_buffer() returned an empty buffer")
            with memoryview(received) as view:
                buffer[:size] = view[:size]
            del received[:size]
            protocol.buffer_updated(size)
        else:
            data = bytes(received[:READ_BYTES_MAX])
            del received[:READ_BYTES_MAX]
            protocol.data_received(data)

    def arrived(self, chunk: bytes) -> None:
        """Receive a segment in the kernel at this end."""
        if chunk is RST:
            self.reset(ConnectionResetError(104, "Connection reset by peer"))
        elif chunk is FIN:
            self._eof_arrived = True
        else:
            self.received += chunk

    # Ending ----------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self.get_write_buffer_size() == 0:
            self._finish(None)

    def abort(self) -> None:
        self._force_close(None)

    def reset(self, error: Exception) -> None:
        """Close the connection after it was lost. Data in flight are lost."""
        if not self.lost:
            self.received.clear()
            self.network.drop_outgoing(self)
            self._force_close(error, tell_peer=False)

    def _fatal(self, error: Exception) -> None:
        self.loop.call_exception_handler(
            {
                "message": "Fatal error on transport",
                "exception": error,
                "transport": self,
                "protocol": self.protocol,
            }
        )
        self._force_close(error)

    def _force_close(self, error: Exception | None, *, tell_peer: bool = True) -> None:
        if self.lost:
            return
        self._closing = True
        self._finish(error, tell_peer=tell_peer)

    def _finish(self, error: Exception | None, *, tell_peer: bool = True) -> None:
        if self.lost:
            return
        self.lost = True
        if tell_peer:
            # If a socket is closed with unread bytes, the kernel sends a reset instead of an end of stream.
            if self.received:
                self.network.send(self, RST)
            elif not self._eof_written:
                self.network.send(self, FIN)
        self.loop.call_soon(self._connection_lost, error, context=self.context)

    def _connection_lost(self, error: Exception | None) -> None:
        self.network.forget(self)
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    # Other methods of asyncio's transport ----------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def __repr__(self) -> str:
        return f"<SimulatedTransport {self.get_extra_info('sockname')}->{self.get_extra_info('peername')}>"
