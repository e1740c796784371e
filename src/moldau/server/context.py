"""The contexts with the objects that the subsystems of a node share. A context is made before the first
subsystem."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.image.registrations import FeatureRanges
from moldau.config.broker import BrokerConfig
from moldau.network.authorization import Authorizer
from moldau.protocol.partitions import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.machine import Machine
from moldau.server.bound_listeners import BoundListeners
from moldau.server.identity import Identity
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.metadata.metadata_view import MetadataView
from moldau.server.observing.meters import NodeMeters
from moldau.server.topics.registry import PartitionRegistry
from moldau.storage.log_manager import LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """The parts of a node that every subsystem may use, in every role of the node."""

    machine: Machine
    config: BrokerConfig
    """The static configuration. ``metadata.configs.broker`` is the effective configuration."""
    identity: Identity
    metadata: MetadataView
    logs: LogManager
    meters: NodeMeters
    listeners: BoundListeners
    features: FeatureRanges
    """The feature levels that this version of the software supports."""
    fail: Callable[[str], None]
    """Stops the node when it cannot continue. The argument is the reason."""
    authorizer: Authorizer


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext(NodeContext):
    """The parts of a node that only the subsystems of a broker may use, in addition to the shared parts."""

    incarnation_id: UUID
    """The id of this process. The broker registers with this id."""
    view: ClusterView
    channel: ControllerChannel
    """The channel to the active controller, in this process or in another process."""
    partitions: PartitionRegistry
    arrivals: WaitingRoom[PartitionKey]
    """Wakes the requests that wait for a change of a partition."""
