"""Selects the batches of a partition's next segments, and the segments that are built together. Pure.

The plan of a segment contains the positions of its bytes but not the bytes themselves. The plan is therefore
small enough to be sent to the builder.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from moldau.cluster.image.log_generations import FIRST_GENERATION, LogGenerations
from moldau.coordinators.diskless.calls import LOG_APPEND_TIME, AbortedRange, BatchCoordinate
from moldau.records.batch import NO_TIMESTAMP
from moldau.tiered.consolidation.markers import is_marker, key_of_marker
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from moldau.tiered.storage.segment_builder import BatchRun

__all__ = [
    "GatheredSegment",
    "PlannedRange",
    "PlannedRun",
    "PlannedSegment",
    "SegmentGathering",
    "SegmentRules",
    "Unit",
    "lay_out_units",
    "plan_ranges",
]

DEFAULT_UNIT_BYTES: Final = 256 * 1024**2
DEFAULT_GAP_BYTES: Final = 8 * 1024**2
"""Two ranges are read by one request if at most this number of unneeded bytes is between them, because a
second request costs more than reading these bytes. The number is the usual size of an object."""

_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class PlannedRun(NamedTuple):
    """Batches of a partition that are adjacent in a WAL object and have contiguous offsets, or a single
    transaction marker."""

    object_key: str
    byte_offset: int
    size_bytes: int
    base_offset: int
    last_offset: int
    append_time_ms: int = NO_TIMESTAMP
    """If the topic uses LogAppendTime, the timestamp of all records in these batches; otherwise -1."""

    @property
    def as_batches(self) -> BatchRun:
        """Return the batches as the object that the builder of segments takes."""
        return BatchRun(self.base_offset, self.last_offset, self.size_bytes, self.append_time_ms)


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """The conditions under which batches of a partition become a segment."""

    segment_bytes: int = 64 * 1024**2
    """The size at which a segment is complete. A segment is larger only if a single batch is larger, or if
    the segment must contain a whole aborted transaction."""
    max_age_ms: int = 3_600_000
    """When the oldest batch has this age, the batches become a segment, even if the segment is small."""


class GatheredSegment(NamedTuple):
    """Batches that form a segment."""

    runs: tuple[PlannedRun, ...]
    batches: int
    size_bytes: int
    max_timestamp_ms: int
    oldest_commit_ms: int
    has_aborted: bool = False
    """Whether the segment contains an aborted transaction."""

    @property
    def base_offset(self) -> int:
        """Base offset of the first batch. The start of the WAL may be in the middle of this batch."""
        return self.runs[0].base_offset

    @property
    def end_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.runs[-1].last_offset


class SegmentGathering:
    """Collects a partition's batches in the order of their offsets and returns complete segments."""

    def __init__(self, rules: SegmentRules) -> None:
        self._rules = rules
        self._aborted: list[tuple[int, int]] = []
        """First and last offsets of aborted transactions that overlap the batches added last."""
        self._begin()

    def _begin(self) -> None:
        self._runs: list[PlannedRun] = []
        self._open: _OpenRun | None = None
        self._batches = self._size_bytes = 0
        self._max_timestamp_ms = NO_TIMESTAMP
        self._oldest_commit_ms = -1
        self._has_aborted = False

    @property
    def size_bytes(self) -> int:
        """Size of the batches that are not yet enough for a complete segment."""
        return self._size_bytes

    def add(
        self, batches: Iterable[BatchCoordinate], aborted: Sequence[AbortedRange] = ()
    ) -> list[GatheredSegment]:
        """Add the next batches. Returns the segments that these batches have completed. Raises ``ValueError``
        for a batch that does not follow the last batch.

        ``aborted`` are the aborted transactions with an offset in the batches. A segment contains a whole
        aborted transaction or no part of it, because only the segment's own index contains the abort. Such a
        segment may be larger than the configured size.
        """
        self._aborted = [(each.first_offset, each.last_offset) for each in aborted]
        complete: list[GatheredSegment] = []
        limit = self._rules.segment_bytes
        run = self._open
        for (_, _, base_offset, last_offset, key, start, size, committed_ms, timestamp_ms, kind, _,
             marker) in batches:  # fmt: skip
            if marker is not None:
                key = key_of_marker(marker, timestamp_ms)
                self._has_aborted |= any(last == base_offset for _, last in self._aborted)
            append_time_ms = committed_ms if kind == LOG_APPEND_TIME else NO_TIMESTAMP
            if run is not None:
                if base_offset != run.last_offset + 1:
                    raise ValueError(f"offset {base_offset} came after {run.last_offset}")
                is_full = self._size_bytes + size > limit or self._spans_too_many(last_offset)
                if is_full and not self._is_within_aborted(base_offset):
                    complete.append(self._finish_segment())
                    run = None
            if run is not None and run.goes_on_with(key, start, append_time_ms):
                run.size_bytes += size
                run.last_offset = last_offset
            else:
                self._close_run()
                run = self._open = _OpenRun(key, start, size, base_offset, last_offset, append_time_ms)
            if self._oldest_commit_ms < 0 or committed_ms < self._oldest_commit_ms:
                self._oldest_commit_ms = committed_ms
            if timestamp_ms > self._max_timestamp_ms:
                self._max_timestamp_ms = timestamp_ms
            self._batches += 1
            self._size_bytes += size
            if self._size_bytes >= limit and not self._is_within_aborted(last_offset + 1):
                complete.append(self._finish_segment())
                run = None
        return complete

    def _is_within_aborted(self, offset: int) -> bool:
        """Whether an aborted transaction has offsets before ``offset`` and also at or after it."""
        return any(first < offset <= last for first, last in self._aborted)

    def rest(self, now_ms: int) -> GatheredSegment | None:
        """Return the remaining batches as a segment; ``None`` if they are not old enough, or if the end of
        the segment would split an aborted transaction."""
        if self._open is None or now_ms - self._oldest_commit_ms < self._rules.max_age_ms:
            return None
        if self._is_within_aborted(self._open.last_offset + 1):
            return None
        return self._finish_segment()

    def _spans_too_many(self, last_offset: int) -> bool:
        first = self._runs[0].base_offset if self._runs else self._open.base_offset if self._open else 0
        return last_offset - first > _MAX_RELATIVE_OFFSET

    def _close_run(self) -> None:
        run = self._open
        if run is not None:
            self._runs.append(
                PlannedRun(
                    run.object_key,
                    run.byte_offset,
                    run.size_bytes,
                    run.base_offset,
                    run.last_offset,
                    run.append_time_ms,
                )
            )
            self._open = None

    def _finish_segment(self) -> GatheredSegment:
        self._close_run()
        taken = GatheredSegment(
            tuple(self._runs),
            self._batches,
            self._size_bytes,
            self._max_timestamp_ms,
            self._oldest_commit_ms,
            self._has_aborted,
        )
        self._begin()
        return taken


