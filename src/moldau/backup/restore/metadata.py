"""The metadata of a cluster for the one node that is restored. Pure.

The node takes over every replica. Old brokers and controllers are left out; new ones may be added after the
restore. All numbers by which nodes and clients tell newer from older are raised by a margin, because the old
cluster may have given out more of them after the cut. Each restore since the cut adds a margin.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from moldau.backup.cut import LogId
from moldau.cluster.image.image import ResourceType
from moldau.cluster.internal_topics import DECISIVE_TOPICS, decisive_minimum
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.storage.snapshots.replicated_log import LogPosition

__all__ = ["EPOCH_MARGIN", "OFFSET_MARGIN", "PRODUCER_ID_MARGIN", "NewNode", "new_metadata", "new_position"]

EPOCH_MARGIN: Final = 1_000
"""Epochs of the quorum and of leaders grow by one with each election."""
OFFSET_MARGIN: Final = 1_000_000
"""The epoch of a broker is the metadata offset of its registration."""
PRODUCER_ID_MARGIN: Final = 1_000_000_000
"""A producer id that is given twice would make a broker drop records as duplicates."""


class NewNode(NamedTuple):
    """The node that gets all replicas, and the id of its log directory."""

    node_id: int
    directory_id: UUID


class NewGeneration(NamedTuple):
    """The generation that a restore begins, and where it begins in each diskless partition."""

    number: int
    starts: Mapping[LogId, int]
    """The offset after the last record of the cut, by partition. The first coordinator's log is among the
    partitions, because its generations are those of the cluster.
    """
    restores: int = 1
    """The number of restores since the cut, including this one. Each of them may have given out numbers."""

    def starts_of(self, record: r.PartitionRecord) -> Sequence[int]:
        """The starts of all generations of a partition; empty for a partition that has no generations."""
        start = self.starts.get(LogId(record.topic_id, record.partition_id))
        if start is None:
            return ()
        known = tuple(record.generation_starts)
        # Generations of restores that were not finished begin, and end, where this one begins.
        return (*known, *(start for _ in range(self.number - len(known))))


def new_position(offset: int, epoch: int, restores: int) -> LogPosition:
    """The end of the snapshot of the new metadata, for a cut at an offset and an epoch of the old one.

    ``restores`` is the number of restores since the cut, including this one.
    """
    return LogPosition(offset + restores * OFFSET_MARGIN, epoch + restores * EPOCH_MARGIN)


def new_metadata(
    records: Iterable[Message], node: NewNode, generation: NewGeneration, producer_id_seen: int
) -> Iterator[Message]:
    """The records of the old image, rewritten for the new node.

    ``producer_id_seen`` is the highest producer id in the objects that are newer than the cut, or -1.
    """
    next_producer_id = producer_id_seen + 1
    for record in records:
        match record:
            case r.RegisterBrokerRecord() | r.RegisterControllerRecord():
                continue
            case r.PartitionRecord():
                yield _partition(record, node, generation)
            case r.ProducerIdsRecord():
                next_producer_id = max(next_producer_id, record.next_producer_id)
            case r.ConfigRecord() if _is_of_old_node(record, node):
                continue
            case r.ConfigRecord() if _is_decisive_minimum(record):
                # The controller raises it again when the topic gets more replicas.
                yield replace(record, value=str(decisive_minimum(1)))
            case _:
                yield record
    if next_producer_id > 0:
        next_producer_id += generation.restores * PRODUCER_ID_MARGIN
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id)


def _partition(record: r.PartitionRecord, node: NewNode, generation: NewGeneration) -> Message:
    """The partition with one replica, which becomes the leader when the node is registered."""
    return replace(
        record,
        replicas=[node.node_id],
        isr=[node.node_id],
        removing_replicas=[],
        adding_replicas=[],
        leader=-1,
        leader_recovery_state=0,
        leader_epoch=record.leader_epoch + generation.restores * EPOCH_MARGIN,
        partition_epoch=record.partition_epoch + generation.restores * EPOCH_MARGIN,
        directories=[node.directory_id],
        eligible_leader_replicas=None,
        last_known_elr=None,
        generation_starts=generation.starts_of(record),
    )


def _is_decisive_minimum(record: r.ConfigRecord) -> bool:
    is_of_topic = record.resource_type == ResourceType.TOPIC and record.resource_name in DECISIVE_TOPICS
    return is_of_topic and record.name == "min.insync.replicas"


def _is_of_old_node(record: r.ConfigRecord, node: NewNode) -> bool:
    is_of_node = record.resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return is_of_node and record.resource_name not in ("", str(node.node_id))
