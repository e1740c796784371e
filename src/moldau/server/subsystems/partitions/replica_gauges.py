"""Kafka's ReplicaManager gauges: this broker's replicas, and the state of the partitions that it leads."""

from collections.abc import Callable, Iterable, Sized

from moldau.cluster.image.partition import PartitionRegistration
from moldau.server.context import BrokerContext


class ReplicaGauges:
    """Gauges that are computed at each scrape."""

    def __init__(self, context: BrokerContext, offline: Sized) -> None:
        """``offline`` contains the replicas of this broker that cannot be opened. The constructor registers
        the gauges."""
        self._context = context
        partitions = context.partitions
        gauges: dict[str, Callable[[], float]] = {
            "PartitionCount": lambda: len(partitions),
            "LeaderCount": lambda: sum(partition.is_leader for partition in partitions),
            "OfflineReplicaCount": lambda: len(offline),
            "UnderReplicatedPartitions": lambda: sum(each.is_under_replicated for each in partitions),
            "UnderMinIsrPartitionCount": lambda: sum(spare < 0 for spare in self._spare_replicas()),
            "AtMinIsrPartitionCount": lambda: sum(spare == 0 for spare in self._spare_replicas()),
            "ReassigningPartitions": lambda: sum(row.is_reassigning for _, row in self._led()),
        }
        for name, read in gauges.items():
            context.meters.gauge("kafka.server", "ReplicaManager", name, read)

    def _spare_replicas(self) -> Iterable[int]:
        """For each partition that this broker leads: the number of in-sync replicas minus the minimum number
        of in-sync replicas."""
        configs = self._context.metadata.configs
        for topic, row in self._led():
            yield len(row.isr) - min(configs.topic(topic).min_insync_replicas, len(row.replicas))

    def _led(self) -> Iterable[tuple[str, PartitionRegistration]]:
        topics, local_id = self._context.view.image.topics, self._context.identity.node_id
        for partition in self._context.partitions:
            topic, index = topics.get(partition.topic), partition.key.partition
            if topic is None or topic.topic_id != partition.key.topic_id:
                continue
            if index < len(topic.partitions) and topic.partitions[index].leader == local_id:
                yield topic.name, topic.partitions[index]
