"""Filters of a query that narrow what is read: by topic, partition, offset and timestamp. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from moldau.pipeline.reading.planning import OffsetRange

NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from ``start`` to below ``end``; ``None`` for no bound."""

    start: int | None = None
    end: int | None = None

    def narrowed(self, start: int | None, end: int | None) -> "Span":
        starts = [one for one in (self.start, start) if one is not None]
        ends = [one for one in (self.end, end) if one is not None]
        return Span(max(starts, default=None), min(ends, default=None))

    def __contains__(self, number: int) -> bool:
        return (self.start is None or number >= self.start) and (self.end is None or number < self.end)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What the filters leave."""

    topics: frozenset[str] | None = None
    partition: Span = Span()
    partitions: frozenset[int] | None = None
    offset: Span = Span()
    timestamp_us: Span = Span()
    """Microseconds since the epoch."""

    def takes(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and partition in self.partition
        )

    def cut(self, wanted: OffsetRange) -> OffsetRange:
        """What the filters on offsets leave of a range; maybe nothing."""
        start = max(wanted.start, self.offset.start if self.offset.start is not None else wanted.start)
        end = min(wanted.end, self.offset.end if self.offset.end is not None else wanted.end)
        return OffsetRange(wanted.partition, start, max(start, end))

    @property
    def earliest_ms(self) -> int | None:
        """Records before this time are not wanted; ``None`` when the filters do not say so."""
        start = self.timestamp_us.start
        return None if start is None or start <= 0 else -(-start // 1000)


def push(filters: Sequence[Filter]) -> tuple[Narrowing, Iterator[Filter]]:
    """What the filters narrow together, and those that Spark still has to apply."""
    narrowing = Narrowing()
    left = []
    for one in filters:
        pushed = _pushed(narrowing, one)
        if pushed is None:
            left.append(one)
        else:
            narrowing = pushed
    return narrowing, iter(left)


def _pushed(narrowing: Narrowing, one: Filter) -> Narrowing | None:
    path: Sequence[str] = getattr(one, "attribute", ())
    if len(path) != 1 or path[0] not in NEVER_NULL:
        return None
    column = path[0]
    if isinstance(one, IsNotNull):
        return narrowing
    if column == "topic":
        return _pushed_topic(narrowing, one)
    if isinstance(one, In):
        return _pushed_in(narrowing, column, one.value)
    value = _number(column, getattr(one, "value", None))
    if value is None:
        return None
    match one:
        case EqualTo():
            bounds: tuple[int | None, int | None] = (value, value + 1)
        case GreaterThan():
            bounds = (value + 1, None)
        case GreaterThanOrEqual():
            bounds = (value, None)
        case LessThan():
            bounds = (None, value)
        case LessThanOrEqual():
            bounds = (None, value + 1)
        case _:
            return None
    match column:
        case "partition":
            return replace(narrowing, partition=narrowing.partition.narrowed(*bounds))
        case "offset":
            return replace(narrowing, offset=narrowing.offset.narrowed(*bounds))
        case "timestamp":
            return replace(narrowing, timestamp_us=narrowing.timestamp_us.narrowed(*bounds))
    return None


def _pushed_topic(narrowing: Narrowing, one: Filter) -> Narrowing | None:
    if isinstance(one, EqualTo):
        names: Collection[Any] = (one.value,)
    elif isinstance(one, In):
        names = one.value
    else:
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    known = frozenset(names)
    return replace(narrowing, topics=known if narrowing.topics is None else narrowing.topics & known)


def _pushed_in(narrowing: Narrowing, column: str, values: Sequence[Any]) -> Narrowing | None:
    if column != "partition" or not all(type(value) is int for value in values):
        return None
    known = frozenset(values)
    before = narrowing.partitions
    return replace(narrowing, partitions=known if before is None else before & known)


def _number(column: str, value: Any) -> int | None:
    """A literal as a whole number; a timestamp as microseconds since the epoch."""
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // _MICROSECOND
    return value if type(value) is int else None
