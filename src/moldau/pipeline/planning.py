"""What is read by whom: ranges of offsets cut into units. Coordinates only; no bytes pass through here."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.client.errors import ToolError


class OffsetRange(NamedTuple):
    """Offsets of one partition, ``end`` not included."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """How a task finds the topic that it reads; it travels to the workers."""

    bootstrap: str
    topic: str
    topic_id: str
    committed_only: bool = True
    may_lose: bool = False
    """Go on behind records that were deleted before they were read, instead of failing."""
    timeout_s: float = 30.0
    """How long a task waits without any progress."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A topic at one moment: first and next offset of each partition."""

    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]


def split(ranges: Iterable[OffsetRange], unit_records_max: int) -> list[OffsetRange]:
    """Units of about equal size that cover the ranges, none longer than ``unit_records_max`` offsets."""
    units = []
    for partition, start, end in ranges:
        count = end - start
        pieces = -(-count // unit_records_max) if count > 0 else 0
        cuts = [start + count * number // pieces for number in range(pieces)] + [end]
        units += [OffsetRange(partition, *bounds) for bounds in itertools.pairwise(cuts)]
    return units


def unit_size(ranges: Iterable[OffsetRange], units_min: int, unit_records_max: int) -> int:
    """The size of units of which there are ``units_min`` at least, where there are so many offsets."""
    total = sum(max(0, end - start) for _, start, end in ranges)
    return max(1, min(unit_records_max, total // max(1, units_min)))


def pending(topic: str, exported: Mapping[int, int], bounds: Bounds, *, may_lose: bool) -> list[OffsetRange]:
    """What an incremental job has to read, given the next offsets to be exported by partition.

    Partitions that it has not met begin at their first record. Raises :class:`ToolError` when records
    were deleted before they were exported (unless ``may_lose``), or when the topic ends before what was
    exported of it.
    """
    found = []
    for partition, end in sorted(bounds.ends.items()):
        first = bounds.starts[partition]
        start = exported.get(partition, first)
        if end < start:
            raise ToolError(
                f"{topic}-{partition} ends at offset {end}, but {start} offsets were exported of it"
            )
        if first > start:
            if not may_lose:
                raise ToolError(
                    f"{topic}-{partition}: offsets {start} to {first - 1} were deleted before they were"
                    " exported (--allow-data-loss goes on behind them)"
                )
            start = first
        if end > start:
            found.append(OffsetRange(partition, start, end))
    return found
