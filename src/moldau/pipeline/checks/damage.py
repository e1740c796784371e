"""The results of a verification. This module also checks batches, and the coordinates of batches (their
offsets, object and position). Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from moldau.coordinators.diskless.calls import BatchCoordinate
from moldau.records.batch import check_batch
from moldau.records.errors import CorruptRecordError
from moldau.runtime.buffers import Buffer

DAMAGES_MAX: Final = 1000
"""Maximum number of damages in the result of a unit. Further damages are only counted."""

MISSING: Final = "missing"
CORRUPT: Final = "corrupt"
GAP: Final = "gap"
UNREADABLE: Final = "unreadable"


class Damage(NamedTuple):
    """A fault in the data. Offsets are inclusive. ``object_key`` names the faulty object, if there is one."""

    kind: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    reason: str
    object_key: str = ""


class Checked(NamedTuple):
    """The result of the check of a unit, or the sums over all units."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    moved: int = 0
    """Number of offsets that were deleted or moved to the tier during the check."""
    damages: tuple[Damage, ...] = ()
    damages_count: int = 0


def total(checked: Iterable[Checked]) -> Checked:
    """Return the sums over all units, and the first damages. Damages are sorted by topic, partition and
    offset."""
    units = list(checked)
    damages = sorted(
        (damage for unit in units for damage in unit.damages),
        key=lambda damage: (damage.topic, damage.partition, damage.first_offset),
    )
    return Checked(
        sum(unit.batches for unit in units),
        sum(unit.records for unit in units),
        sum(unit.size_bytes for unit in units),
        sum(unit.moved for unit in units),
        tuple(damages[:DAMAGES_MAX]),
        sum(unit.damages_count for unit in units),
    )


def find_gaps(batches: Sequence[BatchCoordinate], start: int, end: int) -> list[tuple[int, int]]:
    """Return the gaps from ``start`` to before ``end``: offsets that are in no batch, or in more than one
    batch. Each gap is a pair of its first and last offset.

    The first batch may begin before ``start``, because deletion removes only whole batches.
    """
    gaps: list[tuple[int, int]] = []
    position = start
    for batch in batches:
        if batch.base_offset > position:
            gaps.append((position, batch.base_offset - 1))
        elif batch.base_offset < position and (batch is not batches[0] or batch.last_offset < start):
            gaps.append((batch.base_offset, position - 1))
        position = max(position, batch.last_offset + 1)
    if position < end:
        gaps.append((position, end - 1))
    return gaps


def uncovered(held: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return the gaps from ``start`` to before ``end`` that no segment contains. Each gap is a pair of its
    first and last offset. Segments in ``held`` may overlap, and a segment may occur twice."""
    gaps: list[tuple[int, int]] = []
    position = start
    for first, last in sorted(held):
        if first > position:
            gaps.append((position, min(first, end) - 1))
        position = max(position, last + 1)
    if position < end:
        gaps.append((position, end - 1))
    return gaps


def compare_batch(data: Buffer, coordinate: BatchCoordinate) -> str | None:
    """The difference between these bytes and the batch that the coordinator describes; ``None`` if there is
    no difference."""
    try:
        header = check_batch(data)
    except CorruptRecordError as error:
        return str(error)
    if header.size_bytes != coordinate.size_bytes:
        return f"the batch has {header.size_bytes} bytes, the coordinator has {coordinate.size_bytes}"
    offsets = coordinate.last_offset - coordinate.base_offset
    if header.last_offset - header.base_offset != offsets:
        return (
            f"the batch has {header.last_offset - header.base_offset + 1} offsets,"
            f" the coordinator has {offsets + 1}"
        )
    return None


class Findings:
    """Collects the totals of a unit (batches, records, bytes) and the damage that was found in the unit."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.batches = self.records = self.size_bytes = self.moved = self.count = 0
        self.damages: list[Damage] = []

    def good(self, offsets: int, size_bytes: int) -> None:
        self.batches += 1
        self.records += offsets
        self.size_bytes += size_bytes

    def bad(self, kind: str, partition: int, first: int, last: int, reason: str, key: str = "") -> None:
        self.count += 1
        if len(self.damages) < DAMAGES_MAX:
            self.damages.append(Damage(kind, self._topic, partition, first, last, reason, key))

    def result(self) -> Checked:
        return Checked(
            self.batches, self.records, self.size_bytes, self.moved, tuple(self.damages), self.count
        )
