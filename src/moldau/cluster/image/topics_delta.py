"""Collects the changes of topics and partitions, from which the next image is made."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

from moldau.cluster.errors import MetadataError
from moldau.cluster.image.chunks import changed_chunks, chunk_from, with_chunk
from moldau.cluster.image.log_generations import FIRST_GENERATION, LogGenerations
from moldau.cluster.image.partition import NO_LEADER, LeaderRecoveryState, PartitionRegistration
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.protocol.records.metadata import (
    ChunkChangeRecord,
    ChunkRecord,
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1


class TopicDelta:
    """One topic that was created or changed."""

    __slots__ = ("_before", "kind", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: uuid.UUID, kind: str, before: Topic | None) -> None:
        self.name = name
        self.topic_id = topic_id
        self.kind = kind
        self._before = before
        self.partitions: dict[int, PartitionRegistration] = {}
        """Partitions that were created or changed, by index."""

    @property
    def is_new(self) -> bool:
        return self._before is None

    def before(self, index: int) -> PartitionRegistration | None:
        """The partition before the changes of this delta."""
        before = self._before
        return before.partitions[index] if before is not None and index < len(before.partitions) else None

    def partition(self, index: int) -> PartitionRegistration | None:
        """The partition with the changes of this delta."""
        changed = self.partitions.get(index)
        return changed if changed is not None else self.before(index)

    def topic(self) -> Topic:
        """The topic with the changes of this delta. Raises :class:`MetadataError` when partition numbers
        have a gap."""
        partitions = list(self._before.partitions) if self._before is not None else []
        for index, partition in sorted(self.partitions.items()):
            if index < len(partitions):
                partitions[index] = partition
            elif index == len(partitions):
                partitions.append(partition)
            else:
                raise MetadataError(f"topic {self.name} has partition {index} but not {len(partitions)}")
        return Topic(self.name, self.topic_id, tuple(partitions), self.kind)


class TopicsDelta:
    """Replays topic and partition records on top of a :class:`TopicsImage`."""

    def __init__(self, image: TopicsImage) -> None:
        self._image = image
        self._created: set[str] = set()
        self.changed: dict[uuid.UUID, TopicDelta] = {}
        self.removed: dict[uuid.UUID, Topic] = {}
        """Topics of the previous image that were removed. It does not contain topics that were created
        after that image."""

    def name_of(self, topic_id: uuid.UUID) -> str:
        """The name of an existing topic; raises :class:`MetadataError`."""
        delta = self.changed.get(topic_id)
        if delta is not None:
            return delta.name
        before = None if topic_id in self.removed else self._image.get_by_id(topic_id)
        if before is None:
            raise MetadataError(f"record of topic id {topic_id}, which does not exist")
        return before.name

    def replay_topic(self, record: TopicRecord) -> None:
        before = self._image.get(record.name)
        is_taken = record.name in self._created or (
            before is not None and before.topic_id not in self.removed
        )
        if is_taken:
            raise MetadataError(f"topic {record.name} is created twice")
        is_used = record.topic_id in self.changed or (
            record.topic_id not in self.removed and self._image.get_by_id(record.topic_id) is not None
        )
        if is_used:
            raise MetadataError(f"topic {record.name} is created with the id {record.topic_id} of another")
        self.changed[record.topic_id] = TopicDelta(record.name, record.topic_id, record.kind, None)
        self._created.add(record.name)

    def replay_remove_topic(self, record: RemoveTopicRecord) -> None:
        self._created.discard(self._delta(record.topic_id).name)
        del self.changed[record.topic_id]
        before = self._image.get_by_id(record.topic_id)
        if before is not None:
            self.removed[record.topic_id] = before

    def replay_partition(self, record: PartitionRecord) -> None:
        self._delta(record.topic_id).partitions[record.partition_id] = partition_of(record)

    def replay_partition_change(self, record: PartitionChangeRecord) -> None:
        delta, partition = self._partition(record)
        delta.partitions[record.partition_id] = changed_partition(partition, record)

    def replay_chunk(self, record: ChunkRecord) -> None:
        delta, partition = self._partition(record)
        chunks = with_chunk(partition.chunks, chunk_from(record))
        delta.partitions[record.partition_id] = replace(partition, chunks=chunks)

    def replay_chunk_change(self, record: ChunkChangeRecord) -> None:
        delta, partition = self._partition(record)
        chunks = changed_chunks(partition.chunks, record)
        if chunks is None:
            raise MetadataError(
                f"change of the chunk at {record.start_offset} of partition"
                f" {delta.name}-{record.partition_id}, which does not exist"
            )
        delta.partitions[record.partition_id] = replace(partition, chunks=chunks)

    def clear_chunk_starts(self) -> None:
        """Remove the start offsets of all active chunks, which is allowed because the cluster has no inactive
        chunks. The controller makes sure of this before it writes the record."""
        for topic in [topic for topic in self._image if topic.topic_id not in self.removed]:
            if any(partition.start_offset >= 0 for partition in topic.partitions):
                self._delta(topic.topic_id)
        for delta in self.changed.values():
            for index, partition in enumerate(delta.topic().partitions):
                if partition.start_offset >= 0:
                    delta.partitions[index] = replace(partition, start_offset=-1, start_timestamp_ms=-1)

    def replay_clear_elr(self, record: ClearElrRecord) -> None:
        """Clear the eligible leader replicas of one topic, or of all topics when no name is given."""
        live = [topic.topic_id for topic in self._image if topic.topic_id not in self.removed]
        for topic_id in dict.fromkeys([*live, *self.changed]):
            if record.topic_name in ("", self.name_of(topic_id)):
                delta = self._delta(topic_id)
                for index, partition in enumerate(delta.topic().partitions):
                    if partition.eligible_leader_replicas or partition.last_known_eligible_leader_replicas:
                        delta.partitions[index] = replace(
                            partition, eligible_leader_replicas=(), last_known_eligible_leader_replicas=()
                        )

    def move_to(self, image: TopicsImage) -> None:
        """Set the changes to the difference between the previous image and ``image``, which comes from a
        snapshot."""
        for topic in self._image:
            if image.get_by_id(topic.topic_id) is None:
                self.removed[topic.topic_id] = topic
        for topic in image:
            before = self._image.get_by_id(topic.topic_id)
            if before is topic or before == topic:
                continue
            delta = self.changed[topic.topic_id] = TopicDelta(topic.name, topic.topic_id, topic.kind, before)
            for index, partition in enumerate(topic.partitions):
                if delta.before(index) != partition:
                    delta.partitions[index] = partition

    def apply(self) -> TopicsImage:
        return self._image.updated(
            [delta.topic() for delta in self.changed.values()], list(self.removed.values())
        )

    def _partition(
        self, record: PartitionChangeRecord | ChunkRecord | ChunkChangeRecord
    ) -> tuple[TopicDelta, PartitionRegistration]:
        delta = self._delta(record.topic_id)
        partition = delta.partition(record.partition_id)
        if partition is None:
            raise MetadataError(
                f"change of partition {delta.name}-{record.partition_id}, which does not exist"
            )
        return delta, partition

    def _delta(self, topic_id: uuid.UUID) -> TopicDelta:
        delta = self.changed.get(topic_id)
        if delta is None:
            before = None if topic_id in self.removed else self._image.get_by_id(topic_id)
            if before is None:
                raise MetadataError(f"record of topic id {topic_id}, which does not exist")
            delta = self.changed[topic_id] = TopicDelta(before.name, topic_id, before.kind, before)
        return delta


def partition_of(record: PartitionRecord) -> PartitionRegistration:
    """The partition that a record describes."""
    return PartitionRegistration(
        replicas=tuple(record.replicas),
        isr=tuple(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_recovery_state=LeaderRecoveryState(record.leader_recovery_state),
        directories=tuple(record.directories),
        removing_replicas=tuple(record.removing_replicas),
        adding_replicas=tuple(record.adding_replicas),
        eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
        last_known_eligible_leader_replicas=tuple(record.last_known_elr or ()),
        owner=record.owner,
        generations=LogGenerations(tuple(record.generation_starts))
        if record.generation_starts
        else FIRST_GENERATION,
        start_offset=record.start_offset,
        start_timestamp_ms=record.start_timestamp,
    )


def changed_partition(
    partition: PartitionRegistration, record: PartitionChangeRecord
) -> PartitionRegistration:
    """The partition after a change. Every change raises the partition epoch. A change that names a leader
    also raises the leader epoch."""
    leader, leader_epoch = partition.leader, partition.leader_epoch
    if record.leader != NO_LEADER_CHANGE:
        leader, leader_epoch = record.leader, leader_epoch + 1
    recovery = partition.leader_recovery_state
    if record.leader_recovery_state != NO_RECOVERY_CHANGE:
        recovery = LeaderRecoveryState(record.leader_recovery_state)
    return replace(
        partition,
        leader=NO_LEADER if leader < 0 else leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition.partition_epoch + 1,
        leader_recovery_state=recovery,
        replicas=_new_or_old(record.replicas, partition.replicas),
        isr=_new_or_old(record.isr, partition.isr),
        directories=_directories(partition, record),
        removing_replicas=_new_or_old(record.removing_replicas, partition.removing_replicas),
        adding_replicas=_new_or_old(record.adding_replicas, partition.adding_replicas),
        eligible_leader_replicas=_new_or_old(
            record.eligible_leader_replicas, partition.eligible_leader_replicas
        ),
        last_known_eligible_leader_replicas=_new_or_old(
            record.last_known_elr, partition.last_known_eligible_leader_replicas
        ),
        start_offset=partition.start_offset if record.start_offset < 0 else record.start_offset,
        start_timestamp_ms=(
            partition.start_timestamp_ms if record.start_offset < 0 else record.start_timestamp
        ),
    )


def _new_or_old(new: Sequence[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)


def _directories(partition: PartitionRegistration, record: PartitionChangeRecord) -> tuple[uuid.UUID, ...]:
    return partition.directories if record.directories is None else tuple(record.directories)
