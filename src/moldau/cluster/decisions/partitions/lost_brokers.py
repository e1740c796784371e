"""A broker that is no longer active leaves the in-sync sets and leaderships of its partitions (KIP-966)."""

from collections.abc import Callable

from moldau.cluster.decisions.partitions.elections import recovery_election
from moldau.cluster.decisions.partitions.partition_change import Wanted, change_partition, rules_of
from moldau.cluster.decisions.view import View
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.records.metadata import PartitionChangeRecord


def changes_without_broker(
    view: View, broker_id: int, is_incomplete: Callable[[Topic], bool] = lambda topic: False
) -> list[PartitionChangeRecord]:
    """Remove a broker that is no longer active in ``view`` from all in-sync sets and leaderships.

    ``is_incomplete``: whether its replicas of a topic may lack records that it had acknowledged (KIP-966).
    """
    records = []
    for topic in view.image.topics:
        rules, incomplete = None, None
        for index, partition in enumerate(topic.partitions):
            is_member = broker_id in partition.isr or broker_id in partition.eligible_leader_replicas
            if not is_member and partition.leader != broker_id:
                continue
            if rules is None:
                rules, incomplete = rules_of(view, topic), broker_id if is_incomplete(topic) else None
            isr = tuple(replica for replica in partition.isr if replica != broker_id)
            wanted = Wanted(isr=isr, election=recovery_election(view, topic), incomplete=incomplete)
            record = change_partition(topic.topic_id, index, partition, rules, wanted)
            if record is not None:
                records.append(record)
    return records
