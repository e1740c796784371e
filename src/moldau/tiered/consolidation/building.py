"""Builds the segments of a unit. It reads ranges of WAL objects in parallel, copies their bytes to the
segments, and finishes the segments.

It depends only on an object store, a storage manager and workers. Leaders, coordinators and engines are not
needed, so a broker and the tasks of an outside engine run the same code.
"""

import asyncio
import mmap
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Final, Protocol, runtime_checkable

from moldau.objects.storage import Ranges, fetch_once
from moldau.runtime import Workers
from moldau.tiered.consolidation.markers import batch_of_marker, is_marker
from moldau.tiered.consolidation.plan import PlannedRange, PlannedSegment, plan_ranges
from moldau.tiered.consolidation.side_by_side import side_by_side
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage.segment_builder import BuiltSegment, finish_segment
from moldau.tiered.storage.storage_manager import LogSegmentData, RemoteStorageManager

__all__ = [
    "READS_IN_FLIGHT",
    "CopiesAttempts",
    "ScattersRanges",
    "build_and_copy",
    "build_segments",
    "copy_segment",
    "each_segment",
    "memory_bytes",
]

READS_IN_FLIGHT: Final = 8
_PIECE_BYTES: Final = 512 * 1024


@runtime_checkable
class ScattersRanges(Protocol):
    """A store that can read a range directly into its destination, without a buffer in between."""

    async def scatter(self, key: str, offset: int, targets: Sequence[tuple[int, memoryview]]) -> None:
        """Fill each view in ``targets`` with bytes of the object. Each view comes with a number of bytes. The
        bytes for the view begin at ``offset`` plus this number. Raises ``StorageError``."""
        ...


@runtime_checkable
class CopiesAttempts(Protocol):
    """A storage manager that can store several attempts to build the same segment. Each attempt has separate
    objects."""

    async def copy_attempt(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData, attempt: str
    ) -> bytes:
        """Call ``copy_log_segment_data`` with a name that only this attempt uses."""
        ...


async def build_segments(
    segments: Sequence[PlannedSegment],
    storage: Ranges,
    workers: Workers,
    *,
    into: bytearray | memoryview | None = None,
) -> list[BuiltSegment]:
    """The results of :func:`each_segment`, as a list."""
    return [built async for built in each_segment(segments, storage, workers, into=into)]


async def build_and_copy(
    segments: Sequence[PlannedSegment],
    storage: Ranges,
    workers: Workers,
    manager: RemoteStorageManager,
    *,
    into: bytearray | memoryview,
    attempt: str = "",
    reads_in_flight: int = READS_IN_FLIGHT,
    reading: AbstractAsyncContextManager[object] | None = None,
) -> list[bytes | None]:
    """Build and copy segments. Each segment is copied while the next segments are built. Returns the results
    of :func:`copy_segment`, in order.

    Raises the errors of :func:`each_segment` and :func:`copy_segment`. After an error, only an upload that
    was abandoned and is still running in the store's client may read ``into``.
    """
    copies: list[asyncio.Task[bytes | None]] = []
    planned = iter(segments)
    try:
        building = each_segment(
            segments, storage, workers, into=into, reads_in_flight=reads_in_flight, reading=reading
        )
        async with aclosing(building):
            async for built in building:
                copies.append(asyncio.ensure_future(copy_segment(next(planned), built, manager, attempt)))
        return await asyncio.gather(*copies)
    except asyncio.CancelledError:
        for copy in copies:
            copy.cancel()
        raise
    finally:
        await asyncio.gather(*copies, return_exceptions=True)


