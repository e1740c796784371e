"""The exported offsets of a table, and the ranges of the next round."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from moldau.client.errors import ToolError
from moldau.pipeline.export.progress import ExportedSpan, lag_records, next_round, parse_start_at
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import Bounds


def bounds(starts: dict[int, int], ends: dict[int, int]) -> Bounds:
    return Bounds("id", starts, ends)


def test_a_round_continues_where_the_last_one_ended_and_takes_new_partitions_whole() -> None:
    now = bounds({0: 3, 1: 5, 2: 0}, {0: 12, 1: 9, 2: 0})
    found = next_round("t", {0: ExportedSpan(4, 10)}, now, None, may_lose=False)
    assert found.ranges == [OffsetRange(0, 10, 12), OffsetRange(1, 5, 9)]
    assert found.covered == {0: (4, 12), 1: (5, 9), 2: (0, 0)}


def test_records_that_were_deleted_before_their_export_are_reported() -> None:
    now = bounds({0: 20}, {0: 30})
    with pytest.raises(ToolError, match="t-0: offsets 10 to 19 were deleted before they were exported"):
        next_round("t", {0: ExportedSpan(0, 10)}, now, None, may_lose=False)
    assert next_round("t", {0: ExportedSpan(0, 10)}, now, None, may_lose=True).ranges == [
        OffsetRange(0, 20, 30)
    ]


def test_a_topic_that_ends_before_its_export_is_refused() -> None:
    with pytest.raises(ToolError, match="ends at offset 5"):
        next_round("t", {0: ExportedSpan(0, 10)}, bounds({0: 0}, {0: 5}), None, may_lose=True)


def test_a_table_cannot_begin_after_the_end_of_its_topic() -> None:
    with pytest.raises(ToolError, match="t-0 ends at offset 5: it has no offset 6 to begin with"):
        next_round("t", {}, bounds({0: 0}, {0: 5}), {0: 6}, may_lose=True)
    with pytest.raises(ToolError, match="offsets 1 to 2 were deleted"):
        next_round("t", {}, bounds({0: 3}, {0: 5}), {0: 1}, may_lose=False)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6))
def test_rounds_cover_a_partition_without_gaps_or_repeats(steps: list[tuple[int, int]]) -> None:
    """The topic grows. Each offset is read once, whatever start was requested."""
    covered: Mapping[int, ExportedSpan] = {}
    read: list[int] = []
    end = 0
    for grown, begin in steps:
        end += grown
        starts = {0: min(begin, end)}
        ranges, covered = next_round("t", covered, bounds({0: 0}, {0: end}), starts, may_lose=False)
        read += [offset for one in ranges for offset in range(one.start, one.end)]
    assert sorted(read) == list(range(*covered[0]))


def test_lag_counts_records_that_are_not_in_the_table_yet() -> None:
    now = bounds({0: 3, 1: 5}, {0: 12, 1: 9})
    assert lag_records({0: ExportedSpan(4, 10)}, now) == 2 + 4
    assert lag_records({0: ExportedSpan(4, 12), 1: ExportedSpan(9, 9)}, now) == 0


def test_start_positions_of_a_table_are_parsed() -> None:
    assert parse_start_at("earliest") != parse_start_at("latest")
    assert parse_start_at("12").offset == 12
    assert parse_start_at("0:1, 3:4").offsets == {0: 1, 3: 4}
    assert parse_start_at("@2031-05-17T08:30:00+00:00").time_ms == 1936773000000
    for text in ("", "soon", "-1", "0:", "1:²", "@never"):
        with pytest.raises(ToolError):
            parse_start_at(text)
