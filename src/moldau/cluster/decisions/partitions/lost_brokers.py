"""Removes lost brokers from in-sync sets and leaderships. A broker that is no longer active is removed from
all its partitions (KIP-966). A broker with a failed log directory is removed only from the partitions that it
has in this directory (KIP-858)."""

from collections.abc import Callable

from moldau.cluster.decisions.partitions.leader_choice import recovery_election
from moldau.cluster.decisions.partitions.partition_change import Wanted, change_partition
from moldau.cluster.decisions.partitions.topic_rules import rules_of
from moldau.cluster.decisions.view import View
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.records.metadata import PartitionChangeRecord


def changes_without_broker(
    view: View, broker_id: int, is_incomplete: Callable[[Topic], bool] = lambda topic: False
) -> list[PartitionChangeRecord]:
    """Remove a broker that is no longer active in ``view`` from all in-sync sets and leaderships.

    For each topic, ``is_incomplete`` returns whether the broker's replicas may lack records that the broker
    had acknowledged (KIP-966).
    """
    return _changes(view, broker_id, lambda partition: True, is_incomplete)


def changes_without_directories(view: View, broker_id: int) -> list[PartitionChangeRecord]:
    """Remove a broker from in-sync sets and leaderships if its replica is in a directory that is not online
    in ``view``."""
    broker = view.image.brokers[broker_id]

    def is_lost(partition: PartitionRegistration) -> bool:
        return not broker.has_online(partition.directory_of(broker_id))

    return _changes(view, broker_id, is_lost, lambda topic: False)


def _changes(
    view: View,
    broker_id: int,
    is_lost: Callable[[PartitionRegistration], bool],
    is_incomplete: Callable[[Topic], bool],
) -> list[PartitionChangeRecord]:
    records = []
    for topic in view.image.topics:
        rules, incomplete = None, None
        for index, partition in enumerate(topic.partitions):
            is_member = broker_id in partition.isr or broker_id in partition.eligible_leader_replicas
            if not (is_member or partition.leader == broker_id) or not is_lost(partition):
                continue
            if rules is None:
                rules, incomplete = rules_of(view, topic), broker_id if is_incomplete(topic) else None
            isr = tuple(replica for replica in partition.isr if replica != broker_id)
            wanted = Wanted(isr=isr, election=recovery_election(view, topic), incomplete=incomplete)
            record = change_partition(topic.topic_id, index, partition, rules, wanted)
            if record is not None:
                records.append(record)
    return records
