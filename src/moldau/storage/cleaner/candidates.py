"""Finds the part of a compacted log that can be cleaned, and the share of dirty bytes in this part."""

from dataclasses import dataclass

from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.segments.batch_scan import scan
from moldau.storage.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class CleanableLog:
    """A log that can be cleaned. The records at the offsets ``[first_dirty_offset,
    first_uncleanable_offset)`` are new since the last cleaning."""

    log: PartitionLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether some dirty records are older than ``max.compaction.lag.ms``."""

    @property
    def dirty_ratio(self) -> float:
        """The share of the dirty bytes in the sum of clean and dirty bytes, 0 to 1. The uncleanable end of
        the log is not included."""
        whole = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / whole if whole else 0.0

    @property
    def is_due(self) -> bool:
        return self.dirty_bytes > 0 and (
            self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio
        )


def find_candidate(log: PartitionLog, checkpointed_offset: int | None, now_ms: int) -> CleanableLog | None:
    """The cleanable part of a log; None when there is nothing to clean.

    Only whole segments are cleaned. The active segment is excluded. Segments with records younger than
    ``min.compaction.lag.ms`` are excluded, too. Segments that consumers cannot yet read to the end (because
    of the high watermark or open transactions) are also excluded, and so are segments that are not completely
    flushed. ``checkpointed_offset`` is the end of the last cleaning. A value that is outside the log is
    ignored.
    """
    segments = log.segments.segments
    start = segments[0].base_offset
    dirty = log.log_start_offset if checkpointed_offset is None else checkpointed_offset
    if not log.log_start_offset <= dirty <= log.log_end_offset:
        dirty = log.log_start_offset
    first_dirty = log.segments.index_holding(max(dirty, start))
    stable_offset = min(log.last_stable_offset(log.high_watermark), log.flushed_offset)
    end = _first_uncleanable(log, first_dirty, stable_offset, now_ms)
    if end <= first_dirty:
        return None
    new = segments[first_dirty:end]
    return CleanableLog(
        log,
        dirty,
        segments[end].base_offset,
        sum(segment.size_bytes for segment in segments[:first_dirty]),
        sum(segment.size_bytes for segment in new),
        _is_overdue(new, now_ms - log.config.max_compaction_lag_ms),
    )


def _first_uncleanable(log: PartitionLog, first_dirty: int, stable_offset: int, now_ms: int) -> int:
    """Return the index of the first segment that must not be cleaned."""
    segments = log.segments.segments
    youngest_ms = now_ms - log.config.min_compaction_lag_ms
    for index in range(first_dirty, len(segments) - 1):
        too_young = log.config.min_compaction_lag_ms > 0 and segments[index].max_timestamp_ms > youngest_ms
        if log.segments.end_of(index) > stable_offset or too_young:
            return index
    return len(segments) - 1


def _is_overdue(segments: list[Segment], oldest_ms: int) -> bool:
    if oldest_ms <= 0:
        return False
    for segment in segments:
        first = next(scan(segment.file, 0, segment.size_bytes), None)
        if first is not None and 0 < first.max_timestamp_ms < oldest_ms:
            return True
    return False
