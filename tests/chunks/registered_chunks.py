"""Chunks and their partition, as the metadata image contains them."""

from uuid import UUID

from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration


def chunk(
    start: int, end: int, *isr: int, start_timestamp_ms: int = -1, max_timestamp_ms: int = -1
) -> ChunkRegistration:
    """An inactive chunk from one offset to another, inclusive."""
    return ChunkRegistration(
        start_offset=start,
        stop_offset=end,
        end_offset=end,
        start_timestamp_ms=start_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        size_bytes=0,
        epoch=0,
        replicas=(1, 2),
        isr=isr,
    )


def partition(*chunks: ChunkRegistration, replicas: tuple[int, ...] = (1, 2)) -> PartitionRegistration:
    """A partition whose active chunk begins after these chunks."""
    return PartitionRegistration(
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=3,
        partition_epoch=5,
        directories=(UUID(int=100),) * len(replicas),
        start_offset=chunks[-1].end_offset + 1 if chunks else -1,
        chunks=chunks,
    )
