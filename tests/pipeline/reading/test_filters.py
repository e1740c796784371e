"""The offset ranges that remain after filters, and the filters that Spark must apply itself."""

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from moldau.pipeline.spark_versions import HAS_FILTERS

if not HAS_FILTERS:
    pytest.skip("readers are given filters by Spark 4.1 and newer", allow_module_level=True)

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.source.filters import Narrowing, NumberBounds
from moldau.pipeline.source.pushdown import push

EVERYTHING = OffsetRange(1, 0, 100)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


def pushed(*given: Filter) -> Narrowing:
    narrowing, left = push(given)
    assert list(left) == []
    return narrowing


@pytest.mark.parametrize(
    ("given", "start", "end"),
    [
        (EqualTo(("offset",), 7), 7, 8),
        (GreaterThan(("offset",), 7), 8, 100),
        (GreaterThanOrEqual(("offset",), 7), 7, 100),
        (LessThan(("offset",), 7), 0, 7),
        (LessThanOrEqual(("offset",), 7), 0, 8),
        (GreaterThan(("offset",), 200), 201, 201),
    ],
)
def test_filters_by_offset_shorten_the_range(given: Filter, start: int, end: int) -> None:
    assert pushed(given).cut(EVERYTHING) == OffsetRange(1, start, end)


def test_a_range_satisfies_all_of_its_filters() -> None:
    narrowing = pushed(GreaterThan(("offset",), 5), LessThan(("offset",), 9), IsNotNull(("offset",)))
    assert narrowing.cut(EVERYTHING) == OffsetRange(1, 6, 9)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (EqualTo(("partition",), 1), [1]),
        (In(("partition",), (0, 2)), [0, 2]),
        (GreaterThanOrEqual(("partition",), 1), [1, 2]),
        (EqualTo(("topic",), "orders"), [0, 1, 2]),
        (In(("topic",), ("other",)), []),
    ],
)
def test_partitions_and_topics_are_left_out(given: Filter, taken: list[int]) -> None:
    narrowing = pushed(given)
    assert [partition for partition in range(3) if narrowing.matches("orders", partition)] == taken


def test_a_filter_by_time_limits_the_first_record() -> None:
    narrowing = pushed(GreaterThan(("timestamp",), NOON), LessThanOrEqual(("timestamp",), NOON))
    assert narrowing.timestamp_us == NumberBounds(NOON_US + 1, NOON_US + 1)
    # Timestamps of records have a resolution of one millisecond. Therefore noon plus one millisecond is the
    # first timestamp that can be later than noon.
    assert narrowing.earliest_ms == NOON_US // 1000 + 1
    assert pushed(LessThan(("timestamp",), NOON)).earliest_ms is None


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("headers", "key"), "k"),
        EqualNullSafe(("offset",), 5),
        Not(EqualTo(("partition",), 1)),
        In(("offset",), (1, 2)),
        EqualTo(("offset",), 1.5),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),
        IsNotNull(("value",)),
        GreaterThan(("topic",), "a"),
    ],
)
def test_unknown_filters_are_left_to_spark(given: Any) -> None:
    narrowing, left = push([given])
    assert narrowing == Narrowing()
    assert list(left) == [given]
