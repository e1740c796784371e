"""Pure functions decide on the batches of a segment, the segments of a unit, the reads of objects, and
expiry."""

from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias
from uuid import UUID

import pytest
from consolidation_house import TOPIC
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.cluster.image.log_generations import FIRST_GENERATION, LogGenerations
from moldau.coordinators.diskless.calls import BatchCoordinate
from moldau.protocol.own.consolidation.plan import ConsolidationPlanResponse
from moldau.tiered.consolidation.consolidated_retention import expired_before, readable_chain
from moldau.tiered.consolidation.plan import (
    GatheredSegment,
    PlannedSegment,
    SegmentGathering,
    SegmentRules,
    lay_out_units,
    plan_ranges,
)
from moldau.tiered.consolidation.steps import decide
from moldau.tiered.consolidation.wire import as_plan, plan_fields
from moldau.tiered.consolidation.work import HeldPlan, Plan, PlannedWork
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from moldau.tiered.removal.remote_retention import Retention

NOW_MS = 1_000_000
State = RemoteLogSegmentState
Rows: TypeAlias = list[tuple[int, int, int, bool]]


def batches_of(rows: Rows, first: int = 10) -> list[BatchCoordinate]:
    """Batches made from rows of ``(object, size, records, stamped)``; ``stamped`` is True for LogAppendTime.
    In one object, there is no byte or one byte between two batches."""
    found: list[BatchCoordinate] = []
    ends: dict[int, int] = {}
    offset = first
    for number, (where, size, records, stamped) in enumerate(rows):
        start = ends.get(where, 100) + (number % 3 == 0)
        ends[where] = start + size
        last = offset + records - 1
        found.append(
            BatchCoordinate(
                *(TOPIC.topic_id, 0, offset, last, f"o{where}", start, size, NOW_MS + number, 7 + number),
                int(stamped),
            )
        )
        offset = last + 1
    return found


rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(61, 300), st.integers(1, 5), st.booleans()),
    min_size=1,
    max_size=40,
)


@given(rows, st.integers(61, 1_000), st.integers(1, 7))
def test_segments_hold_all_batches_in_order(given_: Rows, limit: int, page: int) -> None:
    batches = batches_of(given_)
    gathering = SegmentGathering(SegmentRules(limit, 0))
    found: list[GatheredSegment] = []
    for start in range(0, len(batches), page):
        found += gathering.add(batches[start : start + page])
    rest = gathering.rest(NOW_MS + len(batches))
    found += [rest] if rest is not None else []
    assert sum(one.batches for one in found) == len(batches)
    assert found[0].base_offset == 10
    assert found[-1].end_offset == batches[-1].last_offset
    for before, after in pairwise(found):
        assert after.base_offset == before.end_offset + 1
    for one in found:
        assert one.size_bytes <= limit or one.batches == 1
        assert one.size_bytes == sum(run.size_bytes for run in one.runs)
        for earlier, later in pairwise(one.runs):
            assert later.base_offset == earlier.last_offset + 1
        held = [each for each in batches if one.base_offset <= each.base_offset <= one.end_offset]
        assert one.max_timestamp_ms == max(each.max_timestamp_ms for each in held)
        assert one.oldest_commit_ms == min(each.log_append_time_ms for each in held)
        for batch in held:
            (run,) = [run for run in one.runs if run.base_offset <= batch.base_offset <= run.last_offset]
            assert run.object_key == batch.object_key
            assert run.byte_offset <= batch.byte_offset
            assert batch.byte_offset + batch.size_bytes <= run.byte_offset + run.size_bytes
            assert run.append_time_ms == (batch.log_append_time_ms if batch.timestamp_type else -1)


def test_young_and_small_segments_wait() -> None:
    gathering = SegmentGathering(SegmentRules(1_000, 500))
    assert gathering.add(batches_of([(0, 100, 1, False)])) == []
    assert gathering.rest(NOW_MS + 499) is None
    assert gathering.size_bytes == 100
    rest = gathering.rest(NOW_MS + 500)
    assert rest is not None
    assert rest.batches == 1
    assert gathering.rest(NOW_MS + 500) is None
    with pytest.raises(ValueError, match="came after"):
        gathering.add([batches_of([(0, 100, 1, False)])[0], batches_of([(0, 100, 1, False)], first=12)[0]])


def planned(partition: int, number: int, given_: Rows, first: int) -> PlannedSegment:
    gathering = SegmentGathering(SegmentRules(1 << 30, 0))
    gathering.add(batches_of(given_, first))
    gathered = gathering.rest(1 << 60)
    assert gathered is not None
    name = TopicIdPartition(TOPIC.topic_id, "t", partition)
    return PlannedSegment.of(gathered, name, UUID(int=number + 1), broker_id=1, now_ms=NOW_MS)


plans = st.lists(st.tuples(st.integers(0, 4), rows), min_size=1, max_size=12).map(
    lambda given_: [
        planned(partition, number, some, 1_000 * number) for number, (partition, some) in enumerate(given_)
    ]
)


