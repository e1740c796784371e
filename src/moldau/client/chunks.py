"""Requests about partition chunks (KIP-1114)."""

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.client.cluster import Client, check, topic_problem
from moldau.client.errors import ToolError
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseChunk,
    MetadataResponsePartition,
)
from moldau.protocol.own.chunks.alter_chunk_assignments import (
    AlterChunkAssignment,
    AlterChunkAssignmentsRequest,
)
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksTopicPartition
from moldau.runtime.errors import ErrorCode, KafkaError

__all__ = ["ChunkedPartition", "alter_chunk", "chunked_partitions", "create_chunk"]


@dataclass(frozen=True, slots=True)
class ChunkedPartition:
    """A broker's description of a partition and its chunks."""

    topic: str
    index: int
    leader_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start_offset: int
    """The first offset of the active chunk. It is -1 if the partition has never had inactive chunks."""
    chunks: tuple[MetadataResponseChunk, ...]
    """The inactive chunks, by offset."""


async def chunked_partitions(client: Client, names: Sequence[str] | None) -> list[ChunkedPartition]:
    """All partitions of the named topics, or of all topics. Raises ``KafkaError`` for an unknown name."""
    request = MetadataRequest(
        topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_chunks=True,
    )
    found = []
    for topic in (await client.ask(request)).topics:
        if topic.error_code is not ErrorCode.none:
            raise KafkaError(topic.error_code, topic_problem(topic.name or "", topic.error_code))
        rows = sorted(topic.partitions, key=_index)
        found += [
            ChunkedPartition(
                topic.name or "",
                row.partition_index,
                row.leader_id,
                tuple(row.replica_nodes),
                tuple(row.isr_nodes),
                row.start_offset,
                tuple(row.chunks),
            )
            for row in rows
        ]
    return sorted(found, key=lambda each: (each.topic, each.index))


async def create_chunk(client: Client, topic: str, index: int, brokers: Sequence[int]) -> int:
    """End the active chunk of a partition, and begin the next chunk on these brokers. Returns the border.

    The request goes to the partition's leader. Raises ``KafkaError`` or ``ToolError``.
    """
    partition = await _partition(client, topic, index)
    if partition.leader_id < 0:
        raise KafkaError(ErrorCode.leader_not_available, f"partition {topic}-{index} has no leader")
    row = CreateChunksTopicPartition(topic_name=topic, partition_id=index, broker_ids=list(brokers))
    request = CreateChunksRequest(topic_partitions=[row], timeout_ms=client.timeout_ms)
    try:
        response = await client.ask(request, broker=partition.leader_id)
    except KafkaError as error:
        if error.code is not ErrorCode.unsupported_version:
            raise
        reason = f"broker {partition.leader_id}, which leads {topic}-{index}, has no support for chunks"
        raise ToolError(reason) from None
    check(response.error_code, response.error_message, f"{topic}-{index}")
    (result,) = response.results
    check(result.error_code, result.error_message, f"{topic}-{index}")
    border: int = result.start_offset
    return border


async def alter_chunk(
    client: Client, topic: str, index: int, start_offset: int, brokers: Sequence[int] | None
) -> None:
    """Begin to move an inactive chunk to these brokers. ``None`` cancels a move. Raises ``ToolError``."""
    row = AlterChunkAssignment(
        topic_name=topic,
        partition_id=index,
        start_offset=start_offset,
        broker_ids=None if brokers is None else list(brokers),
    )
    request = AlterChunkAssignmentsRequest(chunks=[row], timeout_ms=client.timeout_ms)
    response = await client.ask(request)
    about = f"{topic}-{index} at {start_offset}"
    check(response.error_code, response.error_message, about)
    for result in response.results:
        check(result.error_code, result.error_message, about)


def _index(row: MetadataResponsePartition) -> int:
    return row.partition_index


async def _partition(client: Client, topic: str, index: int) -> ChunkedPartition:
    # The metadata are fetched first, because they contain the addresses of the brokers.
    await client.metadata([])
    for partition in await chunked_partitions(client, [topic]):
        if partition.index == index:
            return partition
    raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic} has no partition {index}")
