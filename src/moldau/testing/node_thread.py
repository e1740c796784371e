"""A node of a cluster inside a test: an event loop in its own thread, with a network that can be
disconnected.
"""

import asyncio
import contextlib
import dataclasses
import errno
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from moldau.config.broker import BrokerConfig
from moldau.runtime.files.disk import Lock
from moldau.runtime.files.local_disk import LocalDisk
from moldau.runtime.machine import Machine
from moldau.server.node import ServerNode

CALL_TIMEOUT_S = 120.0

T = TypeVar("T")


class Wires:
    """The network between the nodes of a cluster. Threads share it."""

    def __init__(self, nodes_by_port: Mapping[int, int]) -> None:
        self._nodes = dict(nodes_by_port)
        self.isolated: frozenset[int] = frozenset()
        """Nodes that can reach no other node and that no other node can reach."""

    def add(self, port: int, node_id: int) -> None:
        """Add a node."""
        self._nodes = {**self._nodes, port: node_id}

    def are_cut(self, node_id: int, port: int) -> bool:
        """Whether a node cannot connect to a port, because one of the two nodes is isolated."""
        peer = self._nodes.get(port, node_id)
        return peer != node_id and not self.isolated.isdisjoint((node_id, peer))


class NodeLoop(asyncio.SelectorEventLoop):
    """An event loop that uses :class:`Wires` for connections to other nodes. It can also end like a killed
    process."""

    def __init__(self, node_id: int, wires: Wires) -> None:
        super().__init__()
        self._node_id = node_id
        self._wires = wires
        self._listening: list[asyncio.Server] = []
        self._sockets: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._outgoing: weakref.WeakKeyDictionary[asyncio.Transport, int] = weakref.WeakKeyDictionary()

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        """Open a connection. Raises ``OSError`` (EHOSTUNREACH) when the nodes are disconnected. The error is
        not that of a refused connection, because a refused connection is evidence that the other process has
        ended.
        """
        if self._wires.are_cut(self._node_id, port):
            raise OSError(errno.EHOSTUNREACH, f"node {self._node_id} is isolated from {host}:{port}")
        transport, protocol = await super().create_connection(protocol_factory, host, port)
        self._outgoing[transport] = port
        if self._wires.are_cut(self._node_id, port):
            transport.abort()
        return transport, protocol

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        server = await super().create_server(*args, **options)
        self._listening.append(server)
        return server

    def _make_socket_transport(self, *args: Any, **options: Any) -> asyncio.Transport:
        # asyncio calls this private method for connections that the node opens and for connections that it
        # accepts. asyncio has no public method that is called for both.
        made: asyncio.Transport = super()._make_socket_transport(*args, **options)  # type: ignore[misc]
        self._sockets.add(made)
        return made

    def cut(self) -> None:
        """Close this node's connections to nodes from which it is now isolated."""
        for transport, port in list(self._outgoing.items()):
            if self._wires.are_cut(self._node_id, port):
                transport.abort()

    def end_like_a_process(self) -> None:
        """Close all sockets and stop. The tasks get no notification."""
        for server in self._listening:
            server.close()
        for transport in list(self._sockets):
            transport.abort()
        # The transports close their sockets in the next iteration of the event loop, which is the loop's last
        # turn.
        self.call_soon(self.stop)


class _LockListingDisk(LocalDisk):
    """A disk that stores a list of its locks, so that the end of a process can free them."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: list[Lock] = []

    def lock(self, path: str) -> Lock:
        held = super().lock(path)
        self._locks.append(held)
        return held

    def free_locks(self) -> None:
        for lock in self._locks:
            with contextlib.suppress(OSError):
                lock.close()


class NodeThread:
    """A node, from its start to its stop or kill."""

    def __init__(self, config: BrokerConfig, wires: Wires) -> None:
        self.node_id = config.node_id
        self._config = config
        self._disk = _LockListingDisk()
        self._machine = dataclasses.replace(Machine.real(), disk=self._disk)
        self._loop = NodeLoop(config.node_id, wires)
        self._node = ServerNode(config, self._machine, format_new=False)
        self._killed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"moldau-node-{self.node_id}", daemon=True)
        self._thread.start()

    def start(self) -> "Future[Any]":
        """Begin to start the node. The returned future is done when the node serves clients."""
        return asyncio.run_coroutine_threadsafe(self._node.start(), self._loop)

    def ask(self, question: Callable[[ServerNode], T]) -> T:
        """Run a call to the node in the node's own thread."""

        async def asking() -> T:
            return question(self._node)

        return asyncio.run_coroutine_threadsafe(asking(), self._loop).result(CALL_TIMEOUT_S)

    def cut(self) -> None:
        """Call :meth:`NodeLoop.cut` in the node's thread, and wait until the call is done."""
        self.ask(lambda node: self._loop.cut())

    def begin_stop(self) -> "Future[None]":
        """Begin to stop the node cleanly."""
        return asyncio.run_coroutine_threadsafe(self._node.stop(), self._loop)

    def finish(self) -> None:
        """End the thread of a node that has stopped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._machine.close()

    def kill(self) -> None:
        """End the node as SIGKILL does. Written bytes are kept, and no further code of the node runs."""
        self._killed.set()
        self._loop.call_soon_threadsafe(self._loop.end_like_a_process)
        if not self._ended.wait(CALL_TIMEOUT_S):
            raise RuntimeError(f"node {self.node_id} did not end within {CALL_TIMEOUT_S:.0f} s")
        # A write that is in progress in a thread is completed, like a system call of a killed process.
        self._machine.close()
        self._disk.free_locks()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            # No `finally` block of a killed node's tasks may run. Therefore the tasks stay in memory
            # unchanged. This thread is a daemon. Python never returns to this thread, not even when the
            # process ends.
            unfinished = asyncio.all_tasks(self._loop)
            self._ended.set()
            if self._killed.is_set():
                threading.Event().wait()
            for task in unfinished:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
