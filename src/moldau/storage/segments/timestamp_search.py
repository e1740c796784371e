"""Finds the exact record for a timestamp.

A search is a series of steps. Each step reads a limited number of headers, and ends at a batch whose records
must be read. The caller opens that batch, on the event loop or in a worker, and continues after the batch.
The log may change between two steps.
"""

from typing import Final, NamedTuple

from moldau.records.batch import NO_TIMESTAMP
from moldau.storage.log.segmented_log import SegmentedLog
from moldau.storage.segments.batch_scan import Sketch, scan
from moldau.storage.segments.segment import Segment

_HEADERS_A_STEP: Final = 2_000


class Step(NamedTuple):
    """The result of a step. It has a batch that must be opened, or ``None``, and the offset at which the next
    step begins."""

    batch: memoryview | None
    next_offset: int


def search_step(log: SegmentedLog, at_least_ms: int, start_offset: int, end_offset: int) -> Step | None:
    """Return the next batch of ``[start_offset, end_offset)`` whose header matches; ``None`` at the end."""
    if start_offset >= end_offset:
        return None
    left = _HEADERS_A_STEP
    for segment in log.segments[log.index_holding(start_offset) :]:
        if segment.base_offset >= end_offset:
            return None
        if segment.max_timestamp_ms < at_least_ms:
            continue
        first = max(start_offset, segment.time_index.lookup(at_least_ms))
        for sketch in scan(segment.file, segment.position_of(first), segment.size_bytes):
            if sketch.base_offset >= end_offset:
                return None
            left -= 1
            if sketch.last_offset < start_offset:
                continue
            if sketch.max_timestamp_ms >= at_least_ms:
                return Step(segment.batch_view(sketch), sketch.last_offset + 1)
            if left <= 0:
                return Step(None, sketch.last_offset + 1)
    return None


def latest_batch(log: SegmentedLog, start_offset: int, end_offset: int) -> memoryview | None:
    """Return the batch in ``[start_offset, end_offset)`` whose header has the largest timestamp."""
    best: tuple[Segment, Sketch] | None = None
    best_ms = NO_TIMESTAMP
    first = log.index_holding(start_offset)
    for index in range(first, len(log.segments)):
        segment = log.segments[index]
        if segment.base_offset >= end_offset:
            break
        if segment.max_timestamp_ms <= best_ms:
            continue
        if index > first and log.end_of(index) <= end_offset:
            sketch = segment.find(segment.max_timestamp_offset)
        else:
            sketch = _latest_in_segment(segment, start_offset, end_offset)
        if sketch is not None and sketch.max_timestamp_ms > best_ms:
            best, best_ms = (segment, sketch), sketch.max_timestamp_ms
    return None if best is None else best[0].batch_view(best[1])


def _latest_in_segment(segment: Segment, start_offset: int, end_offset: int) -> Sketch | None:
    best: Sketch | None = None
    for sketch in scan(segment.file, segment.position_of(start_offset), segment.size_bytes):
        if sketch.last_offset >= end_offset:
            break
        if best is None or sketch.max_timestamp_ms > best.max_timestamp_ms:
            best = sketch
    return best
