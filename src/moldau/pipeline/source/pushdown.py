"""Converts filters to a :class:`Narrowing`. Spark 4.1 and newer pass such filters to readers. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
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

from moldau.pipeline.source.filters import Narrowing

NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def push(filters: Sequence[Filter]) -> tuple[Narrowing, Iterator[Filter]]:
    """The :class:`Narrowing` for all filters together, and the filters that Spark must still apply."""
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
    """The value of a literal as an integer. A timestamp becomes microseconds since the epoch."""
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // _MICROSECOND
    return value if type(value) is int else None
