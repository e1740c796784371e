"""Finds the chunk that a request names, and makes the record of its change. Pure."""

from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from moldau.cluster.decisions.chunks.admission import original_replicas
from moldau.cluster.image.chunks import ChunkRegistration, position_of
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.records.metadata import ChunkChangeRecord
from moldau.runtime import ErrorCode, KafkaError

__all__ = ["FoundChunk", "changed", "chunk_of", "partition_of_id"]


class FoundChunk(NamedTuple):
    """An inactive chunk and its partition."""

    topic: Topic
    partition_index: int
    partition: PartitionRegistration
    chunk: ChunkRegistration


def partition_of_id(image: MetadataImage, topic_id: UUID, index: int) -> tuple[Topic, PartitionRegistration]:
    """Find a partition by the id of its topic. Raises ``KafkaError``: unknown_topic_id,
    unknown_topic_or_partition."""
    topic = image.topics.get_by_id(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_id, "No topic has this id.")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "The topic has no such partition.")
    return topic, topic.partitions[index]


def chunk_of(topic: Topic, index: int, start_offset: int) -> FoundChunk:
    """Find an inactive chunk by its start offset.

    Raises ``KafkaError``: invalid_request for the active chunk, and resource_not_found for an unknown chunk.
    """
    partition = topic.partitions[index]
    position = position_of(partition.chunks, start_offset)
    if position is not None:
        return FoundChunk(topic, index, partition, partition.chunks[position])
    if start_offset == partition.start_offset:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"The chunk at {start_offset} is the active one; its replicas are those of the partition.",
        )
    raise KafkaError(
        ErrorCode.resource_not_found, f"No inactive chunk of {topic.name}-{index} begins at {start_offset}."
    )


def changed(found: FoundChunk, target: ChunkRegistration) -> ChunkChangeRecord | None:
    """The record that changes a chunk to ``target``; ``None`` when nothing changes.

    A move ends when all its target brokers have the chunk (like KIP-455 for partitions).
    """
    chunk, target = found.chunk, _with_ended_move(target)
    if target == chunk:
        return None
    return ChunkChangeRecord(
        partition_id=found.partition_index,
        topic_id=found.topic.topic_id,
        start_offset=chunk.start_offset,
        chunk_epoch=chunk.epoch + 1,
        replicas=_if_new(target.replicas, chunk.replicas),
        directories=None if target.directories == chunk.directories else target.directories,
        isr=_if_new(target.isr, chunk.isr),
        removing_replicas=_if_new(target.removing_replicas, chunk.removing_replicas),
        adding_replicas=_if_new(target.adding_replicas, chunk.adding_replicas),
    )


def with_replicas(
    chunk: ChunkRegistration, replicas: tuple[int, ...], assigned: tuple[int, UUID] | None = None
) -> ChunkRegistration:
    """Return the registration of the chunk with these replicas and their log directories. An in-sync replica
    that is not among these replicas leaves the in-sync set.

    ``assigned`` is a broker and the log directory of its copy.
    """
    known = {each: chunk.directory_of(each) for each in replicas}
    if assigned is not None:
        known[assigned[0]] = assigned[1]
    return replace(
        chunk,
        replicas=replicas,
        directories=tuple(known[each] for each in replicas),
        isr=tuple(each for each in chunk.isr if each in replicas),
    )


def _with_ended_move(chunk: ChunkRegistration) -> ChunkRegistration:
    kept = original_replicas(chunk.replicas, chunk.removing_replicas)
    if not chunk.is_moving or not kept or not set(kept) <= set(chunk.isr):
        return chunk
    return replace(with_replicas(chunk, kept), adding_replicas=(), removing_replicas=())


def _if_new(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if new == old else new
