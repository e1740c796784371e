"""The inactive chunks of a partition (KIP-1114). Pure.

A partition with chunks consists of inactive chunks and one active chunk. The records of inactive chunks never
change. The partition's ordinary replicas store the active chunk. Their log begins at ``start_offset`` of the
partition's registration.
"""

import uuid
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from moldau.cluster.image.directories import MIGRATING_DIRECTORY
from moldau.protocol.records.metadata import ChunkChangeRecord, ChunkRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRegistration:
    """An inactive chunk. Its offsets, times and size are fixed, but its replicas may change."""

    start_offset: int
    """The first offset, which identifies the chunk in its partition."""
    stop_offset: int
    """The last offset for consumers, inclusive. It is always equal to ``end_offset``."""
    end_offset: int
    """The last offset of the chunk, inclusive."""
    start_timestamp_ms: int
    """All records of the chunk were appended at or after this time; -1 if the time is unknown."""
    max_timestamp_ms: int
    """The largest timestamp; -1 if the records have no timestamps."""
    size_bytes: int
    """Size of the segments when the chunk ended."""
    epoch: int
    """The version of this registration. It rises with every change of the chunk's replicas."""
    replicas: tuple[int, ...]
    """The brokers that have a copy of the chunk, or that are making one. The first broker is the preferred
    one."""
    directories: tuple[uuid.UUID, ...] = ()
    isr: tuple[int, ...] = ()
    """The replicas that have the whole chunk. A fenced broker stays in this set. The chunk does not change
    while the broker is away, so the broker's copy is still complete."""
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    def directory_of(self, broker_id: int) -> uuid.UUID:
        """The log directory of a broker's copy. If no directory is known, the result is a reserved id."""
        if broker_id in self.replicas:
            index = self.replicas.index(broker_id)
            if index < len(self.directories):
                return self.directories[index]
        return MIGRATING_DIRECTORY

    @property
    def is_moving(self) -> bool:
        """Whether a change of the chunk's replicas is in progress."""
        return bool(self.adding_replicas or self.removing_replicas)


Chunks = tuple[ChunkRegistration, ...]
"""The inactive chunks of a partition, by ascending offsets."""


def chunk_from(record: ChunkRecord) -> ChunkRegistration:
    """The chunk that a record describes."""
    return ChunkRegistration(
        start_offset=record.start_offset,
        stop_offset=record.stop_offset,
        end_offset=record.end_offset,
        start_timestamp_ms=record.start_timestamp,
        max_timestamp_ms=record.max_timestamp,
        size_bytes=record.size_bytes,
        epoch=record.chunk_epoch,
        replicas=tuple(record.replicas),
        directories=tuple(record.directories),
        isr=tuple(record.isr),
        adding_replicas=tuple(record.adding_replicas),
        removing_replicas=tuple(record.removing_replicas),
    )


def chunk_record(topic_id: uuid.UUID, partition_id: int, chunk: ChunkRegistration) -> ChunkRecord:
    """The record that describes a chunk."""
    return ChunkRecord(
        partition_id=partition_id,
        topic_id=topic_id,
        start_offset=chunk.start_offset,
        start_timestamp=chunk.start_timestamp_ms,
        stop_offset=chunk.stop_offset,
        end_offset=chunk.end_offset,
        chunk_epoch=chunk.epoch,
        replicas=chunk.replicas,
        directories=chunk.directories,
        isr=chunk.isr,
        removing_replicas=chunk.removing_replicas,
        adding_replicas=chunk.adding_replicas,
        max_timestamp=chunk.max_timestamp_ms,
        size_bytes=chunk.size_bytes,
    )


def position_of(chunks: Chunks, start_offset: int) -> int | None:
    """Return the index of the chunk with this start offset."""
    index = bisect_right(chunks, start_offset, key=_start) - 1
    return index if index >= 0 and chunks[index].start_offset == start_offset else None


def chunk_containing(chunks: Chunks, offset: int) -> ChunkRegistration | None:
    """The chunk that contains an offset."""
    index = bisect_right(chunks, offset, key=_start) - 1
    return chunks[index] if index >= 0 and offset <= chunks[index].end_offset else None


def with_chunk(chunks: Chunks, chunk: ChunkRegistration) -> Chunks:
    """Return these chunks with ``chunk`` added. It replaces an existing chunk with the same start offset."""
    index = bisect_right(chunks, chunk.start_offset, key=_start)
    known = index > 0 and chunks[index - 1].start_offset == chunk.start_offset
    return (*chunks[: index - known], chunk, *chunks[index:])


def changed_chunks(chunks: Chunks, record: ChunkChangeRecord) -> Chunks | None:
    """Return the chunks after a change of one chunk. The result is ``None`` if this chunk does not exist."""
    index = position_of(chunks, record.start_offset)
    if index is None:
        return None
    if record.replicas is not None and not record.replicas:
        return (*chunks[:index], *chunks[index + 1 :])
    chunk = chunks[index]
    changed = replace(
        chunk,
        epoch=record.chunk_epoch,
        replicas=_new_or_old(record.replicas, chunk.replicas),
        directories=_new_or_old(record.directories, chunk.directories),
        isr=_new_or_old(record.isr, chunk.isr),
        removing_replicas=_new_or_old(record.removing_replicas, chunk.removing_replicas),
        adding_replicas=_new_or_old(record.adding_replicas, chunk.adding_replicas),
    )
    return (*chunks[:index], changed, *chunks[index + 1 :])


def _start(chunk: ChunkRegistration) -> int:
    return chunk.start_offset


def _new_or_old(new: Sequence[Any] | None, old: tuple[Any, ...]) -> tuple[Any, ...]:
    return old if new is None else tuple(new)
