"""The next step for a partition's log on a broker, by the start of the active chunk in the image. Pure.

A log that begins before the active chunk is the log of an earlier chunk. The log of the active chunk begins
at the chunk's first offset or later. The same rules apply when the image changes and when the broker starts.
The broker may therefore crash between any two steps.
"""

from bisect import bisect_left
from enum import Enum
from typing import NamedTuple

from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration


class LogFate(Enum):
    """The next step for a log."""

    KEEP = "it is the log of the active chunk, or will be made to by the leader"
    CARVE = "it becomes the log of an inactive chunk"
    DISCARD = "it is the incomplete or the superfluous log of an earlier chunk"
    BEGIN = "it is empty, and begins at the border with the state there"


class LogRange(NamedTuple):
    """The offsets of the records on this broker's disk. The end is exclusive."""

    start_offset: int
    end_offset: int


def fate_of(
    log: LogRange, partition: PartitionRegistration, broker_id: int, *, has_state: bool, has_chunk: bool
) -> tuple[LogFate, ChunkRegistration | None]:
    """The next step for the log, and the inactive chunk to which the log belongs.

    ``has_state`` means that the state at the border was handed over to this broker. ``has_chunk`` means that
    the folder of the chunk exists already.
    """
    if partition.start_offset < 0 or log.start_offset >= partition.start_offset:
        return LogFate.KEEP, None
    if log.start_offset == log.end_offset:
        # A leader begins at the border even without the state, because it must not begin at another offset. A
        # replica in sync may begin with the state that was handed over. Other replicas must get the state
        # from the leader, because they may have missed a deletion of records: a deletion is acknowledged when
        # all replicas in sync have the new start of the log.
        is_leader, in_sync = broker_id == partition.leader, broker_id in partition.isr
        may_begin = broker_id in partition.replicas and (is_leader or (has_state and in_sync))
        return (LogFate.BEGIN if may_begin else LogFate.KEEP), None
    chunk = earlier_chunk(log, partition)
    if chunk is None or has_chunk or broker_id not in chunk.isr or log.end_offset <= chunk.end_offset:
        return LogFate.DISCARD, chunk
    return LogFate.CARVE, chunk


def earlier_chunk(log: LogRange, partition: PartitionRegistration) -> ChunkRegistration | None:
    """The inactive chunk of a log: the first chunk that ends at or after the log's first offset."""
    chunks = partition.chunks
    index = bisect_left(chunks, log.start_offset, key=lambda chunk: chunk.end_offset)
    return chunks[index] if index < len(chunks) else None
