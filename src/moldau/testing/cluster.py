"""Several nodes in the test's own process, with free ports and a temporary folder. They are ready in about
a second.
"""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from types import TracebackType
from typing import Final, Self

from moldau.cluster.folders.formatter import FormatRequest, format_storage, new_cluster_id
from moldau.cluster.folders.meta_properties import read_meta_properties
from moldau.config.broker import BrokerConfig
from moldau.records.control import VotersRecordEntry
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.files.local_disk import LocalDisk
from moldau.server.development_cluster import (
    BROKER,
    CONTROLLER,
    ClusterNode,
    free_ports,
    initial_voters_of,
    plan_nodes,
    properties_of,
)
from moldau.testing.node_thread import NodeThread, Wires

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
SHORT_TIMEOUTS: Final = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "200",
}
"""Time-outs that are shorter than Kafka's defaults. With the default session time-out, a test would wait nine
seconds until an isolated broker is fenced.
"""


class Cluster:
    """Running brokers and controllers on loopback; a context manager.

    Brokers have the ids 1, 2, …, and controllers have the ids 101, 102, …. ``racks`` are assigned to the
    brokers round-robin. ``data`` is the folder of all files. When it is ``None``, a temporary folder is used
    and removed with the cluster. ``properties`` are Kafka's broker configs by name, for all nodes. By default
    time-outs are shorter than in Kafka. Each node runs on an event loop in its own thread, so that blocking
    clients may be used.
    """

    def __init__(
        self,
        *,
        brokers: int = 3,
        controllers: int = 1,
        racks: Sequence[str] = (),
        data: str | None = None,
        properties: Mapping[str, str] | None = None,
        static_voters: bool = True,
        log_dirs: int = 1,
    ) -> None:
        """``static_voters`` is False for a quorum whose voters can change (kraft.version 1).

        ``log_dirs`` is the number of log directories of each broker. Brokers with several log directories
        have no tiered topics, as in Kafka.
        """
        if brokers < 1 or controllers < 1 or log_dirs < 1:
            raise ValueError("a cluster has at least one broker, one controller and one log directory")
        self._size = (brokers, controllers)
        self._racks = tuple(racks)
        self._data = data
        self._properties = {**SHORT_TIMEOUTS, **(properties or {})}
        self._has_static_voters = static_voters
        self._log_dirs = log_dirs
        self._cluster_id = ""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._nodes: dict[int, ClusterNode] = {}
        self._wires = Wires({})
        self._running: dict[int, NodeThread] = {}
        self._own_properties: dict[int, dict[str, str]] = {}

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, for a client's ``bootstrap.servers``."""
        return self._addresses(BROKER)

    @property
    def bootstrap_controllers(self) -> str:
        """Addresses of all controllers, for a tool's ``--bootstrap-controller``."""
        return self._addresses(CONTROLLER)

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of all brokers, including stopped brokers."""
        return tuple(node.node_id for node in self._nodes.values() if node.role == BROKER)

    @property
    def controllers(self) -> tuple[int, ...]:
        """The ids of all controllers, including stopped controllers."""
        return tuple(node.node_id for node in self._nodes.values() if node.role == CONTROLLER)

    @property
    def data(self) -> str:
        """The folder that contains the nodes' folders."""
        if self._data is None:
            raise RuntimeError("the cluster has no folder before it is started")
        return self._data

    def address(self, node_id: int) -> str:
        """``HOST:PORT`` of a broker's listener for clients, or of a controller."""
        node = self._nodes[node_id]
        return f"{node.host}:{node.port}"

    def log_dirs(self, node_id: int) -> tuple[str, ...]:
        """The log directories of a node. The first directory contains the metadata log."""
        node = self._nodes[node_id]
        count = self._log_dirs if node.role == BROKER else 1
        return (node.data, *(f"{node.data}-disk{number}" for number in range(2, count + 1)))

    def active_controller(self) -> int | None:
        """The controller that considers itself the quorum's leader; None while there is no such
        controller."""
        for node_id in self.controllers:
            thread = self._running.get(node_id)
            if thread is not None and thread.ask(
                lambda node: node.metadata is not None and node.metadata.driver.is_leader
            ):
                return node_id
        return None

    def start(self) -> Self:
        """Start all nodes, and wait until every broker accepts clients. Raises the error of a failed
        start."""
        if self._data is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="moldau-")
            self._data = self._temporary.name
        entropy = SystemEntropy()
        brokers, controllers = self._size
        ports = free_ports(entropy, HOST, brokers + controllers)
        planned = plan_nodes(self._data, HOST, ports[:brokers], ports[brokers:], self._racks)
        self._nodes = {node.node_id: node for node in planned}
        self._wires = Wires({node.port: node.node_id for node in planned})
        first = read_meta_properties(LocalDisk(), planned[0].data)
        self._cluster_id = new_cluster_id(entropy) if first is None else first.cluster_id
        voters = () if self._has_static_voters else initial_voters_of(planned, entropy)
        for node in planned:
            self._format(node, voters if node.role == CONTROLLER else ())
        try:
            self._start(*self._nodes)
        except BaseException:
            self.stop()
            raise
        return self

    def add_controller(self, properties: Mapping[str, str] | None = None) -> int:
        """Start another controller, as an observer of the quorum. Returns its id. ``properties`` are configs
        that only this controller has.
        """
        port = free_ports(SystemEntropy(), HOST, 1)[0]
        node_id = max(self.controllers) + 1
        node = ClusterNode(node_id, CONTROLLER, HOST, port, f"{self.data}/{CONTROLLER}-{node_id}")
        self._nodes[node_id] = node
        self._wires.add(port, node_id)
        self._format(node, ())
        self._own_properties[node_id] = dict(properties or {})
        self._start(node_id)
        return node_id

    def stop(self) -> None:
        """Stop all nodes cleanly, brokers first, and remove a temporary folder. Does nothing when no node
        runs.
        """
        self._stop([node_id for node_id in self.brokers if node_id in self._running])
        self._stop([node_id for node_id in self.controllers if node_id in self._running])
        self._wires.isolated = frozenset()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
            self._data = None

    def kill(self, node_id: int) -> None:
        """End a node as SIGKILL does. Its memory stays in use until the process ends."""
        self._thread(node_id).kill()
        del self._running[node_id]

    def restart(self, node_id: int) -> None:
        """Start a node again, and wait until it serves clients. A node that is running is stopped cleanly
        first."""
        if node_id in self._running:
            self._stop([node_id])
        self._start(node_id)

    def isolate(self, node_id: int) -> None:
        """Disconnect a node from all other nodes in both directions. Connections break, and new connections
        fail.

        Clients can still reach the node.
        """
        self._thread(node_id)
        self._wires.isolated |= {node_id}
        for thread in self._running.values():
            thread.cut()

    def heal(self, node_id: int) -> None:
        """End the isolation of a node. Does nothing when the node is not isolated."""
        self._wires.isolated -= {node_id}

    def _format(self, node: ClusterNode, voters: tuple[VotersRecordEntry, ...]) -> None:
        request = FormatRequest(
            cluster_id=self._cluster_id,
            node_id=node.node_id,
            log_dirs=self.log_dirs(node.node_id),
            metadata_dir=node.data,
            ignore_formatted=True,
            initial_voters=voters,
        )
        format_storage(LocalDisk(), SystemEntropy(), request, SystemClock().now_ms())

    def _start(self, *node_ids: int) -> None:
        nodes = list(self._nodes.values())
        starting = []
        for node_id in node_ids:
            own = {**self._folders(node_id), **self._properties, **self._own_properties.get(node_id, {})}
            properties = properties_of(
                self._nodes[node_id], nodes, own, static_voters=self._has_static_voters
            )
            thread = NodeThread(BrokerConfig.from_properties(properties), self._wires)
            self._running[node_id] = thread
            starting.append(thread.start())
        done, late = wait(starting, START_TIMEOUT_S, return_when="FIRST_EXCEPTION")
        for each in late:
            each.cancel()
        for each in done:
            each.result()
        if late:
            raise TimeoutError(f"{len(late)} nodes did not start within {START_TIMEOUT_S:.0f} s")

    def _folders(self, node_id: int) -> dict[str, str]:
        folders = self.log_dirs(node_id)
        if len(folders) == 1:
            return {}
        return {"log.dirs": ",".join(folders), "remote.log.storage.system.enable": "false"}

    def _stop(self, node_ids: Sequence[int]) -> None:
        threads = [self._running.pop(node_id) for node_id in node_ids]
        stopping = [thread.begin_stop() for thread in threads]
        try:
            for each in stopping:
                each.result(STOP_TIMEOUT_S)
        finally:
            for thread in threads:
                thread.finish()

    def _thread(self, node_id: int) -> NodeThread:
        found = self._running.get(node_id)
        if found is None:
            raise RuntimeError(f"node {node_id} does not run")
        return found

    def _addresses(self, role: str) -> str:
        found = [f"{node.host}:{node.port}" for node in self._nodes.values() if node.role == role]
        if not found:
            raise RuntimeError("the cluster is not running")
        return ",".join(found)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