@dataclass(slots=True)
class _OpenRun:
    """The run that the next batch may extend."""

    object_key: str
    byte_offset: int
    size_bytes: int
    base_offset: int
    last_offset: int
    append_time_ms: int

    def goes_on_with(self, object_key: str, start: int, append_time_ms: int) -> bool:
        return (
            start == self.byte_offset + self.size_bytes
            and append_time_ms == self.append_time_ms
            and object_key == self.object_key
        )


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """A segment to be built and copied: the builder's input, and the identity of its plan."""

    metadata: RemoteLogSegmentMetadata
    """The metadata in COPY_SEGMENT_STARTED. The storage manager gets these metadata with the copy."""
    runs: tuple[PlannedRun, ...]
    index_interval_bytes: int = 4096
    """The topic's ``index.interval.bytes``."""
    generations: LogGenerations = FIRST_GENERATION
    """The generations of the partition's log."""

    @staticmethod
    def of(
        gathered: GatheredSegment,
        partition: TopicIdPartition,
        segment_id: UUID,
        *,
        broker_id: int,
        now_ms: int,
        index_interval_bytes: int = 4096,
        generations: LogGenerations = FIRST_GENERATION,
    ) -> "PlannedSegment":
        """``segment_id`` must be new. No other plan may have used the same id."""
        metadata = RemoteLogSegmentMetadata(
            RemoteLogSegmentId.of(partition, segment_id),
            start_offset=gathered.base_offset,
            end_offset=gathered.end_offset,
            max_timestamp_ms=gathered.max_timestamp_ms,
            broker_id=broker_id,
            event_timestamp_ms=now_ms,
            segment_size_bytes=gathered.size_bytes,
            leader_epochs=epochs_of(generations, gathered.base_offset, gathered.end_offset),
            txn_index_empty=not gathered.has_aborted,
        )
        return PlannedSegment(metadata, gathered.runs, index_interval_bytes, generations)

    @property
    def partition(self) -> TopicIdPartition:
        """The partition that the segment belongs to."""
        return self.metadata.topic_id_partition

    @property
    def segment_id(self) -> UUID:
        """The id that names the segment in remote storage."""
        return self.metadata.id.id

    @property
    def size_bytes(self) -> int:
        """Size of the segment's log."""
        return self.metadata.segment_size_bytes