async def each_segment(
    segments: Sequence[PlannedSegment],
    storage: Ranges,
    workers: Workers,
    *,
    into: bytearray | memoryview | None = None,
    reads_in_flight: int = READS_IN_FLIGHT,
    reading: AbstractAsyncContextManager[object] | None = None,
) -> AsyncGenerator[BuiltSegment, None]:
    """Yield the segments in order, each as soon as it is built, from the objects in ``storage``.

    ``into`` is memory for the built segments. It is used if its length is at least the :func:`memory_bytes`
    of the segments, because reused memory is much faster than new memory. The caller must not reuse this
    memory before the segments are copied. ``reading`` is a lock that is held while objects are read. With
    this lock, units that are built in parallel read one after another.

    Raises ``StorageError`` and :class:`CorruptRecordError`. ``ObjectNotFoundError`` means that batches have
    left the WAL since the plan was made, so the segments must be planned again. :class:`CorruptRecordError`
    means that the objects do not contain the committed batches.
    """
    size_bytes = memory_bytes(segments)
    memory = memoryview(into if into is not None and len(into) >= size_bytes else mmap.mmap(-1, size_bytes))
    buffers: list[memoryview] = []
    position = 0
    for segment in segments:
        buffers.append(memory[position : position + segment.size_bytes])
        position += _whole_pages(segment.size_bytes)
    for segment, buffer in zip(segments, buffers, strict=True):
        _put_markers(segment, buffer)
    async with reading or nullcontext():
        await _read(plan_ranges(segments), buffers, storage, workers, reads_in_flight)
    for segment, buffer in zip(segments, buffers, strict=True):
        yield await workers.run(
            finish_segment,
            buffer,
            [run.as_batches for run in segment.runs],
            index_interval_bytes=segment.index_interval_bytes,
            generations=segment.generations,
        )


def _put_markers(segment: PlannedSegment, buffer: memoryview) -> None:
    position = 0
    for run in segment.runs:
        if is_marker(run.object_key):
            buffer[position : position + run.size_bytes] = batch_of_marker(run.object_key)
        position += run.size_bytes


def memory_bytes(segments: Iterable[PlannedSegment]) -> int:
    """Number of bytes of memory for building. Each segment begins on a page, because files are written faster
    from the start of a page."""
    return sum(_whole_pages(segment.size_bytes) for segment in segments)


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


async def _read(
    ranges: Sequence[PlannedRange],
    buffers: Sequence[memoryview],
    storage: Ranges,
    workers: Workers,
    in_flight: int,
) -> None:
    scatter = storage.scatter if isinstance(storage, ScattersRanges) else None

    async def read(wanted: PlannedRange) -> None:
        targets = [
            (start, buffers[number][position : position + size_bytes])
            for number, position, start, size_bytes in wanted.pieces
        ]
        if scatter is not None:
            await scatter(wanted.object_key, wanted.start, targets)
            return
        view = await fetch_once(storage, wanted.object_key, wanted.start, wanted.size_bytes)
        # A worker thread makes this copy. The event loop does not, because the segment's memory pages may be
        # new, and copying to new pages takes many times as long.
        await workers.run(_lay_out, view, targets)

    await side_by_side(read, ranges, in_flight)


def _lay_out(view: memoryview, targets: Sequence[tuple[int, memoryview]]) -> None:
    for start, target in targets:
        # The copy is made in pieces. Other threads can use the interpreter between two pieces.
        for at in range(0, len(target), _PIECE_BYTES):
            piece = target[at : at + _PIECE_BYTES]
            piece[:] = view[start + at : start + at + len(piece)]


async def copy_segment(
    segment: PlannedSegment, built: BuiltSegment, manager: RemoteStorageManager, attempt: str = ""
) -> bytes | None:
    """Store a built segment. Returns the custom metadata that the storage manager gave.

    ``attempt`` (letters, digits, ``-`` and ``_``, at most 40) distinguishes this copy from the copies of
    other tasks with the same plan. The custom metadata contain ``attempt``. A storage manager that does not
    separate attempts gets the segment under the segment's own name. This is safe because the bytes of a
    segment are the same for every builder.

    Raises ``RemoteStorageError`` if the storage manager fails.
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
