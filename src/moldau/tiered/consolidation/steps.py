"""Rules for recorded segments of a diskless partition: adopt, discard, delete. Pure.

The rules keep every record readable at any moment, even when several brokers act as the leader:

1. A leader *fences* at the coordinator before it acts. The coordinator then has the leader's epoch, so it
   accepts no prune of an older leader any more. After that, the leader reads the metadata up to the position
   that the coordinator names. These metadata contain every segment on which a prune was ever based.
2. ``wal_start`` moves only to the end of a finished segment that contains ``wal_start``.
3. If the copy of a segment has not finished, the segment is discarded only under two conditions. First, the
segment existed before the fence, so no newer leader has planned it. Second, its copy is unfinished after the
fence, so no prune was or will be based on this segment.
4. A finished segment is deleted only when it is entirely below ``log_start``, or when another finished
   segment contains all of its records. If one of these conditions is true, it stays true for every broker.
5. A restore may lose the end of a log. The metadata of segments may then be newer than the saved end of the
   partition. Such a segment has records of an earlier generation at offsets that belong to a later
   generation. It is never adopted, covers no other segment, and is deleted. Its other records are still in
   the WAL, because no saved prune was based on this segment.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.lineage import Lineage
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.removal.expired_segments import is_of_lineage

__all__ = ["ConsolidationSteps", "decide", "of_lineage"]

_State: Final = RemoteLogSegmentState
_DISCARDED_A_ROUND: Final = 100


class ConsolidationSteps(NamedTuple):
    """Actions on recorded segments. They are carried out in the order of the fields."""

    adopt: RemoteLogSegmentMetadata | None
    """For a finished segment that contains ``wal_start``: prune up to the segment's end, then decide again.
    """
    discard: tuple[RemoteLogSegmentMetadata, ...]
    """Record that the deletion began, delete the objects, record that the deletion is finished."""


def decide(
    segments: Sequence[RemoteLogSegmentMetadata],
    *,
    log_start: int,
    wal_start: int,
    lineage: Lineage,
    seen_before_fence: Collection[UUID],
    own: Collection[UUID],
) -> ConsolidationSteps:
    """Decide on the actions for ``segments``, which are the segments after the fence.

    ``lineage`` contains the generations of the partition. ``own`` contains the segments that this leader
    itself is building.
    """
    finished = of_lineage(segments, lineage)
    adopt = max(
        (one for one in finished if one.start_offset <= wal_start <= one.end_offset),
        key=lambda one: one.end_offset,
        default=None,
    )
    needless = {one.id.id for one in segments if one.state is _State.COPY_SEGMENT_FINISHED}
    needless -= {one.id.id for one in finished}
    needless |= {one.id.id for one in _covered(finished)}
    discard = [
        one
        for one in segments
        if _is_rest(one, seen_before_fence, own)
        or (one.state is _State.COPY_SEGMENT_FINISHED and one.end_offset < log_start)
        or one.id.id in needless
    ]
    return ConsolidationSteps(adopt, tuple(discard[:_DISCARDED_A_ROUND]))


def of_lineage(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage
) -> list[RemoteLogSegmentMetadata]:
    """The finished segments with records that are still in the log. Segments with records of a lost end of
    the log are left out."""
    finished = (one for one in segments if one.state is _State.COPY_SEGMENT_FINISHED)
    return [one for one in finished if is_of_lineage(one, lineage, 0)]


def _is_rest(
    segment: RemoteLogSegmentMetadata, seen_before_fence: Collection[UUID], own: Collection[UUID]
) -> bool:
    """Whether the segment was left over by an interrupted copy or deletion."""
    if segment.state is _State.DELETE_SEGMENT_STARTED:
        return True
    unfinished = segment.state is _State.COPY_SEGMENT_STARTED
    return unfinished and segment.id.id in seen_before_fence and segment.id.id not in own


def _covered(finished: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Segments whose records are all in another segment. If several segments contain the same offsets, the
    result leaves out one of these segments."""
    # In this order a segment can be covered only by an earlier segment. It is enough to check the segment
    # with the highest end.
    ordered = sorted(finished, key=lambda one: (one.start_offset, -one.end_offset, one.id.id))
    covered: list[RemoteLogSegmentMetadata] = []
    farthest = -1
    for one in ordered:
        if one.end_offset <= farthest:
            covered.append(one)
        farthest = max(farthest, one.end_offset)
    return covered
