"""Assigns the offsets of a partition to remote segments. Pure.

Segments may overlap, for two reasons. A planner with outdated data may have made copies. Or the segment of an
old leader may end with records that no other replica has. An offset is read from a segment only if the
segment and the log have the same leader epoch for this offset. All such segments contain the same records.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID


class IndexPlace(NamedTuple):
    """A range of bytes in an object."""

    object_key: str
    position: int
    size_bytes: int


class SegmentObject(NamedTuple):
    """A readable segment. Offsets are inclusive."""

    id: UUID
    start_offset: int
    end_offset: int
    size_bytes: int
    object_key: str
    epochs: tuple[tuple[int, int], ...] = ()
    """Leader epochs. Each has the offset at which it begins in the segment."""
    offset_index: IndexPlace | None = None
    transaction_index: IndexPlace | None = None
    has_aborted: bool = False
    """Whether the segment has markers of aborted transactions."""


class EpochSpan(NamedTuple):
    """The offsets that were written in one leader epoch; ``end`` is excluded."""

    start: int
    end: int


class TierPart(NamedTuple):
    """Offsets that are read together; ``end`` is excluded. ``segment`` is ``None`` if no segment contains
    them."""

    segment: SegmentObject | None
    start: int
    end: int


def plan_parts(
    segments: Iterable[SegmentObject],
    start: int,
    end: int,
    epochs: Mapping[int, EpochSpan] | None = None,
) -> list[TierPart]:
    """Parts that cover ``[start, end)`` in order.

    ``epochs`` are the epochs of the log, or ``None`` for a log with a single epoch. In a log with a single
    epoch, each segment is valid for all its offsets.
    """
    pieces = [piece for segment in segments for piece in _pieces(segment, epochs)]
    parts: list[TierPart] = []
    position = start
    while position < end:
        found = _best_at(pieces, position)
        if found is not None:
            parts.append(TierPart(found.segment, position, min(found.end, end)))
        else:
            ahead = [piece.start for piece in pieces if position < piece.start < end]
            parts.append(TierPart(None, position, min(ahead, default=end)))
        position = parts[-1].end
    return parts


def _best_at(pieces: Sequence[TierPart], position: int) -> TierPart | None:
    there = [piece for piece in pieces if piece.start <= position < piece.end]
    return max(there, key=lambda piece: piece.end, default=None)


def _pieces(segment: SegmentObject, epochs: Mapping[int, EpochSpan] | None) -> list[TierPart]:
    """The offsets for which a segment is valid."""
    if epochs is None:
        return [TierPart(segment, segment.start_offset, segment.end_offset + 1)]
    pieces: list[TierPart] = []
    ends = [start for _, start in segment.epochs[1:]] + [segment.end_offset + 1]
    for (epoch, first), behind in zip(segment.epochs, ends, strict=True):
        span = epochs.get(epoch)
        if span is None:
            continue
        start, end = max(first, span.start), min(behind, span.end)
        if pieces and pieces[-1].end == start < end:
            pieces[-1] = pieces[-1]._replace(end=end)
        elif start < end:
            pieces.append(TierPart(segment, start, end))
    return pieces
