"""Finding records by timestamp, exact to the record."""

from moldau.records.timestamps import first_offset_at_or_after, first_offset_of_max_timestamp
from moldau.storage.append_info import NO_TIMESTAMP, TimestampOffset
from moldau.storage.batch_scan import Sketch, scan
from moldau.storage.segment import Segment
from moldau.storage.segmented_log import SegmentedLog


def find_timestamp(
    log: SegmentedLog, timestamp_ms: int, *, start_offset: int, end_offset: int
) -> TimestampOffset | None:
    """The first record of ``[start_offset, end_offset)`` that is at or after ``timestamp_ms``."""
    for segment in log.segments[log.index_holding(start_offset) :]:
        if segment.base_offset >= end_offset:
            return None
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        first = max(start_offset, segment.time_index.lookup(timestamp_ms))
        for sketch in scan(segment.file, segment.position_of(first), segment.size_bytes):
            if sketch.base_offset >= end_offset:
                return None
            if sketch.max_timestamp_ms < timestamp_ms:
                continue
            found = first_offset_at_or_after(segment.batch_view(sketch), timestamp_ms, start_offset)
            if found is not None:
                return TimestampOffset(*found) if found[0] < end_offset else None
    return None


def find_max_timestamp(log: SegmentedLog, *, start_offset: int, end_offset: int) -> TimestampOffset | None:
    """The first record with the largest timestamp of all in ``[start_offset, end_offset)``."""
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
            sketch = _latest_batch(segment, start_offset, end_offset)
        if sketch is not None and sketch.max_timestamp_ms > best_ms:
            best, best_ms = (segment, sketch), sketch.max_timestamp_ms
    if best is None:
        return None
    found = first_offset_of_max_timestamp(best[0].batch_view(best[1]))
    if found is None:
        # Compaction has emptied the batch, which still carries the timestamp of what it has held.
        return _latest_record(log, start_offset, end_offset)
    return TimestampOffset(*found)


def _latest_record(log: SegmentedLog, start_offset: int, end_offset: int) -> TimestampOffset | None:
    """As :func:`find_max_timestamp`, by reading everything."""
    best: TimestampOffset | None = None
    for segment in log.segments[log.index_holding(start_offset) :]:
        for sketch in scan(segment.file, segment.position_of(start_offset), segment.size_bytes):
            if sketch.last_offset >= end_offset:
                return best
            if best is None or sketch.max_timestamp_ms > best.timestamp:
                found = first_offset_of_max_timestamp(segment.batch_view(sketch))
                if found is not None and (best is None or found[1] > best.timestamp):
                    best = TimestampOffset(*found)
    return best


def _latest_batch(segment: Segment, start_offset: int, end_offset: int) -> Sketch | None:
    best: Sketch | None = None
    for sketch in scan(segment.file, segment.position_of(start_offset), segment.size_bytes):
        if sketch.last_offset >= end_offset:
            break
        if best is None or sketch.max_timestamp_ms > best.max_timestamp_ms:
            best = sketch
    return best
