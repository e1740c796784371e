"""Computes the offset before which retention deletes the remote part of a diskless partition. Pure.

Records are always deleted in the order of their offsets, not in the order of their timestamps. Therefore the
coordinator applies retention to the part in the WAL only when the remote part no longer exists.
"""

from collections.abc import Iterable

from moldau.records.batch import NO_TIMESTAMP
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.removal.remote_retention import Retention, expired

__all__ = ["expired_before", "readable_chain"]


def readable_chain(
    segments: Iterable[RemoteLogSegmentMetadata], from_offset: int, to_offset: int
) -> list[RemoteLogSegmentMetadata]:
    """Finished segments with the offsets in ``[from, to)``. Each segment begins where the previous segment
    ends.

    The list ends early if there is a gap.
    """
    finished = sorted(
        (one for one in segments if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED),
        key=lambda one: one.start_offset,
    )
    chain: list[RemoteLogSegmentMetadata] = []
    position, index = from_offset, 0
    while position < to_offset:
        best = None
        while index < len(finished) and finished[index].start_offset <= position:
            if best is None or finished[index].end_offset > best.end_offset:
                best = finished[index]
            index += 1
        if best is None or best.end_offset < position:
            break
        chain.append(best)
        position = best.end_offset + 1
    return chain


def expired_before(
    chain: Iterable[RemoteLogSegmentMetadata],
    retention: Retention,
    *,
    wal_start: int,
    wal_size_bytes: int,
    now_ms: int,
) -> int | None:
    """Return the new log start according to retention; ``None`` when no segment has expired. The new log
    start is at most ``wal_start``, the end of the remote part.

    ``chain`` is the result of :func:`readable_chain`, beginning at the log start.
    """
    known = list(chain)
    total_bytes = sum(one.segment_size_bytes for one in known) + wal_size_bytes
    outlived = expired(known, retention, total_bytes=total_bytes, now_ms=now_ms, newest_ms=_newest_ms)
    return min(outlived[-1].end_offset + 1, wal_start) if outlived else None


def _newest_ms(segment: RemoteLogSegmentMetadata) -> int:
    """Return the timestamp of the segment's newest record. If the records have no timestamp, return the time
    of the segment's last event, because consolidation has just created the segment.

    Classic topics follow Kafka's rule: a segment without timestamps is older than any limit.
    """
    newest_ms = segment.max_timestamp_ms
    return newest_ms if newest_ms > NO_TIMESTAMP else segment.event_timestamp_ms
