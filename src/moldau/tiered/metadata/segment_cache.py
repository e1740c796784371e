"""The remote segments of a partition, found by leader epoch and offset. Pure.

Copies of the same records may overlap. A leader that did not know its predecessor's copies makes its own
copies, and a retried consolidation leaves a duplicate. Within an epoch, a search uses only finished segments
that no other finished segment covers. Both the starts and the ends of these segments are in ascending order.
Therefore only the segment with the greatest start at or before an offset can contain this offset. The other
segments (Kafka's *unreferenced* segments) stay listed for deletion. When the segment that covers them is
deleted, a search uses them again. A record is therefore found as long as any finished segment contains it.

The results depend only on the segments and their states, not on the order of their events. If two copies have
the same range, the copy that finished last is read. If both copies finished at the same time, the copy with
the greater id is read.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata

__all__ = ["SegmentCache", "epoch_ranges"]

EPOCHS_A_STEP: Final = 250
"""Number of a segment's leader epochs that are changed in one step. A step takes some milliseconds."""


class _RangeInEpoch(NamedTuple):
    """A finished segment within an epoch: its first and last offset. If two segments have the same range, the
    segment with the greater ``(finished_ms, id)`` is read."""

    start: int
    end: int
    finished_ms: int
    id: UUID


def epoch_ranges(metadata: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int, int]]:
    """``(epoch, first offset, last offset)`` for each leader epoch in a segment. Epochs without records are
    left out."""
    epochs = metadata.leader_epochs
    for index, (epoch, start) in enumerate(epochs):
        following = epochs[index + 1].start_offset if index + 1 < len(epochs) else metadata.end_offset + 1
        if start < following:
            yield epoch, start, following - 1


class _EpochState:
    """The segments with records of a leader epoch."""

    __slots__ = ("covered", "ends", "members", "referenced", "starts")

    def __init__(self) -> None:
        self.members: set[UUID] = set()
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.referenced: list[_RangeInEpoch] = []
        self.covered: dict[UUID, _RangeInEpoch] = {}

    def insert(self, new: _RangeInEpoch) -> None:
        """Add a finished segment. The segment is read unless another segment covers it, and it may itself
        cover other segments."""
        floor = bisect_right(self.starts, new.start) - 1
        if floor >= 0 and self.ends[floor] >= new.end:
            other = self.referenced[floor]
            if (other.start, other.end) != (new.start, new.end) or other[2:] > new[2:]:
                self.covered[new.id] = new
                return
        first = bisect_left(self.starts, new.start)
        last = bisect_right(self.ends, new.end)
        # From index ``first`` on, segments start at or after the start of the new segment. Before index
        # ``last``, segments end at or before the end of the new segment.
        last = max(first, last)
        for other in self.referenced[first:last]:
            self.covered[other.id] = other
        self.starts[first:last] = [new.start]
        self.ends[first:last] = [new.end]
        self.referenced[first:last] = [new]

    def remove(self, id: UUID, start: int) -> None:
        """Remove a finished segment that begins at ``start``. Segments in its range of offsets are read
        again, unless another segment covers them."""
        if self.covered.pop(id, None) is not None:
            return
        index = bisect_left(self.starts, start)
        gone = self.referenced.pop(index)
        assert gone.id == id
        del self.starts[index], self.ends[index]
        back = [each for each in self.covered.values() if gone.start <= each.start and each.end <= gone.end]
        for each in sorted(back):
            del self.covered[each.id]
            self.insert(each)

    def floor(self, offset: int) -> int:
        """Index of the referenced segment that can contain an offset; -1 if the offset is before all
        segments."""
        return bisect_right(self.starts, offset) - 1


def _place(metadata: RemoteLogSegmentMetadata) -> tuple[int, int, UUID]:
    return metadata.start_offset, metadata.end_offset, metadata.id.id


