"""The cluster according to this broker's metadata: the current image, the broker's own identity, and the
addresses of other brokers."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.registrations import Endpoint
from moldau.network.client.node_connection import NodeAddress
from moldau.server.metadata.cluster_racks import ClusterRacks

NO_EPOCH: Final = -1
LEADER_EPOCH_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker, with its address for clients of one listener."""

    node_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


class ClusterView:
    """The cluster according to the newest committed metadata on this node."""

    def __init__(
        self,
        cluster_id: str,
        local_id: int,
        image: Callable[[], MetadataImage],
    ) -> None:
        self.cluster_id = cluster_id
        self.local_id = local_id
        self._image = image
        self.racks = ClusterRacks(local_id, image)

    @property
    def image(self) -> MetadataImage:
        return self._image()

    def controller_for_clients(self) -> int:
        """Return the broker that clients use as the controller. The result is this broker.

        Clients cannot connect to the active controller, so this broker forwards their requests to it.
        (Kafka's brokers, too, name a live broker and not the controller.) The result is -1 while this broker
        is not alive in the metadata.
        """
        return self.local_id if self._is_alive(self.local_id) else -1

    def finalized_features(self) -> tuple[int, dict[str, int]]:
        """Return the epoch and the levels of the cluster's features."""
        image = self.image
        return image.provenance.offset, {name: int(level) for name, level in image.features.items()}

    def brokers(self, listener_name: str, *, include_fenced: bool = False) -> Iterator[BrokerAddress]:
        """Brokers that have the listener, by id."""
        for broker in self.image.brokers.values():
            endpoint: Endpoint | None = broker.endpoint(listener_name)
            if endpoint is not None and (include_fenced or not broker.fenced):
                yield BrokerAddress(
                    broker.broker_id, endpoint.host, endpoint.port, broker.rack, broker.fenced
                )

    def broker(self, node_id: int, listener_name: str) -> BrokerAddress | None:
        """An unfenced broker."""
        return next((found for found in self.brokers(listener_name) if found.node_id == node_id), None)

    def address(self, node_id: int, listener_name: str) -> NodeAddress | None:
        """Return the address at which other brokers reach a broker, which may be fenced. The result is
        ``None`` while the address is unknown."""
        broker = self.image.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(listener_name)
        return None if endpoint is None else NodeAddress(endpoint.host, endpoint.port)

    def broker_epoch(self, broker_id: int) -> int:
        """The epoch of a broker's registration; -1 if the broker is unknown."""
        broker = self.image.brokers.get(broker_id)
        return NO_EPOCH if broker is None else broker.epoch

    def leader_epoch(self, topic_id: UUID, partition: int) -> int:
        """The leader epoch of a partition. If the partition is unknown, the result is the highest possible
        epoch, so that every epoch of a request counts as older."""
        found = self.image.topics.partition(topic_id, partition)
        return LEADER_EPOCH_MAX if found is None else found.leader_epoch

    def leader_of(self, topic: str, index: int) -> int | None:
        """The leader of a partition. The result is None when the partition does not exist, and -1 when it has
        no leader."""
        found = self.image.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index].leader

    def offline_replicas(self, partition: PartitionRegistration, alive: Container[int]) -> list[int]:
        """Return replicas whose brokers are not ``alive``, or whose log directories have failed (KIP-858)."""
        if partition.has_leader and len(partition.isr) == len(partition.replicas):
            # All replicas are in sync, so none of them is in a failed directory: a replica leaves the in-sync
            # set when its directory fails.
            return [replica for replica in partition.replicas if replica not in alive]
        brokers = self.image.brokers
        return [
            replica
            for replica in partition.replicas
            if replica not in alive or not brokers[replica].has_online(partition.directory_of(replica))
        ]

    def _is_alive(self, node_id: int) -> bool:
        broker = self.image.brokers.get(node_id)
        return broker is not None and not broker.fenced
