"""The context that all subsystems of a node share; made before the first of them."""

from dataclasses import dataclass
from uuid import UUID

from moldau.cluster.controller.channel import ControllerChannel
from moldau.config.broker import BrokerConfig
from moldau.replication.partition import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.machine import Machine
from moldau.server.authorization import Authorizer
from moldau.server.bound_listeners import BoundListeners
from moldau.server.identity import Identity
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.metadata.view import MetadataView
from moldau.server.observing.meters import NodeMeters
from moldau.server.topics.registry import PartitionRegistry
from moldau.storage.log_manager import LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """The parts of a node that every subsystem may use, whatever the node's roles."""

    machine: Machine
    config: BrokerConfig
    """The static configuration; ``metadata.configs.broker`` is the effective one."""
    identity: Identity
    metadata: MetadataView
    logs: LogManager
    meters: NodeMeters
    listeners: BoundListeners


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext(NodeContext):
    """A node's parts that the subsystems of a broker may use, too."""

    incarnation_id: UUID
    """Id of this process: the broker registers with it."""
    view: ClusterView
    channel: ControllerChannel
    """Leads to the active controller, wherever it is."""
    partitions: PartitionRegistry
    arrivals: WaitingRoom[PartitionKey]
    """Wakes requests that wait for a partition."""
    authorizer: Authorizer
