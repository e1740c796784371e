"""The metadata of a cluster for the nodes that are restored. Pure.

The replicas of all partitions are placed on the new brokers (:mod:`.placement`). The replicas are in sync,
because they all have the same saved records, or no records. Old brokers and controllers are removed from the
metadata. After the restore, other nodes may be added. Nodes and clients use epochs and producer ids to see
which state is newer. The restore increases these numbers by a margin, because the old cluster may have used
higher numbers after the cut. The margin is added once for each restore since the cut.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from moldau.backup.cut_format import LogId
from moldau.backup.restore.placement import NewBroker, ReplicaPlacement
from moldau.cluster.image.image import ResourceType
from moldau.cluster.internal_topics import DECISIVE_TOPICS, decisive_minimum
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.storage.snapshots.replicated_log import LogPosition

__all__ = ["EPOCH_MARGIN", "OFFSET_MARGIN", "PRODUCER_ID_MARGIN", "new_metadata", "new_position"]

EPOCH_MARGIN: Final = 1_000
"""Epochs of the quorum and of leaders increase by one with each election."""
OFFSET_MARGIN: Final = 1_000_000
"""The epoch of a broker is the offset of the broker's registration in the metadata log."""
PRODUCER_ID_MARGIN: Final = 1_000_000_000
"""If the same producer id were allocated twice, a broker would drop valid records as duplicates."""


class NewGeneration(NamedTuple):
    """The generation that a restore begins, and the offset at which it begins in each diskless partition."""

    number: int
    starts: Mapping[LogId, int]
    """The offset after the last record of the cut, by partition. The partitions include the log of the first
    coordinator, because that log has the same generations as the cluster."""
    restores: int = 1
    """The number of restores since the cut, including this one. Each of these restores may have used higher
    numbers."""

    def starts_of(self, record: r.PartitionRecord) -> Sequence[int]:
        """The start offsets of all generations of a partition; empty for a partition that has no
        generations."""
        start = self.starts.get(LogId(record.topic_id, record.partition_id))
        if start is None:
            return ()
        known = tuple(record.generation_starts)
        # If the restore of a generation was not finished, that generation begins and ends at the start of the
        # new generation.
        return (*known, *(start for _ in range(self.number - len(known))))


def new_position(offset: int, epoch: int, restores: int) -> LogPosition:
    """The position at which the snapshot of the new metadata ends. ``offset`` and ``epoch`` are the end of
    the cut in the old metadata.

    ``restores`` is the number of restores since the cut, including this one.
    """
    return LogPosition(offset + restores * OFFSET_MARGIN, epoch + restores * EPOCH_MARGIN)


def new_metadata(
    records: Iterable[Message],
    brokers: Sequence[NewBroker],
    generation: NewGeneration,
    producer_id_seen: int,
) -> Iterator[Message]:
    """The records of the old image in their order, rewritten for the new brokers.

    ``producer_id_seen`` is the highest producer id in the objects that are newer than the cut. It is -1 if
    these objects contain no producer id.
    """
    placement = ReplicaPlacement(brokers)
    names: dict[UUID, str] = {}
    replica_counts: dict[str, int] = {}
    next_producer_id = producer_id_seen + 1
    for record in records:
        match record:
            case r.RegisterBrokerRecord():
                placement.note_old_broker(record.broker_id, record.rack)
            case r.RegisterControllerRecord():
                continue
            case r.TopicRecord():
                names[record.topic_id] = record.name
                yield record
            case r.PartitionRecord():
                replicas = placement.replicas(_target(record))
                name = names[record.topic_id]
                replica_counts[name] = min(len(replicas), replica_counts.get(name, len(replicas)))
                yield _partition(record, replicas, generation)
            case r.ProducerIdsRecord():
                next_producer_id = max(next_producer_id, record.next_producer_id)
            case r.ConfigRecord() if _is_of_old_node(record, placement):
                continue
            case r.ConfigRecord() if _is_decisive_minimum(record):
                # The controller increases the minimum again when the topic gets more replicas.
                minimum = decisive_minimum(replica_counts.get(record.resource_name, 1))
                yield replace(record, value=str(minimum))
            case _:
                yield record
    if next_producer_id > 0:
        next_producer_id += generation.restores * PRODUCER_ID_MARGIN
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id)


def _target(record: r.PartitionRecord) -> Sequence[int]:
    """The replicas after a reassignment in progress. The restore completes the reassignment."""
    kept = [each for each in record.replicas if each not in record.removing_replicas]
    return kept or record.replicas


def _partition(
    record: r.PartitionRecord, replicas: Sequence[NewBroker], generation: NewGeneration
) -> Message:
    """The partition with its new replicas. The first replica that is registered becomes the leader."""
    node_ids = [each.node_id for each in replicas]
    return replace(
        record,
        replicas=node_ids,
        isr=node_ids,
        removing_replicas=[],
        adding_replicas=[],
        leader=-1,
        leader_recovery_state=0,
        leader_epoch=record.leader_epoch + generation.restores * EPOCH_MARGIN,
        partition_epoch=record.partition_epoch + generation.restores * EPOCH_MARGIN,
        directories=[each.directory_id for each in replicas],
        eligible_leader_replicas=None,
        last_known_elr=None,
        generation_starts=generation.starts_of(record),
    )


def _is_decisive_minimum(record: r.ConfigRecord) -> bool:
    is_of_topic = record.resource_type == ResourceType.TOPIC and record.resource_name in DECISIVE_TOPICS
    return is_of_topic and record.name == "min.insync.replicas"


def _is_of_old_node(record: r.ConfigRecord, placement: ReplicaPlacement) -> bool:
    is_of_node = record.resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
    return is_of_node and record.resource_name not in ("", *map(str, placement.brokers))