def epochs_of(generations: LogGenerations, base_offset: int, end_offset: int) -> tuple[EpochStart, ...]:
    """The leader epochs of a segment's metadata. ``end_offset`` is inclusive."""
    return tuple(EpochStart(*each) for each in generations.within(base_offset, end_offset))


# -- units of work -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """Segments that one task builds. They are built together because their batches are adjacent in the same
    objects."""

    segments: tuple[PlannedSegment, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all segments of the unit. Building the unit needs a little more memory, see
        :func:`memory_bytes` of the builder."""
        return sum(segment.size_bytes for segment in self.segments)


def lay_out_units(segments: Iterable[PlannedSegment], max_bytes: int = DEFAULT_UNIT_BYTES) -> list[Unit]:
    """Group segments into units of at most ``max_bytes``, in the order of building. A larger segment is a
    unit of its own.

    In WAL objects, partitions are sorted by (topic id, index). A unit therefore consists of neighbours in
    this order. Their segments begin at about the same time: the first segment of each partition, then the
    second segment of each partition, and so on. It does not matter which brokers lead and coordinate the
    partitions. The segments of a partition keep the order of their offsets, and earlier units contain the
    earlier segments.
    """
    by_partition: dict[tuple[int, int], list[PlannedSegment]] = {}
    for segment in segments:
        partition = segment.partition
        by_partition.setdefault((partition.topic_id.int, partition.partition), []).append(segment)
    for some in by_partition.values():
        some.sort(key=lambda segment: segment.metadata.start_offset)
    units: list[Unit] = []
    for rank in range(max(map(len, by_partition.values()), default=0)):
        chosen: list[PlannedSegment] = []
        size_bytes = 0
        for key in sorted(by_partition):
            if rank >= len(by_partition[key]):
                continue
            segment = by_partition[key][rank]
            if chosen and size_bytes + segment.size_bytes > max_bytes:
                units.append(Unit(tuple(chosen)))
                chosen, size_bytes = [], 0
            chosen.append(segment)
            size_bytes += segment.size_bytes
        if chosen:
            units.append(Unit(tuple(chosen)))
    return units


class Piece(NamedTuple):
    """A run (adjacent batches) within a requested range, and the place to which the bytes of the run are
    copied."""

    segment: int
    """Number of the segment in its unit."""
    position: int
    """Position of the run in the segment, in bytes."""
    start: int
    """Start of the run in the requested range, in bytes."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A request for a range of an object, and the runs in this range."""

    object_key: str
    start: int
    size_bytes: int
    pieces: tuple[Piece, ...]


def plan_ranges(
    segments: Sequence[PlannedSegment], max_gap_bytes: int = DEFAULT_GAP_BYTES
) -> list[PlannedRange]:
    """The requests that read all runs of ``segments`` except markers. They are in the order in which their
    objects are first needed.

    There is one request for each object, unless more than ``max_gap_bytes`` lie between two runs of the
    object.
    """
    by_object: dict[str, list[tuple[int, Piece]]] = {}
    for number, segment in enumerate(segments):
        position = 0
        for run in segment.runs:
            if is_marker(run.object_key):
                position += run.size_bytes
                continue
            piece = Piece(number, position, run.byte_offset, run.size_bytes)
            by_object.setdefault(run.object_key, []).append((run.byte_offset, piece))
            position += run.size_bytes
    ranges: list[PlannedRange] = []
    for object_key, found in by_object.items():
        found.sort()
        start = end = found[0][0]
        pieces: list[Piece] = []
        for at, piece in found:
            if at - end > max_gap_bytes:
                ranges.append(PlannedRange(object_key, start, end - start, tuple(pieces)))
                pieces, start = [], at
            pieces.append(piece._replace(start=at - start))
            end = max(end, at + piece.size_bytes)
        ranges.append(PlannedRange(object_key, start, end - start, tuple(pieces)))
    return ranges
