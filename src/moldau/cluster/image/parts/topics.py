"""Topics with their partitions and chunks."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from moldau.cluster.image.chunks import chunk_record
from moldau.cluster.image.image import CHUNK_FEATURE
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.parts.part import ImageChanges, ImagePart
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_delta import TopicsDelta
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

CHUNKS: Final = SupportedFeature(CHUNK_FEATURE, 0, 1)
"""From level 1 on, partitions may have inactive chunks. The records of chunks exist only in Moldau, and the
records of partitions have two more fields."""


def topic_records(topic: Topic, start: int = 0, count: int | None = None) -> Iterator[Message]:
    """The records of a topic. They are the topic's own record, unless ``start`` is greater than 0, and the
    records of ``count`` partitions from ``start`` on."""
    if start == 0:
        yield r.TopicRecord(name=topic.name, topic_id=topic.topic_id, kind=topic.kind)
    some = islice(enumerate(topic.partitions), start, None if count is None else start + count)
    for index, partition in some:
        yield _partition(topic, index, partition)
        for chunk in partition.chunks:
            yield chunk_record(topic.topic_id, index, chunk)


def _partition(topic: Topic, index: int, partition: PartitionRegistration) -> Message:
    return r.PartitionRecord(
        partition_id=index,
        topic_id=topic.topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        eligible_leader_replicas=partition.eligible_leader_replicas or None,
        last_known_elr=partition.last_known_eligible_leader_replicas or None,
        owner=partition.owner,
        generation_starts=partition.generations.starts,
        start_offset=partition.start_offset,
        start_timestamp=partition.start_timestamp_ms,
    )


def _to_records(topics: TopicsImage) -> Iterator[Message]:
    for topic in topics:
        yield from topic_records(topic)


def _on_feature(delta: ImageChanges, record: r.FeatureLevelRecord) -> None:
    if record.name == CHUNK_FEATURE and record.feature_level == 0:
        delta.changes(TOPICS).clear_chunk_starts()


_PARTITION_VERSIONS: Final = ((23, 2), (17, 1), (0, 0))

TOPICS: Final = ImagePart[TopicsImage, TopicsDelta](
    name="topics",
    begin=TopicsDelta,
    records={
        r.TopicRecord: TopicsDelta.replay_topic,
        r.RemoveTopicRecord: TopicsDelta.replay_remove_topic,
        r.PartitionRecord: TopicsDelta.replay_partition,
        r.PartitionChangeRecord: TopicsDelta.replay_partition_change,
        r.ChunkRecord: TopicsDelta.replay_chunk,
        r.ChunkChangeRecord: TopicsDelta.replay_chunk_change,
        r.ClearElrRecord: TopicsDelta.replay_clear_elr,
    },
    to_records=_to_records,
    effects={r.FeatureLevelRecord: _on_feature},
    versions={r.PartitionRecord: _PARTITION_VERSIONS, r.PartitionChangeRecord: _PARTITION_VERSIONS},
    features={r.ChunkRecord: CHUNKS, r.ChunkChangeRecord: CHUNKS},
)
