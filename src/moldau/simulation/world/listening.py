"""Listening sockets of the simulated network."""

import asyncio
import contextvars
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.simulation.world.process import Process
from moldau.simulation.world.transport import SimulatedTransport, SocketAddress

if TYPE_CHECKING:
    from moldau.simulation.world.network import Network


class ListeningSocket:
    """The part of a socket's interface that servers use."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, address: SocketAddress) -> None:
        self._address = address

    def getsockname(self) -> SocketAddress:
        return self._address

    def fileno(self) -> int:
        return -1


class SimulatedServer(asyncio.AbstractServer):
    """A listening socket. When the process that opened it ends, it is closed."""

    key: tuple[str, int]

    def __init__(
        self,
        network: "Network",
        protocol_factory: Callable[[], Any],
        address: SocketAddress,
        process: Process,
        context: contextvars.Context,
    ) -> None:
        self.process = process
        self.context = context
        self._network = network
        self._protocol_factory = protocol_factory
        self._listening: tuple[ListeningSocket, ...] = (ListeningSocket(address),)
        self._closed = False
        self._forever: asyncio.Future[None] | None = None

    @property
    def sockets(self) -> tuple[ListeningSocket, ...]:
        return self._listening

    def accept(self, transport: SimulatedTransport) -> None:
        """Create the protocol of a new connection, in the server's process."""
        if transport.lost:
            return
        if self._closed:
            transport.abort()
            return
        transport.protocol = protocol = self._protocol_factory()
        protocol.connection_made(transport)
        transport.read_ready()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._listening = ()
            self._network.stop_listening(self)
            if self._forever is not None and not self._forever.done():
                self._forever.cancel()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    def is_serving(self) -> bool:
        return not self._closed

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        self._forever = asyncio.get_running_loop().create_future()
        try:
            await self._forever
        finally:
            self.close()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop
