"""Splits ranges of offsets into units for tasks. Units contain only ranges of offsets, no records. Pure."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple


class OffsetRange(NamedTuple):
    """Offsets of one partition, ``end`` not included."""

    partition: int
    start: int
    end: int


def split(ranges: Iterable[OffsetRange], unit_records_max: int) -> list[OffsetRange]:
    """Units of about equal size that cover the ranges. No unit has more than ``unit_records_max`` offsets."""
    units = []
    for partition, start, end in ranges:
        count = end - start
        pieces = -(-count // unit_records_max) if count > 0 else 0
        cuts = [start + count * number // pieces for number in range(pieces)] + [end]
        units += [OffsetRange(partition, *bounds) for bounds in itertools.pairwise(cuts)]
    return units


def unit_size(ranges: Iterable[OffsetRange], units_min: int, unit_records_max: int) -> int:
    """The maximum size of a unit, chosen so that there are at least ``units_min`` units. With too few offsets
    there are fewer units."""
    total = sum(max(0, end - start) for _, start, end in ranges)
    return max(1, min(unit_records_max, total // max(1, units_min)))


OBJECT_READS: Final = 8
"""Number of reads of one object, if all partitions of a coordinator share the object. Each of these reads
gets 1 MiB of a full object.

With fewer reads, a unit would contain more partitions, so each partition would be split into more windows. A
batch at the border of two windows is decoded twice.
"""
GROUP_PARTITIONS_MAX: Final = 64


def group(
    ranges: Sequence[OffsetRange], owners: Mapping[int, int], unit_records_max: int
) -> list[tuple[OffsetRange, ...]]:
    """Units of ranges that tasks read together, about ``unit_records_max`` offsets in each unit.

    If partitions have the same owner (their coordinator), their batches are adjacent in its objects. A unit
    has windows of offsets of several such partitions. Therefore an object is read only once for all
    partitions of the unit. Partitions without an owner are read one by one.
    """
    units: list[tuple[OffsetRange, ...]] = []
    by_owner: dict[int, list[OffsetRange]] = {}
    for one in ranges:
        if one.partition in owners:
            by_owner.setdefault(owners[one.partition], []).append(one)
        else:
            units += [(unit,) for unit in split([one], unit_records_max)]
    for together in by_owner.values():
        together.sort()
        size = min(GROUP_PARTITIONS_MAX, -(-len(together) // OBJECT_READS))
        for first in range(0, len(together), size):
            units += _windows(together[first : first + size], unit_records_max)
    return units


def _windows(ranges: Sequence[OffsetRange], unit_records_max: int) -> list[tuple[OffsetRange, ...]]:
    """Split each range into the same number of windows."""
    total = sum(one.end - one.start for one in ranges)
    pieces = max(1, -(-total // unit_records_max))
    windows = []
    for number in range(pieces):
        cut = [
            OffsetRange(
                partition,
                start + (end - start) * number // pieces,
                start + (end - start) * (number + 1) // pieces,
            )
            for partition, start, end in ranges
        ]
        windows.append(tuple(one for one in cut if one.end > one.start))
    return [window for window in windows if window]
