"""Adjusts ``min.insync.replicas`` of the topics that must not lose any record. The value depends on the
number of their replicas. Pure.

When such a topic is created, its minimum depends on its replication factor at that time. When reassignments
have given each partition at least two replicas, the minimum becomes 2. When reassignments leave only one
replica, the minimum becomes 1, because a minimum of 2 would then stop all writes.
"""

from collections.abc import Sequence
from dataclasses import replace

from moldau.cluster.decisions.partitions.election_causes import eligible_changes
from moldau.cluster.decisions.partitions.topic_rules import MIN_IN_SYNC_REPLICAS, min_in_sync
from moldau.cluster.decisions.view import View
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image import ResourceType
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DECISIVE_TOPICS, decisive_minimum
from moldau.protocol.records.metadata import ConfigRecord, PartitionChangeRecord
from moldau.protocol.schema import Message


def minima_after(view: View, records: Sequence[Message]) -> list[Message]:
    """Return records that adjust the minima when ``records`` complete reassignments."""
    moved = {
        record.topic_id
        for record in records
        # A reassignment that only adds replicas ends with a record that changes ``adding_replicas`` and not
        # ``replicas``.
        if isinstance(record, PartitionChangeRecord)
        and (record.replicas is not None or record.adding_replicas is not None)
    }
    names = [name for name in DECISIVE_TOPICS if _topic_id(view, name) in moved]
    if not names:
        return []
    after = image_of(records, view.image)
    changes: list[Message] = []
    for name in sorted(names):
        topic = after.topics.get(name)
        assert topic is not None
        fewest = _fewest_replicas(topic)
        wanted = decisive_minimum(fewest)
        if wanted <= min_in_sync(view, name) <= fewest:
            continue
        change = ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name=name,
            name=MIN_IN_SYNC_REPLICAS,
            value=str(wanted),
        )
        changes += [change, *eligible_changes(replace(view, image=image_of([change], after)), [name])]
    return changes


def _topic_id(view: View, name: str) -> object:
    topic = view.image.topics.get(name)
    return None if topic is None else topic.topic_id


def _fewest_replicas(topic: Topic) -> int:
    """Find the partition that has the fewest replicas, and return the number of its replicas. For a partition
    in reassignment, the number at the end of the reassignment is used."""
    return min(len(each.replicas) - len(each.adding_replicas) for each in topic.partitions)
