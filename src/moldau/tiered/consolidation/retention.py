"""Up to which offset retention deletes the remote part of a diskless partition. Pure.

Retention of the part that is still in the WAL is the coordinator's, and begins when the remote part is gone:
records are deleted from the oldest on, whatever their timestamps.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from moldau.records.batch import NO_TIMESTAMP
from moldau.tiered.lifecycle import RemoteLogSegmentState
from moldau.tiered.segments import RemoteLogSegmentMetadata

__all__ = ["Retention", "expired_before", "readable_chain"]


@dataclass(frozen=True, slots=True)
class Retention:
    """A topic's ``retention.ms`` and ``retention.bytes``; -1 is no limit."""

    retention_ms: int = -1
    retention_bytes: int = -1


def readable_chain(
    segments: Iterable[RemoteLogSegmentMetadata], from_offset: int, to_offset: int
) -> list[RemoteLogSegmentMetadata]:
    """Finished segments that hold the offsets in ``[from, to)``, each going on where the one before ends.

    The list ends early where no segment goes on.
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
    """The log start that retention asks for, within the remote part; None when nothing has expired.

    ``chain`` is what :func:`readable_chain` found from the log start on. As in Kafka a segment goes when
    its newest record is too old, or when what is left without it is still ``retention.bytes`` or more.
    """
    known = list(chain)
    excess = 0
    if retention.retention_bytes >= 0:
        total = sum(one.segment_size_bytes for one in known) + wal_size_bytes
        excess = total - retention.retention_bytes
    start: int | None = None
    for one in known:
        # Records without a timestamp are as old as their segment.
        newest_ms = one.max_timestamp_ms if one.max_timestamp_ms > NO_TIMESTAMP else one.event_timestamp_ms
        too_old = retention.retention_ms >= 0 and newest_ms < now_ms - retention.retention_ms
        too_much = retention.retention_bytes >= 0 and excess >= one.segment_size_bytes
        if not too_old and not too_much:
            break
        excess -= one.segment_size_bytes
        start = min(one.end_offset + 1, wal_start)
    return start
