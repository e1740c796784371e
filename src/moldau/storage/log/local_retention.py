"""Finds the segments on this replica's disk that are past the topic's retention."""

from typing import NamedTuple

from moldau.storage.log.config import LogConfig
from moldau.storage.log.segmented_log import SegmentedLog


class RetentionDue(NamedTuple):
    """The first ``deletable`` segments may be deleted. ``must_roll`` means that the active segment has
    expired, too. It can be deleted after it is closed and copied to the remote tier, because the tier accepts
    only closed segments."""

    deletable: int
    must_roll: bool = False


def retention_due(
    log: SegmentedLog,
    config: LogConfig,
    *,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    highest_copied_offset: int = -1,
) -> RetentionDue:
    """Return the number of segments that may be deleted because of the log start, their age, or the log's
    size.

    No record at or above the high watermark is deleted. The active segment may be included, unless it is
    empty. The caller then closes it first. If segments are copied to the remote tier, the configs
    ``local.retention.*`` are used. Segments above the log's start may then be deleted only after they were
    copied.
    """
    segments = log.segments
    copies = config.copies_to_remote
    # Without a cleanup policy no record is deleted permanently. But copied segments are removed from this
    # disk (KIP-1161).
    is_bounded = config.cleanup_delete or (copies and not (config.cleanup_compact or config.is_cache))
    retention_ms = config.local_retention_ms if copies else config.retention_ms
    retention_bytes = config.local_retention_bytes if copies else config.retention_bytes
    excess_bytes = log.size_bytes - retention_bytes
    count = 0
    is_blocked = False
    for index, segment in enumerate(segments):
        end_offset = log.end_of(index)
        is_active = segment is log.active
        if end_offset > high_watermark or (is_active and not segment.size_bytes):
            break
        below_start = end_offset <= log_start_offset
        expired = is_bounded and retention_ms >= 0 and now_ms - segment.retention_timestamp_ms > retention_ms
        oversized = is_bounded and retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        if not (below_start or expired or oversized):
            break
        if copies and is_active and not below_start:
            return RetentionDue(count, must_roll=True)
        is_blocked = is_blocked or (copies and not below_start and end_offset > highest_copied_offset + 1)
        excess_bytes -= segment.size_bytes
        count += not is_blocked
    return RetentionDue(count)
