"""Selects the remote segments that retention no longer keeps. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.lineage import Lineage
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.removal.remote_retention import Retention, expired

__all__ = ["Expiry", "ExpiryPlan", "is_of_lineage", "unreferenced"]


@dataclass(frozen=True, slots=True)
class Expiry:
    """The decision about a partition: the expired segments, and the new start of the log. The log's start
    moves to ``log_start_offset`` before the segments are deleted. If it is ``None``, the start does not
    move."""

    log_start_offset: int | None
    segments: Sequence[RemoteLogSegmentMetadata]


class ExpiryPlan:
    """Selects the expired segments of a partition. Add all segments by start offset, then decide.

    A segment that ends before the log's start is not read any more. The following segments are removed in
    order while they are too old, or while both tiers together are too large. ``local_only_bytes`` is the size
    of the part that is not copied yet. Segments that do not belong to the log's lineage (its leader epochs)
    may lie between the other segments. They do not stop the selection, and they are removed when the log's
    start is after them.
    """

    def __init__(
        self,
        lineage: Lineage,
        retention: Retention,
        *,
        log_start_offset: int,
        local_only_bytes: int,
        now_ms: int,
    ) -> None:
        self._lineage = lineage
        self._retention = retention
        self._log_start_offset = log_start_offset
        self._now_ms = now_ms
        self._due: list[RemoteLogSegmentMetadata] = []
        self._rest: list[RemoteLogSegmentMetadata] = []
        self._total_bytes = local_only_bytes

    def add(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Add the next segments, in the order of their start offsets."""
        lineage, log_start_offset = self._lineage, self._log_start_offset
        for segment in segments:
            if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                continue
            if segment.end_offset < log_start_offset:
                self._due.append(segment)
            elif is_of_lineage(segment, lineage, log_start_offset):
                self._rest.append(segment)
                self._total_bytes += segment.segment_size_bytes

    def decide(self) -> Expiry:
        """Decide which of the added segments have expired. The cost of this call grows with the number of
        expired segments."""
        outlived = expired(self._rest, self._retention, total_bytes=self._total_bytes, now_ms=self._now_ms)
        new_start = max((segment.end_offset + 1 for segment in outlived), default=None)
        return Expiry(new_start, [*self._due, *outlived])


def is_of_lineage(segment: RemoteLogSegmentMetadata, lineage: Lineage, log_start_offset: int) -> bool:
    """Whether the records of the segment are in the log, or were in the log before. Records before the log's
    start are not checked.

    The result is true if the log has the same epoch as the segment at the first and the last offset of each
    epoch in the segment.
    """
    starts = [(epoch.epoch, max(epoch.start_offset, log_start_offset)) for epoch in segment.leader_epochs]
    ends = [start for _, start in starts[1:]] + [segment.end_offset + 1]
    for (epoch, start), end in zip(starts, ends, strict=True):
        if start >= end:
            continue
        if lineage.epoch_for_offset(start) != epoch or lineage.epoch_for_offset(end - 1) != epoch:
            return False
    return True


def unreferenced(
    segments: Iterable[RemoteLogSegmentMetadata],
    referenced: Collection[UUID],
    being_copied: Collection[UUID],
    *,
    now_ms: int,
    grace_ms: int,
) -> list[RemoteLogSegmentMetadata]:
    """Segments that are not read: abandoned copies, unfinished deletions, and segments whose offsets a later
    copy covers.

    An abandoned copy is kept for ``grace_ms``, because one of its writes may still take effect.
    """
    found = []
    for segment in segments:
        match segment.state:
            case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                is_old = segment.event_timestamp_ms <= now_ms - grace_ms
                if segment.id.id not in being_copied and is_old:
                    found.append(segment)
            case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                found.append(segment)
            case RemoteLogSegmentState.COPY_SEGMENT_FINISHED if segment.id.id not in referenced:
                found.append(segment)
    return found
