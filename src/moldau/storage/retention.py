"""Which segments of a log have outlived the topic's retention."""

from moldau.storage.log_config import LogConfig
from moldau.storage.segmented_log import SegmentedLog


def deletable_segments(
    log: SegmentedLog, config: LogConfig, *, now_ms: int, high_watermark: int, log_start_offset: int
) -> int:
    """How many segments, from the first on, may go: by log start, by age, or by the log's size.

    None of their records is at or above the high watermark. The active segment counts too, unless
    it is empty: when its time has come, the caller rolls it first.
    """
    segments = log.segments
    excess_bytes = log.size_bytes - config.retention_bytes
    count = 0
    for index, segment in enumerate(segments):
        end_offset = log.end_of(index)
        is_empty_and_active = segment is log.active and not segment.size_bytes
        if end_offset > high_watermark or is_empty_and_active:
            break
        below_start = end_offset <= log_start_offset
        expired = (
            config.cleanup_delete
            and config.retention_ms >= 0
            and now_ms - segment.retention_timestamp_ms > config.retention_ms
        )
        oversized = (
            config.cleanup_delete and config.retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        )
        if not (below_start or expired or oversized):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count
