"""The offsets of each partition that are already in a table, and the ranges that the next round reads."""

import asyncio
import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from moldau.client.cluster import connected
from moldau.client.errors import ToolError
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import Bounds

MILLISECONDS_IN_S: Final = 1000


class ExportedSpan(NamedTuple):
    """The exported range of offsets of a partition, without gaps. ``end`` is excluded."""

    start: int
    end: int


Covered: TypeAlias = Mapping[int, ExportedSpan]
"""Exported ranges by partition."""


@dataclass(frozen=True, slots=True)
class StartAt:
    """The position in the topic where a table starts. If no field is set, the table starts at the first
    record."""

    latest: bool = False
    offset: int | None = None
    offsets: Mapping[int, int] | None = None
    time_ms: int | None = None


def parse_start_at(text: str) -> StartAt:
    """Parse ``earliest``, ``latest``, an offset, ``0:23,1:40`` or ``@TIME``. Raises :class:`ToolError`."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return StartAt(latest=word == "latest")
    if word.isascii() and word.isdigit():
        return StartAt(offset=int(word))
    if word.startswith("@"):
        return StartAt(time_ms=_time_ms(word[1:]))
    pairs = [part.partition(":")[::2] for part in word.split(",")]
    if all(part.strip().isdecimal() and offset.strip().isdecimal() for part, offset in pairs):
        return StartAt(offsets={int(part): int(offset) for part, offset in pairs})
    raise ToolError(
        f"{text!r} is none of: earliest, latest, an offset, PARTITION:OFFSET,…,"
        " @TIME (ISO 8601 or ms since 1970)"
    )


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return round(datetime.datetime.fromisoformat(text).timestamp() * MILLISECONDS_IN_S)
    except ValueError:
        raise ToolError(f"@{text} is neither milliseconds since 1970 nor a time in ISO 8601") from None


def find_starts(
    bootstrap: str, topic: str, wanted: StartAt, bounds: Bounds, timeout_s: float
) -> dict[int, int]:
    """For each partition, the offset at which the table starts."""
    if wanted.latest:
        return dict(bounds.ends)
    if wanted.offset is not None:
        return dict.fromkeys(bounds.starts, wanted.offset)
    if wanted.offsets is not None:
        for partition in wanted.offsets:
            if partition not in bounds.starts:
                raise ToolError(f"topic {topic} has no partition {partition}")
        return {**bounds.starts, **wanted.offsets}
    if wanted.time_ms is None:
        return dict(bounds.starts)
    return asyncio.run(_find_by_time(bootstrap, topic, wanted.time_ms, bounds, timeout_s))


async def _find_by_time(
    bootstrap: str, topic: str, time_ms: int, bounds: Bounds, timeout_s: float
) -> dict[int, int]:
    async with connected(bootstrap, timeout_s) as client:
        found = await client.offsets(await client.topic(topic), dict.fromkeys(bounds.starts, time_ms))
    return {
        partition: row.offset if row.offset >= 0 else bounds.ends[partition]
        for partition, row in found.items()
    }


class NextRound(NamedTuple):
    """The ranges that a round reads, and the offsets that the table covers after the round."""

    ranges: list[OffsetRange]
    covered: Covered


def next_round(
    topic: str, covered: Covered, bounds: Bounds, starts: Mapping[int, int] | None, *, may_lose: bool
) -> NextRound:
    """Ranges of the next round: the offsets that are not in the table yet. If ``starts`` has an offset before
    the table's first offset, the offsets between them are included.

    An empty table begins at ``starts``, or at the first records if ``starts`` is not given. Partitions that
    are added later begin at their first record. Raises :class:`ToolError` when records were deleted before
    they were exported (unless ``may_lose``). Also raises this error when the topic ends before the exported
    offsets.
    """
    ranges: list[OffsetRange] = []
    after = dict(covered)
    for partition, end in sorted(bounds.ends.items()):
        where = f"{topic}-{partition}"
        first = bounds.starts[partition]
        have = covered.get(partition)
        if have is None:
            begin = first if covered or starts is None else starts[partition]
            if begin > end:
                raise ToolError(f"{where} ends at offset {end}: it has no offset {begin} to begin with")
            begin = _reachable(where, begin, first, may_lose=may_lose)
            have = ExportedSpan(begin, begin)
        elif starts is not None and starts[partition] < have.start:
            begin = _reachable(where, starts[partition], first, may_lose=may_lose)
            if begin < have.start:
                ranges.append(OffsetRange(partition, begin, have.start))
                have = ExportedSpan(begin, have.end)
        if end < have.end:
            raise ToolError(f"{where} ends at offset {end}, but {have.end} offsets of it were exported")
        begin = _reachable(where, have.end, first, may_lose=may_lose)
        if end > begin:
            ranges.append(OffsetRange(partition, begin, end))
        after[partition] = ExportedSpan(have.start, max(begin, end))
    return NextRound(ranges, after)


def _reachable(where: str, wanted: int, first: int, *, may_lose: bool) -> int:
    if first > wanted and not may_lose:
        raise ToolError(
            f"{where}: offsets {wanted} to {first - 1} were deleted before they were exported"
            " (use --allow-data-loss to continue after them)"
        )
    return max(wanted, first)


def lag_records(covered: Covered, bounds: Bounds) -> int:
    """Number of offsets that are in the topic but not in the table. Offsets before the table's start are not
    counted."""
    total = 0
    for partition, end in bounds.ends.items():
        have = covered.get(partition)
        total += max(0, end - (bounds.starts[partition] if have is None else have.end))
    return total


def render_offsets(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})


def parse_offsets(text: str) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.loads(text).items()}
