"""Ranges of offsets are divided into units, and the next round continues after them."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.pipeline.reading.planning import OffsetRange, group, split, unit_size

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
def test_there_are_at_least_as_many_units_as_requested(wanted: list[OffsetRange], units_min: int) -> None:
    total = sum(end - start for _, start, end in wanted)
    assert len(split(wanted, unit_size(wanted, units_min, 10**9))) >= min(total, units_min)


def test_neighbours_in_objects_are_read_together_in_windows() -> None:
    ranges = [OffsetRange(partition, 50 * partition, 50 * partition + 100) for partition in range(16)]
    units = group(
        [*ranges, OffsetRange(16, 0, 10), OffsetRange(17, 0, 1)], {**dict.fromkeys(range(16), 7), 17: 9}, 100
    )
    assert units[:3] == [
        (OffsetRange(16, 0, 10),),
        (OffsetRange(0, 0, 50), OffsetRange(1, 50, 100)),
        (OffsetRange(0, 50, 100), OffsetRange(1, 100, 150)),
    ]
    assert len(units) == 1 + 16 + 1
    assert units[-1] == (OffsetRange(17, 0, 1),)


def test_groups_are_bounded_and_lose_nothing() -> None:
    ranges = [OffsetRange(partition, 0, partition % 3) for partition in range(40)]
    units = group(ranges, dict.fromkeys(range(40), 0), 2)
    assert max(map(len, units)) <= 16
    found = sorted((one.partition, offset) for unit in units for one in unit for offset in range(*one[1:]))
    assert found == [(one.partition, offset) for one in ranges for offset in range(*one[1:])]
