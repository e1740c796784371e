"""The segments from which offsets are read if segments overlap or are missing."""

from uuid import UUID

from moldau.pipeline.reading.tier_plan import EpochSpan, SegmentObject, TierPart, plan_parts


def segment(number: int, start: int, end: int, *epochs: tuple[int, int]) -> SegmentObject:
    return SegmentObject(UUID(int=number), start, end, 100, f"{number}.log", epochs or ((0, start),))


FIRST, SECOND = segment(1, 0, 99), segment(2, 100, 199)


def test_a_range_is_cut_at_the_ends_of_segments() -> None:
    assert plan_parts([SECOND, FIRST], 40, 150) == [TierPart(FIRST, 40, 100), TierPart(SECOND, 100, 150)]


def test_offsets_without_a_segment_have_no_source() -> None:
    third = segment(3, 300, 399)
    assert plan_parts([FIRST, third], 90, 500) == [
        TierPart(FIRST, 90, 100),
        TierPart(None, 100, 300),
        TierPart(third, 300, 400),
        TierPart(None, 400, 500),
    ]
    assert plan_parts([], 5, 9) == [TierPart(None, 5, 9)]
    assert plan_parts([FIRST], 9, 9) == []


def test_the_longest_of_overlapping_copies_is_read() -> None:
    longer = segment(3, 50, 180)
    assert plan_parts([FIRST, SECOND, longer], 0, 200) == [
        TierPart(FIRST, 0, 100),
        TierPart(SECOND, 100, 200),
    ]
    assert plan_parts([FIRST, SECOND, longer], 60, 200) == [
        TierPart(longer, 60, 181),
        TierPart(SECOND, 181, 200),
    ]


def test_only_records_of_epochs_in_the_log_are_read_from_a_segment() -> None:
    """The leader of epoch 1 copied records up to offset 120. No other replica had the records from offset 100
    on, so they are not in the log."""
    old, new = segment(1, 0, 120, (0, 0), (1, 60)), segment(2, 90, 200, (1, 90), (3, 100))
    log = {0: EpochSpan(0, 60), 1: EpochSpan(60, 100), 3: EpochSpan(100, 250)}
    assert plan_parts([old, new], 0, 220, log) == [
        TierPart(old, 0, 100),
        TierPart(new, 100, 201),
        TierPart(None, 201, 220),
    ]


def test_an_epoch_that_the_log_never_had_is_not_read() -> None:
    foreign = segment(1, 50, 80, (2, 50))
    log = {1: EpochSpan(0, 100)}
    assert plan_parts([foreign], 40, 90, log) == [TierPart(None, 40, 90)]


def test_a_segment_is_one_part_across_its_epochs() -> None:
    one = segment(1, 10, 80, (1, 10), (2, 30), (5, 60))
    log = {1: EpochSpan(0, 30), 2: EpochSpan(30, 60), 5: EpochSpan(60, 90)}
    assert plan_parts([one], 0, 81, log) == [TierPart(None, 0, 10), TierPart(one, 10, 81)]
