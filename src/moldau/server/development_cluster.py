"""A cluster on one machine that needs no configuration file. This module chooses its nodes, their ports and
their properties."""

import errno
import posixpath
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from moldau.cluster.folders.formatter import new_directory_id
from moldau.cluster.folders.initial_voters import initial_voter
from moldau.cluster.internal_topics import replication_factors
from moldau.config.node_combinations import ANY_ADDRESS
from moldau.records.control import VoterEndpoint, VotersRecordEntry
from moldau.runtime.entropy import Entropy

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
FIRST_BROKER_ID: Final = 1
FIRST_CONTROLLER_ID: Final = 101
_TAKEN: Final = (errno.EADDRINUSE, errno.EACCES)
_CLIENTS: Final = "PLAINTEXT"
_LOOPBACK: Final = "127.0.0.1"
_CONTROLLERS: Final = "CONTROLLER"
_PORTS: Final = range(15_000, 32_000)
"""The operating system assigns ports in this range only on explicit request, so a chosen port stays free."""


OWN_KEYS: Final = (
    "process.roles",
    "node.id",
    "broker.id",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "controller.listener.names",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "metadata.log.dir",
)
"""The keys whose values this module chooses. They differ from node to node, or they connect the nodes to one
cluster."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster: a broker or a controller."""

    node_id: int
    role: str
    host: str
    port: int
    data: str
    """The node's log folder."""
    rack: str | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.node_id}"


def plan_nodes(
    folder: str, host: str, broker_ports: Sequence[int], controller_ports: Sequence[int], racks: Sequence[str]
) -> list[ClusterNode]:
    """The nodes of a cluster in ``folder``. They are brokers 1, 2, … and controllers 101, 102, …

    Brokers are assigned to the racks round-robin. Without ``racks`` the brokers have no rack.
    """
    brokers = [
        ClusterNode(
            node_id,
            BROKER,
            host,
            port,
            f"{folder}/{BROKER}-{node_id}",
            racks[number % len(racks)] if racks else None,
        )
        for number, (node_id, port) in enumerate(enumerate(broker_ports, FIRST_BROKER_ID))
    ]
    controllers = [
        ClusterNode(node_id, CONTROLLER, host, port, f"{folder}/{CONTROLLER}-{node_id}")
        for node_id, port in enumerate(controller_ports, FIRST_CONTROLLER_ID)
    ]
    return brokers + controllers


def initial_voters_of(nodes: Sequence[ClusterNode], entropy: Entropy) -> tuple[VotersRecordEntry, ...]:
    """Return the first voters of a cluster with dynamic voters (KIP-853): all controllers in ``nodes``."""
    return tuple(
        initial_voter(
            node.node_id,
            new_directory_id(entropy),
            VoterEndpoint(_CONTROLLERS, node.host.strip("[]"), node.port),
        )
        for node in nodes
        if node.role == CONTROLLER
    )


def properties_of(
    node: ClusterNode,
    nodes: Sequence[ClusterNode],
    properties: Mapping[str, str],
    *,
    static_voters: bool = True,
) -> dict[str, str]:
    """Make the configuration of a node of ``nodes``. Values in ``properties`` replace other values.

    Internal topics have three replicas when there are three brokers. Topics are classic unless they set
    ``diskless.enable``, and they may be tiered. All nodes use one object store. It is a folder next to the
    nodes' folders. A broker that listens on all addresses advertises the loopback address. Consumer groups
    form almost immediately.
    """
    controllers = [each for each in nodes if each.role == CONTROLLER]
    broker_count = len(nodes) - len(controllers)
    listener = _CLIENTS if node.role == BROKER else _CONTROLLERS
    base = {
        "process.roles": node.role,
        "node.id": str(node.node_id),
        "controller.listener.names": _CONTROLLERS,
        "listeners": f"{listener}://{node.host}:{node.port}",
        "log.dirs": node.data,
        **replication_factors(min(3, broker_count)),
        "offsets.topic.num.partitions": "4",
        # The keys of the remote tier are the same as in `settings.development_config`, but here all brokers
        # share one store.
        "remote.log.storage.system.enable": "true",
        "rsm.config.url": f"file://{quote(posixpath.dirname(node.data))}/objects",
        "remote.log.metadata.topic.num.partitions": "4",
        "diskless.system.enable": "true",
        "diskless.storage.url": f"file://{quote(posixpath.dirname(node.data))}/objects",
        "diskless.metadata.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "100",
    }
    addresses = [f"{each.host}:{each.port}" for each in controllers]
    if static_voters:
        names = [str(each.node_id) for each in controllers]
        base["controller.quorum.voters"] = ",".join(map("@".join, zip(names, addresses, strict=True)))
    else:
        base["controller.quorum.bootstrap.servers"] = ",".join(addresses)
    if node.role == BROKER and node.host == ANY_ADDRESS:
        base["advertised.listeners"] = f"{_CLIENTS}://{_LOOPBACK}:{node.port}"
    if node.rack is not None:
        base["broker.rack"] = node.rack
    return {**base, **properties}


def free_ports(entropy: Entropy, host: str, count: int) -> list[int]:
    """Different unused ports of ``host``. Raises ``OSError`` when ``host`` is not this machine."""
    found: list[int] = []
    while len(found) < count:
        port = _PORTS.start + entropy.randrange(len(_PORTS))
        if port not in found and _is_free(host, port):
            found.append(port)
    return found


def _is_free(host: str, port: int) -> bool:
    addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as probe:
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            return False
    return True
