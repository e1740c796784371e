"""A node in the test's own process, with a free port and a temporary folder. It is ready in a fraction of
a second.
"""

import asyncio
import concurrent.futures
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from moldau.runtime.machine import Machine
from moldau.server import node as server
from moldau.server.settings import development_config

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0


class Node:
    """A running node on loopback; a context manager.

    ``data`` is the folder of all files. When it is ``None``, a temporary folder is used and removed with the
    node. ``port`` 0 uses a free port. ``properties`` are Kafka's broker configs by name. With ``diskless``,
    topics are diskless by default, as in ``moldau dev``. The node runs on an event loop in its own thread, so
    that blocking clients may be used.
    """

    def __init__(
        self,
        *,
        data: str | None = None,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        diskless: bool = False,
    ) -> None:
        self._data = data
        self._port = port
        self._properties = dict(properties or {})
        self._diskless = diskless
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._node: server.ServerNode | None = None
        self._bootstrap_servers = ""

    @property
    def bootstrap_servers(self) -> str:
        """``HOST:PORT`` for a client's ``bootstrap.servers``."""
        if not self._bootstrap_servers:
            raise RuntimeError("the node is not running")
        return self._bootstrap_servers

    @property
    def data(self) -> str:
        """The folder that contains the node's data."""
        if self._data is None:
            raise RuntimeError("the node has no folder before it is started")
        return self._data

    @property
    def monitoring_url(self) -> str:
        """Base URL of ``/metrics`` and ``/health``. It needs the property ``metrics.listener``."""
        if self._node is None or self._node.monitoring_port is None:
            raise RuntimeError("the node serves no metrics: set metrics.listener")
        return f"http://127.0.0.1:{self._node.monitoring_port}"

    def start(self) -> Self:
        """Start the node, and wait until it accepts clients. Raises the error of a failed start."""
        if self._data is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="moldau-")
            self._data = self._temporary.name
        started: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)), name="moldau-node", daemon=True
        )
        self._thread.start()
        try:
            self._bootstrap_servers = started.result(START_TIMEOUT_S)
        except BaseException:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None
            self._forget_folder()
            raise
        return self

    async def _run(self, started: "concurrent.futures.Future[str]") -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            config = development_config(self.data, self._port, self._properties, diskless=self._diskless)
            node = server.ServerNode(config, Machine.real(), format_new=True)
            address = await node.start()
            self._node = node
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(str(address))
        try:
            await self._stop.wait()
        finally:
            await node.stop()

    def stop(self) -> None:
        """Stop the node cleanly, and remove its temporary folder. Does nothing when the node is not
        running.
        """
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the node did not stop within {STOP_TIMEOUT_S:.0f} s")
        self._thread = None
        self._bootstrap_servers = ""
        self._forget_folder()

    def _forget_folder(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
            self._data = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