@settings(max_examples=25)
@given(plans, st.integers(1, 20_000), st.sampled_from([0, 50, 10**6]))
def test_units_and_ranges_cover_everything_once(segments: list[PlannedSegment], limit: int, gap: int) -> None:
    units = lay_out_units(segments, limit)
    order = [one for unit in units for one in unit.segments]
    assert sorted(one.segment_id for one in order) == sorted(one.segment_id for one in segments)
    for partition in {one.partition for one in segments}:
        starts = [one.metadata.start_offset for one in order if one.partition == partition]
        assert starts == sorted(starts)
    for unit in units:
        assert unit.size_bytes <= limit or len(unit.segments) == 1
        ranges = plan_ranges(unit.segments, gap)
        if gap > 10**5:
            assert len(ranges) == len({run.object_key for one in unit.segments for run in one.runs})
        written = [bytearray(one.size_bytes) for one in unit.segments]
        for wanted in ranges:
            for number, position, start, size_bytes in wanted.pieces:
                assert 0 <= start <= start + size_bytes <= wanted.size_bytes
                for at in range(position, position + size_bytes):
                    written[number][at] += 1
        assert all(set(one) == {1} for one in written)


@settings(max_examples=25)
@given(plans)
def test_a_plan_is_unchanged_after_encoding_and_decoding(segments: list[PlannedSegment]) -> None:
    plan = Plan(UUID(int=9), 77, [PlannedWork(one, 3) for one in segments], [HeldPlan("broker", 99, 2)])
    assert as_plan(ConsolidationPlanResponse(**plan_fields(plan))) == plan


# -- recorded segments ---------------------------------------------------------------------------


def segment(
    number: int,
    start: int,
    end: int,
    state: State = State.COPY_SEGMENT_FINISHED,
    *,
    size: int = 100,
    newest_ms: int = NOW_MS,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId.of(TOPIC, UUID(int=number)),
        *(start, end, newest_ms, 1, NOW_MS - 5, size),
        leader_epochs=(EpochStart(0, start),),
        state=state,
    )


finished = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8).map(
    lambda spans: [segment(at + 1, start, start + more) for at, (start, more) in enumerate(spans)]
)


@given(finished, st.integers(0, 30))
def test_no_finished_segment_is_deleted_that_a_reader_could_need(
    segments: list[RemoteLogSegmentMetadata], log_start: int
) -> None:
    steps = decide(
        segments,
        log_start=log_start,
        wal_start=50,
        lineage=FIRST_GENERATION,
        seen_before_fence=set(),
        own=set(),
    )
    left = [one for one in segments if one not in steps.discard]

    def held(some: list[RemoteLogSegmentMetadata]) -> set[int]:
        return {at for one in some for at in range(max(log_start, one.start_offset), one.end_offset + 1)}

    assert held(left) == held(segments)
    for one in left:
        others = [other for other in left if other is not one]
        assert not any(o.start_offset <= one.start_offset and one.end_offset <= o.end_offset for o in others)


def test_segments_that_other_leaders_began_expire_by_the_time_they_were_seen() -> None:
    begun = segment(1, 10, 19, State.COPY_SEGMENT_STARTED)
    own = segment(2, 20, 29, State.COPY_SEGMENT_STARTED)
    unseen = segment(3, 10, 29, State.COPY_SEGMENT_STARTED)
    leaving = segment(4, 0, 9, State.DELETE_SEGMENT_STARTED)
    ahead, holding = segment(5, 15, 40), segment(6, 5, 12)
    steps = decide(
        [begun, own, unseen, leaving, ahead, holding],
        log_start=0,
        wal_start=10,
        lineage=FIRST_GENERATION,
        seen_before_fence={begun.id.id, own.id.id, leaving.id.id, ahead.id.id, holding.id.id},
        own={own.id.id},
    )
    assert steps.adopt is holding
    assert steps.discard == (begun, leaving)


def test_a_segment_of_a_lost_end_is_not_adopted() -> None:
    # Generation 1 begins at offset 30. From this offset on, the log has other records than the lost segment.
    lost = segment(1, 10, 49)
    whole = replace(segment(2, 10, 39), leader_epochs=(EpochStart(0, 10), EpochStart(1, 30)))
    for segments in ([lost], [lost, whole]):
        steps = decide(
            segments,
            log_start=0,
            wal_start=10,
            lineage=LogGenerations((30,)),
            seen_before_fence={one.id.id for one in segments},
            own=set(),
        )
        assert steps.adopt is (whole if whole in segments else None)
        assert steps.discard == (lost,)


def test_retention_takes_whole_segments_from_the_oldest_on() -> None:
    ages = (900, 100, 800, 50)
    segments = [segment(at + 1, 10 * at, 10 * at + 9, newest_ms=NOW_MS - age) for at, age in enumerate(ages)]
    overlap = segment(9, 15, 24, newest_ms=NOW_MS)
    chain = readable_chain([*segments, overlap], 3, 40)
    assert [one.start_offset for one in chain] == [0, 10, 20, 30]
    chain = readable_chain(segments, 3, 40)
    assert [one.start_offset for one in chain] == [0, 10, 20, 30]
    assert readable_chain(segments[1:], 3, 40) == []

    def expire(ms: int = -1, size: int = -1, wal: int = 0, end: int = 40) -> int | None:
        return expired_before(chain, Retention(ms, size), wal_start=end, wal_size_bytes=wal, now_ms=NOW_MS)

    assert expire() is None
    assert expire(ms=500) == 10  # the second segment is young, so the old third segment is kept
    assert expire(ms=99) == 30
    assert expire(ms=10) == 40
    assert expire(ms=10, end=35) == 35
    assert expire(size=400) is None
    assert expire(size=399) is None  # without the first segment, less than retention.bytes would be left
    assert expire(size=300) == 10
    assert expire(size=300, wal=100) == 20
    assert expire(size=0) == 40
    undated = [segment(1, 0, 9, newest_ms=-1)]
    assert expired_before(undated, Retention(4), wal_start=40, wal_size_bytes=0, now_ms=NOW_MS) == 10
