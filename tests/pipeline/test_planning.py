"""Ranges of offsets, cut into units and continued from round to round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.errors import ToolError
from moldau.pipeline.planning import Bounds, OffsetRange, pending, split, unit_size

ranges = st.lists(
    st.builds(
        lambda partition, start, count: OffsetRange(partition, start, start + count),
        st.integers(0, 9),
        st.integers(0, 2**40),
        st.integers(0, 5_000),
    ),
    max_size=5,
)


@given(ranges, st.integers(1, 2_000))
def test_units_cover_every_offset_once_and_none_is_too_long(wanted: list[OffsetRange], size: int) -> None:
    units = split(wanted, size)
    assert all(0 < unit.end - unit.start <= size for unit in units)
    joined = [(unit.partition, offset) for unit in units for offset in (unit.start, unit.end)]
    assert sum(unit.end - unit.start for unit in units) == sum(end - start for _, start, end in wanted)
    for one, start, end in wanted:
        if end > start:
            assert (one, start) in joined
            assert (one, end) in joined


@given(ranges, st.integers(1, 20))
def test_there_are_as_many_units_as_asked_for(wanted: list[OffsetRange], units_min: int) -> None:
    total = sum(end - start for _, start, end in wanted)
    assert len(split(wanted, unit_size(wanted, units_min, 10**9))) >= min(total, units_min)


def bounds(starts: dict[int, int], ends: dict[int, int]) -> Bounds:
    return Bounds("id", starts, ends)


def test_a_round_goes_on_where_the_last_one_ended_and_takes_new_partitions_whole() -> None:
    found = pending("t", {0: 10}, bounds({0: 3, 1: 5, 2: 0}, {0: 12, 1: 9, 2: 0}), may_lose=False)
    assert found == [OffsetRange(0, 10, 12), OffsetRange(1, 5, 9)]


def test_records_that_were_deleted_before_their_export_are_not_passed_over_in_silence() -> None:
    now = bounds({0: 20}, {0: 30})
    with pytest.raises(ToolError, match="t-0: offsets 10 to 19 were deleted before they were exported"):
        pending("t", {0: 10}, now, may_lose=False)
    assert pending("t", {0: 10}, now, may_lose=True) == [OffsetRange(0, 20, 30)]


def test_a_topic_that_ends_before_its_export_is_refused() -> None:
    with pytest.raises(ToolError, match="ends at offset 5"):
        pending("t", {0: 10}, bounds({0: 0}, {0: 5}), may_lose=True)
