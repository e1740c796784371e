"""Builds the segments of a unit: reads ranges of WAL objects side by side, scatters them, finishes them.

Knows an object store, a storage manager and where to run what takes time; nothing of leaders, coordinators
or engines. A broker and the tasks of an outside engine run the same code.
"""

import asyncio
import mmap
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

from moldau.runtime import Workers
from moldau.tiered.builder import BuiltSegment, finish_segment
from moldau.tiered.consolidation.plan import ObjectRange, PlannedSegment, plan_ranges
from moldau.tiered.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage_manager import LogSegmentData, RemoteStorageManager

__all__ = [
    "READS_IN_FLIGHT",
    "CopiesAttempts",
    "Ranges",
    "ScattersRanges",
    "build_segments",
    "copy_segment",
    "each_segment",
    "memory_bytes",
]

READS_IN_FLIGHT: Final = 8


class Ranges(Protocol):
    """Where the batches are: an ``ObjectStorage``, of which one call is needed."""

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        """Exactly ``size`` bytes. Raises ``StorageError``."""
        ...


@runtime_checkable
class ScattersRanges(Protocol):
    """A store that can put a range where it belongs without anything between."""

    async def scatter(self, key: str, offset: int, targets: Sequence[tuple[int, memoryview]]) -> None:
        """Fill each view with what lies so many bytes behind ``offset``. Raises ``StorageError``."""
        ...


@runtime_checkable
class CopiesAttempts(Protocol):
    """A storage manager that keeps apart what several attempts to build one segment write."""

    async def copy_attempt(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, attempt: str
    ) -> bytes:
        """``copy_log_segment_data``, with a name that only this attempt has."""
        ...


async def build_segments(
    segments: Sequence[PlannedSegment],
    storage: Ranges,
    workers: Workers,
    *,
    into: bytearray | memoryview | None = None,
    reads_in_flight: int = READS_IN_FLIGHT,
) -> list[BuiltSegment]:
    """:func:`each_segment`, all of them."""
    building = each_segment(segments, storage, workers, into=into, reads_in_flight=reads_in_flight)
    return [built async for built in building]


async def each_segment(
    segments: Sequence[PlannedSegment],
    storage: Ranges,
    workers: Workers,
    *,
    into: bytearray | memoryview | None = None,
    reads_in_flight: int = READS_IN_FLIGHT,
) -> AsyncIterator[BuiltSegment]:
    """The segments, in order, from the objects in ``storage``; each when it is built.

    ``into`` is memory to build them in, if it has :func:`memory_bytes` for them; memory that was used before
    is much faster than new memory. The segments live in it: it must not be used again before they are copied.

    Raises ``StorageError`` (``ObjectNotFoundError`` when batches have left the WAL meanwhile: plan anew) and
    :class:`CorruptRecordError` when the objects do not hold what was committed.
    """
    size_bytes = memory_bytes(segments)
    memory = memoryview(into if into is not None and len(into) >= size_bytes else mmap.mmap(-1, size_bytes))
    buffers: list[memoryview] = []
    position = 0
    for segment in segments:
        buffers.append(memory[position : position + segment.size_bytes])
        position += _whole_pages(segment.size_bytes)
    await _read(plan_ranges(segments), buffers, storage, reads_in_flight)
    for segment, buffer in zip(segments, buffers, strict=True):
        yield await workers.run(
            finish_segment,
            buffer,
            [run.as_batches for run in segment.runs],
            index_interval_bytes=segment.index_interval_bytes,
        )


def memory_bytes(segments: Iterable[PlannedSegment]) -> int:
    """What building takes in memory. Each begins on a page: files are written faster from there."""
    return sum(_whole_pages(segment.size_bytes) for segment in segments)


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


async def _read(
    ranges: Sequence[ObjectRange], buffers: Sequence[memoryview], storage: Ranges, in_flight: int
) -> None:
    waiting = iter(ranges)
    scatter = storage.scatter if isinstance(storage, ScattersRanges) else None

    async def reader() -> None:
        for wanted in waiting:
            targets = [
                (start, buffers[number][position : position + size_bytes])
                for number, position, start, size_bytes in wanted.pieces
            ]
            if scatter is not None:
                await scatter(wanted.object_key, wanted.start, targets)
                continue
            view = await storage.fetch(wanted.object_key, wanted.start, wanted.size_bytes)
            for start, target in targets:
                target[:] = view[start : start + len(target)]

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(in_flight, len(ranges))):
                group.create_task(reader())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def copy_segment(
    segment: PlannedSegment, built: BuiltSegment, manager: RemoteStorageManager, attempt: str = ""
) -> bytes | None:
    """Store a built segment; what the storage manager wants to have in the segment's metadata.

    ``attempt`` (letters, digits, ``-`` and ``_``, at most 40) tells this copy from those of other tasks that
    may be at work on the same plan; the answer names it. A storage manager that knows no attempts is given
    the segment as it is: whoever builds it, its bytes are the same.

    Raises ``RemoteStorageError``.
    """
    data = LogSegmentData(
        log_segment=built.log,
        offset_index=built.offset_index,
        time_index=built.time_index,
        transaction_index=built.transaction_index or None,
        producer_snapshot=built.producer_snapshot,
        leader_epochs=built.leader_epoch_checkpoint,
    )
    if attempt and isinstance(manager, CopiesAttempts):
        return await manager.copy_attempt(segment.metadata, data, attempt)
    return await manager.copy_log_segment_data(segment.metadata, data)
