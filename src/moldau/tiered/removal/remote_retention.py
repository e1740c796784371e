"""The rule of retention over both tiers. It decides which of a partition's oldest remote segments must be
deleted. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata

__all__ = ["Retention", "expired"]


@dataclass(frozen=True, slots=True)
class Retention:
    """``retention.ms`` and ``retention.bytes``, for local and remote segments together; -1 means no limit."""

    ms: int = -1
    size_bytes: int = -1


def expired(
    segments: Iterable[RemoteLogSegmentMetadata],
    retention: Retention,
    *,
    total_bytes: int,
    now_ms: int,
    newest_ms: Callable[[RemoteLogSegmentMetadata], int] = lambda segment: segment.max_timestamp_ms,
) -> list[RemoteLogSegmentMetadata]:
    """The first segments of ``segments``, in order of offsets, that ``retention`` no longer keeps.

    As in Kafka, there are two reasons to remove a segment. Its newest record is too old. Or the partition
    without the segment still has ``retention.bytes`` or more. The list ends before the first segment that
    must be kept. ``total_bytes`` is the size of both tiers.
    """
    bounds_size = retention.size_bytes >= 0
    excess_bytes = total_bytes - retention.size_bytes if bounds_size else 0
    found: list[RemoteLogSegmentMetadata] = []
    for segment in segments:
        is_old = retention.ms >= 0 and newest_ms(segment) < now_ms - retention.ms
        is_excess = bounds_size and excess_bytes >= segment.segment_size_bytes
        if not is_old and not is_excess:
            break
        excess_bytes -= segment.segment_size_bytes
        found.append(segment)
    return found