class SegmentCache:
    """All segments of a partition that are not DELETE_SEGMENT_FINISHED."""

    def __init__(self) -> None:
        self._segments: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._order: list[tuple[int, int, UUID]] = []
        """Start offset, end offset and id of all segments, in order."""
        self._epochs: dict[int, _EpochState] = {}
        self._highest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, id: UUID) -> RemoteLogSegmentMetadata | None:
        """The segment with this id; ``None`` if there is no such segment."""
        return self._segments.get(id)

    # Changes ------------------------------------------------------------------------------------

    def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Set a segment's state. The caller must have checked the change. DELETE_SEGMENT_FINISHED removes the
        segment."""
        for _ in self.put_in_steps(metadata):
            pass

    def put_in_steps(self, metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
        """Set a segment's state like :meth:`put`, but in steps of ``EPOCHS_A_STEP`` leader epochs, because a
        segment may have very many epochs.

        If the segment is new, the epochs of the later steps do not contain the segment yet. If the segment
        was known, it is first removed from its epochs in the same kind of steps. Only one change is made at a
        time.
        """
        id = metadata.id.id
        known = self._segments.get(id)
        if known is not None:
            yield from self._forget(known)
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            return
        self._segments[id] = metadata
        insort(self._order, _place(metadata))
        finished = metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        for number, (epoch, start, end) in enumerate(epoch_ranges(metadata), 1):
            if number % EPOCHS_A_STEP == 0:
                yield
            state = self._epochs.get(epoch)
            if state is None:
                state = self._epochs[epoch] = _EpochState()
            state.members.add(id)
            if finished:
                state.insert(_RangeInEpoch(start, end, metadata.event_timestamp_ms, id))
                self.raise_highest(epoch, end)

    def raise_highest(self, epoch: int, offset: int) -> None:
        """Remember that an epoch was copied up to ``offset``. The offset is kept even when the epoch's
        segments no longer exist."""
        if offset > self._highest.get(epoch, -1):
            self._highest[epoch] = offset

    def _forget(self, metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
        id = metadata.id.id
        for number, (epoch, start, _) in enumerate(epoch_ranges(metadata), 1):
            if number % EPOCHS_A_STEP == 0:
                yield
            state = self._epochs[epoch]
            state.members.discard(id)
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                state.remove(id, start)
            if not state.members:
                del self._epochs[epoch]
        del self._segments[id]
        del self._order[bisect_left(self._order, _place(metadata))]

    # Reads --------------------------------------------------------------------------------------

    def segment_for(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The finished segment with the record at ``offset`` of leader epoch ``epoch``."""
        state = self._epochs.get(epoch)
        if state is None:
            return None
        index = state.floor(offset)
        if index < 0 or state.ends[index] < offset:
            return None
        return self._segments[state.referenced[index].id]

    def next_with_txn_index(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of the epoch that ends at or after ``offset`` and has a transaction
        index.
        """
        state = self._epochs.get(epoch)
        if state is None:
            return None
        for each in state.referenced[bisect_left(state.ends, offset) :]:
            found = self._segments[each.id]
            if not found.txn_index_empty:
                return found
        return None

    def highest_offset(self, epoch: int) -> int | None:
        """The highest offset of an epoch that was ever copied; ``None`` when no offset of the epoch was
        copied."""
        return self._highest.get(epoch)

    def list(self, epoch: int | None = None) -> tuple[RemoteLogSegmentMetadata, ...]:
        """All segments, or only the segments with records of an epoch, by start offset."""
        if epoch is None:
            return tuple([self._segments[id] for _, _, id in self._order])
        state = self._epochs.get(epoch)
        found = [] if state is None else [self._segments[id] for id in state.members]
        return tuple(sorted(found, key=_place))

    def size_bytes(self, epoch: int) -> int:
        """Bytes of the finished segments with records of an epoch. Each segment counts with all its bytes."""
        state = self._epochs.get(epoch)
        if state is None:
            return 0
        found = (self._segments[id] for id in state.members)
        return sum(
            each.segment_size_bytes
            for each in found
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        )
