"""Compaction. The tests check the records that remain, and the time after which tombstones and markers are
removed."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cleaned_log import CONFIG, NAME, CleanedLog
from hypothesis import given, settings
from hypothesis import strategies as st
from times_of import TimesOf

from created_logs import get_or_create
from moldau.records.batch import iter_headers, validate_produce
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.record import Record, iter_records
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.simulation.world.world import World
from moldau.storage.cleaner.candidates import find_candidate
from moldau.storage.cleaner.cleaner import CleanerSettings, LogCleaner
from moldau.storage.cleaner.offset_map import OffsetMap
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager, LogManagerSettings

DAY_MS = 86_400_000
KEYS = [b"a", b"b", b"c", b"a key that is longer than a digest", b""]


@pytest.fixture
def cleaned(box: Any) -> CleanedLog:
    return CleanedLog(box)


def headers_of(cleaned: CleanedLog) -> list[Any]:
    found = []
    offset = 0
    while offset < cleaned.log.log_end_offset:
        result = cleaned.log.read(offset, 10**6)
        found += [header for _, header in iter_headers(b"".join(result.views))]
        offset = result.next_offset
    return found


def test_the_last_value_of_each_key_is_left_at_its_offset(cleaned: CleanedLog) -> None:
    for number in range(10):
        cleaned.append([(b"a", b"%d" % number), (b"b", b"%d" % number)], Compression.ZSTD)
    cleaned.append([(b"c", b"only")])
    cleaned.log.roll()
    assert cleaned.clean() == 1
    cleaned.check()
    assert [(r.offset, r.key, r.value) for r in cleaned.read_from(0)] == [
        (18, b"a", b"9"),
        (19, b"b", b"9"),
        (20, b"c", b"only"),
    ]
    assert [header.compression for header in headers_of(cleaned)] == [Compression.ZSTD, Compression.NONE]
    assert cleaned.logs.offset == 21
    assert cleaned.clean() == 0


def test_records_in_the_active_segment_are_not_cleaned(cleaned: CleanedLog) -> None:
    cleaned.append([(b"a", b"1")])
    cleaned.append([(b"a", b"2")])
    assert cleaned.clean() == 0
    cleaned.log.roll()
    cleaned.append([(b"a", b"3")])
    cleaned.clean()
    assert [r.value for r in cleaned.read_from(0)] == [b"2", b"3"]


def test_a_tombstone_is_removed_after_its_delete_horizon(cleaned: CleanedLog) -> None:
    cleaned.append([(b"a", b"1"), (b"b", b"2")])
    cleaned.append([(b"a", None)])
    cleaned.append([(b"z", b"")])
    cleaned.log.roll()
    cleaned.clean()
    assert [(r.key, r.value) for r in cleaned.read_from(0)] == [(b"b", b"2"), (b"a", None), (b"z", b"")]
    horizons = [header.delete_horizon_ms for header in headers_of(cleaned)]
    assert horizons == [None, cleaned.box.clock.time_ms + 1000, None]
    for later_ms, keys in ((999, [b"b", b"a"]), (1, [b"b"])):
        cleaned.box.clock.time_ms += later_ms
        cleaned.append([(b"z", b"")])
        cleaned.log.roll()
        cleaned.clean()
        assert [r.key for r in cleaned.read_from(0) if r.key != b"z"] == keys
    cleaned.check()


def test_the_last_batch_of_a_producer_and_of_the_round_stay_empty(cleaned: CleanedLog) -> None:
    cleaned.append([(b"a", b"1"), (b"b", b"1")], Compression.GZIP, producer_id=7)
    cleaned.append([(b"a", b"2"), (b"b", b"2")])
    cleaned.append([(b"a", b"3")])
    cleaned.log.roll()
    cleaned.clean()
    first = headers_of(cleaned)[0]
    assert (first.base_offset, first.last_offset, first.records_count) == (0, 1, 0)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (7, 0, 0)
    cleaned.open(recovery_point=0, clean=False, offset=cleaned.logs.offset)
    cleaned.append([(b"a", b"4")], producer_id=7)
    cleaned.sequences[7] = 9
    with pytest.raises(KafkaError) as refused:
        cleaned.append([(b"a", b"5")], producer_id=7)
    assert refused.value.code is ErrorCode.out_of_order_sequence_number


def test_aborted_records_never_hide_committed_ones(cleaned: CleanedLog) -> None:
    cleaned.append([(b"a", b"committed")])
    cleaned.append([(b"a", b"aborted"), (b"b", b"aborted")], producer_id=1, transactional=True)
    cleaned.end_transaction(1, commit=False)
    cleaned.append([(b"c", b"c")], producer_id=2, transactional=True)
    cleaned.end_transaction(2, commit=True)
    cleaned.log.roll()
    cleaned.clean()
    assert [r.value for r in cleaned.read_from(0, committed=True)] == [b"committed", b"c"]
    cleaned.check()


def test_a_key_deleted_after_an_aborted_transaction_stays_deleted(cleaned: CleanedLog) -> None:
    cleaned.append([(b"k", b"v")])
    cleaned.append([(b"x", b"aborted")], producer_id=1, transactional=True)
    cleaned.end_transaction(1, commit=False)
    cleaned.append([(b"f", b"1")])
    cleaned.log.roll()
    cleaned.clean()
    cleaned.append([(b"k", None)], producer_id=1, transactional=True)
    cleaned.end_transaction(1, commit=True)
    for number in range(4):
        cleaned.append([(b"f", b"%d" % number)])
        cleaned.log.roll()
        cleaned.clean()
        cleaned.box.clock.time_ms += 5000
    cleaned.check()
    assert [r.key for r in cleaned.read_from(0, committed=True) if r.value is not None] == [b"f"]


def test_markers_outlive_their_records_by_the_horizon(box: Any) -> None:
    cleaned = CleanedLog(box, replace(CONFIG, producer_id_expiration_ms=1))
    cleaned.append([(b"a", b"aborted")], producer_id=1, transactional=True)
    cleaned.end_transaction(1, commit=False)
    markers = []
    indexed = []
    for _ in range(4):
        box.clock.time_ms += 2
        cleaned.log.producers.state.remove_expired(box.clock.time_ms)
        cleaned.append([(b"z", b"z")])
        cleaned.log.roll()
        cleaned.clean()
        markers.append(sum(header.is_control for header in headers_of(cleaned)))
        indexed.append(sum(len(s.transaction_index) for s in cleaned.log.segments.segments))
        box.clock.time_ms += 600
    # There are four rounds. In the first round, the records of the transaction still exist. The second round
    # removes them and sets the delete horizon of the marker. The third round is before this horizon, and the
    # fourth round is after it.
    assert markers == [1, 1, 1, 0]
    assert indexed == [1, 0, 0, 0]


def test_no_record_after_the_start_of_an_open_transaction_is_cleaned(cleaned: CleanedLog) -> None:
    cleaned.append([(b"a", b"1")])
    cleaned.append([(b"a", b"2")])
    cleaned.log.roll()
    cleaned.append([(b"a", b"3")], producer_id=1, transactional=True)
    cleaned.log.roll()
    cleaned.append([(b"a", b"4")])
    cleaned.log.roll()
    cleaned.clean()
    assert cleaned.logs.offset == 2
    assert [r.value for r in cleaned.read_from(0)] == [b"2", b"3", b"4"]


def test_records_stay_for_the_minimum_lag_and_go_after_the_maximum(box: Any) -> None:
    config = replace(CONFIG, min_compaction_lag_ms=100, max_compaction_lag_ms=5000)
    cleaned = CleanedLog(box, replace(config, min_cleanable_dirty_ratio=1.0))
    for _ in range(2):
        cleaned.append([(b"a", b"1")])
        cleaned.log.roll()
    log = cleaned.log
    asyncio.run(log.flush())
    assert find_candidate(log, None, box.clock.time_ms + 99) is None
    found = find_candidate(log, None, box.clock.time_ms + 100)
    assert found is not None
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 2)
    assert (found.dirty_ratio, found.is_due) == (1.0, False)
    late = find_candidate(log, None, box.clock.time_ms + 5001)
    assert late is not None
    assert late.is_due
    assert find_candidate(log, 2, box.clock.time_ms + 5001) is None
    # The active segment is closed after ``roll_ms``, so that its records are cleaned within the maximum
    # compaction lag.
    assert config.roll_ms == 5000


def test_a_log_is_cleaned_only_above_the_dirty_ratio(box: Any) -> None:
    cleaned = CleanedLog(box, replace(CONFIG, min_cleanable_dirty_ratio=0.5))
    for number in range(4):
        cleaned.append([(b"%d" % number, b"1")])
        cleaned.log.roll()
    assert cleaned.clean() == 1
    for number in range(4):
        cleaned.append([(b"%d" % number, b"1")])
        cleaned.log.roll()
        assert cleaned.clean(rounds=5) == 0
    cleaned.append([(b"0", b"1")])
    cleaned.log.roll()
    assert cleaned.clean(rounds=5) == 1
    cleaned.check()


def test_a_full_map_takes_several_rounds(cleaned: CleanedLog) -> None:
    for number in range(40):
        cleaned.append([(b"%d" % (number % 7), b"%d" % number), (b"x%d" % number, b"")])
    cleaned.log.roll()
    assert cleaned.clean(keys_at_once=5) > 8
    cleaned.check()
    assert len(cleaned.read_from(0)) <= 40 + 40


def test_small_segments_are_joined_within_the_bound(cleaned: CleanedLog) -> None:
    for number in range(40):
        cleaned.append([(b"%d" % (number % 3), b"x" * 50)])
        cleaned.log.roll()
    cleaned.clean()
    assert len(cleaned.log.segments.segments) < 10
    assert all(s.size_bytes <= CONFIG.segment_bytes for s in cleaned.log.segments.segments)
    cleaned.clean()
    cleaned.append([(b"0", b"")])
    cleaned.log.roll()
    cleaned.clean()
    assert len(cleaned.log.segments.segments) == 2
    cleaned.check()


def test_records_without_a_key_are_refused_and_old_ones_go(box: Any) -> None:
    cleaned = CleanedLog(box, replace(CONFIG, cleanup_compact=False))
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v"), Record(0, box.clock.time_ms, b"k", b"v")])
    headers = validate_produce(batch, max_batch_bytes=10**6)
    cleaned.log.append_as_leader(batch, headers, 0)
    cleaned.log.config = CONFIG
    with pytest.raises(KafkaError) as refused:
        cleaned.log.append_as_leader(batch, headers, 0)
    assert refused.value.code is ErrorCode.invalid_record
    assert cleaned.log.log_end_offset == 2
    cleaned.log.high_watermark = 2
    cleaned.log.roll()
    cleaned.clean()
    assert [r.key for h in [cleaned.log.read(0, 1000)] for r in iter_records(h.views[0])] == [b"k"]


def test_a_log_that_changes_meanwhile_is_left_for_later(box: Any) -> None:
    cleaned = CleanedLog(box)
    for number in range(30):
        cleaned.append([(b"a", b"%d" % number)])
    cleaned.log.roll()
    run = box.machine.workers.run
    cut = []

    async def truncating(function: Any, *args: Any) -> Any:
        result = await run(function, *args)
        if box.disk.exists("/data/t-0/00000000000000000000.log.cleaned") and not cut:
            cut.append(5)
            await cleaned.log.truncate_to(5)
        return result

    box.machine.workers.run = truncating
    try:
        assert cleaned.clean(rounds=1) == 1
    finally:
        del box.machine.workers.run
    assert cut
    assert cleaned.logs.offset is None
    assert not [name for name in box.disk.names if name.endswith((".cleaned", ".swap"))]
    assert [r.offset for r in cleaned.read_from(0)] == list(range(5))


def test_a_log_with_unreadable_bytes_is_not_compacted(box: Any) -> None:
    cleaned = CleanedLog(box)
    for number in range(30):
        cleaned.append([(b"a", b"%d" % number)])
    cleaned.log.roll()
    box.disk.names["/data/t-0/00000000000000000000.log"].data[70] ^= 1
    with pytest.raises(AssertionError):
        cleaned.clean()  # the cleaner has recorded that it cannot clean the log
    assert cleaned.logs.offset is None
    assert not [name for name in box.disk.names if name.endswith((".cleaned", ".swap"))]


def test_the_map_is_bounded_and_exact() -> None:
    offsets = OffsetMap(0)
    assert offsets.put(b"k", 1)
    assert offsets.put(b"k", 2)
    assert not offsets.put(b"l", 3)
    assert (offsets.get(b"k"), offsets.get(b"l"), offsets.latest_offset, offsets.is_full) == (2, -1, 2, True)


PAIR = st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=60)))
STEP = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(PAIR, min_size=1, max_size=5),
        st.sampled_from(Compression),
        st.sampled_from([-1, -1, 1]),
    ),
    st.tuples(st.just("transaction"), st.lists(PAIR, min_size=1, max_size=3), st.sampled_from([2, 3])),
    st.tuples(st.just("end"), st.sampled_from([2, 3]), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("later"), st.sampled_from([1, 700, DAY_MS])),
    st.tuples(st.just("clean"), st.integers(1, 6)),
    st.tuples(st.just("reopen"), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, min_size=5, max_size=40))
def test_readers_see_the_last_value_of_each_key(new_box: Any, steps: list[Any]) -> None:
    cleaned = CleanedLog(new_box())
    for step in steps:
        match step:
            case "append", pairs, codec, producer_id:
                cleaned.append(pairs, codec, producer_id)
            case "transaction", pairs, producer_id:
                cleaned.append(pairs, producer_id=producer_id, transactional=True)
            case "end", producer_id, commit:
                cleaned.end_transaction(producer_id, commit=commit)
            case ("roll",):
                cleaned.log.roll()
            case "later", milliseconds:
                cleaned.box.clock.time_ms += milliseconds
            case "clean", keys:
                cleaned.clean(keys_at_once=keys)
                cleaned.check()
            case "reopen", clean:
                cleaned.log.close()
                cleaned.open(
                    recovery_point=cleaned.log.flushed_offset, clean=clean, offset=cleaned.logs.offset
                )
    cleaned.log.roll()
    cleaned.clean()
    cleaned.check()


MANAGED = replace(CONFIG, file_delete_delay_ms=0, delete_retention_ms=0)


def managed(box: Any) -> LogManager:
    cleaner = CleanerSettings(backoff_ms=DAY_MS)
    return LogManager(box.machine, ["/data"], LogManagerSettings(cleaner=cleaner))


async def fill(box: Any, manager: LogManager) -> dict[bytes, int]:
    """Write segments in which each key is overwritten many times. Returns the last offset of each key."""
    log = await get_or_create(manager, NAME, MANAGED, box.machine.entropy.uuid4())
    last: dict[bytes, int] = {}
    for number in range(60):
        key = b"%d" % (number % 4) if number % 5 else b"only %d" % number
        batch = build_batch([Record(0, box.clock.time_ms, key, b"v" * 30)])
        info = log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
        last[key] = info.first_offset
        log.high_watermark = log.log_end_offset
    log.roll()
    return last


def power_fails_after(box: Any, operations: int, seed: int) -> bool:
    """Clean a log on a disk that fails after ``operations`` operations. Returns whether the disk failed
    before the end of the cleaning."""

    async def scenario() -> tuple[dict[bytes, int], bool]:
        manager = managed(box)
        await manager.start(lambda _: MANAGED)
        last = await fill(box, manager)
        log = manager.get(NAME)
        assert log is not None
        await log.flush()
        await manager.checkpoint()
        check, left = box.disk.check, [operations]

        def counting() -> None:
            left[0] -= 1
            box.disk.failing = box.disk.failing or left[0] < 0
            check()

        box.disk.check = counting
        await manager.cleaner.run()
        await manager.clean_up()
        died = box.disk.failing
        del box.disk.check
        box.disk.failing = False
        for task in manager._tasks:
            task.cancel()
        return last, died

    last, died = asyncio.run(scenario())
    box.disk.crash(random.Random(seed))

    async def again() -> None:
        manager = managed(box)
        await manager.start(lambda _: MANAGED)
        log = manager.get(NAME)
        assert log is not None
        for _ in range(2):
            assert log.log_end_offset == 60
            found = []
            offset = 0
            while offset < 60:
                result = log.read(offset, 500, upper_bound_offset=60)
                found += [record for view in result.views for record in _records(bytes(view))]
                assert result.next_offset > offset
                offset = result.next_offset
            offsets = [record.offset for record in found]
            assert offsets == sorted(set(offsets))
            assert {record.key: record.offset for record in found} == last
            names = [name for name in box.disk.names if name.startswith("/data/t-0/")]
            assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
            log.high_watermark = 60
            await manager.cleaner.run()
        assert len(found) == len(last)
        await manager.stop()

    asyncio.run(again())
    return died


def _records(content: bytes) -> list[Record]:
    return [
        record
        for position, header in iter_headers(content)
        for record in iter_records(content[position : position + header.size_bytes])
    ]


def test_a_crash_at_every_step_loses_nothing(new_box: Any) -> None:
    operations = 0
    while power_fails_after(new_box(), operations, seed=operations):
        operations += 1
    assert operations > 40


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_step_loses_no_key_if_unsynced_bytes_are_lost(new_box: Any, seed: int) -> None:
    power_fails_after(new_box(), random.Random(seed).randrange(90), seed)


def test_the_checkpoint_is_kafkas_and_is_kept(box: Any) -> None:
    async def scenario() -> None:
        manager = managed(box)
        await manager.start(lambda _: MANAGED)
        await fill(box, manager)
        await manager.cleaner.run()
        assert box.disk.read("/data/cleaner-offset-checkpoint") == b"0\n1\nt 0 60\n"
        await manager.stop()
        again = managed(box)
        await again.start(lambda _: MANAGED)
        assert again.cleaner_offset(NAME) == 60
        log = again.get(NAME)
        assert log is not None
        await log.truncate_to(50)
        end = log.log_end_offset
        assert end < 50
        assert box.disk.read("/data/cleaner-offset-checkpoint") == b"0\n1\nt 0 %d\n" % end
        again.delete(NAME)
        await get_or_create(again, NAME, MANAGED, box.machine.entropy.uuid4())
        assert again.cleaner_offset(NAME) is None
        await again.stop()

    box.run(scenario())


def test_compaction_keeps_to_its_rate(box: Any) -> None:
    async def scenario() -> float:
        manager = managed(box)
        await manager.start(lambda _: LogConfig())
        await fill(box, manager)
        log = manager.get(NAME)
        assert log is not None
        manager.cleaner.settings = CleanerSettings(io_max_bytes_per_second=log.size_bytes * 20)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await manager.cleaner.run()
        took = loop.time() - started
        await manager.stop()
        return took

    assert box.run(scenario()) > 0.05


def test_a_log_that_is_also_shortened_continues(box: Any) -> None:
    """With cleanup.policy=compact,delete, retention also deletes cleaned segments, even if they are empty."""
    cleaned = CleanedLog(
        box, replace(CONFIG, cleanup_delete=True, retention_ms=10_000, delete_retention_ms=0)
    )
    for number in range(60):
        cleaned.append([(b"%d" % (number % 4), b"x" * 40)])
    for key in range(4):
        cleaned.append([(b"%d" % key, None)])
    for _ in range(3):
        box.clock.time_ms += 1
        cleaned.append([(b"z", b"")])
        cleaned.log.roll()
        cleaned.clean()
    sizes = [segment.size_bytes for segment in cleaned.log.segments.segments]
    assert sizes[0] < 300
    box.clock.time_ms += 20_000
    paths = asyncio.run(cleaned.log.delete_old_segments(box.clock.time_ms))
    assert len([path for path in paths if path.endswith(".log.deleted")]) == len(sizes) - 1
    assert cleaned.log.log_start_offset == cleaned.log.log_end_offset == 67
    cleaned.append([(b"a", b"1")])
    assert [r.offset for r in cleaned.read_from(67)] == [67]


def test_the_latest_timestamp_is_a_records_even_if_a_later_batch_was_emptied(cleaned: CleanedLog) -> None:
    now = cleaned.box.clock.time_ms
    cleaned.append([(b"b", b"1")])
    cleaned.box.clock.time_ms = now + 50
    cleaned.append([(b"a", b"1")], producer_id=7)
    cleaned.box.clock.time_ms = now + 10
    cleaned.append([(b"a", b"2")])
    cleaned.log.roll()
    cleaned.clean()
    times = TimesOf(cleaned.box, cleaned.log)
    assert times.latest() == times.at_or_after(now + 5) == (2, now + 10)
    assert times.at_or_after(now + 20) is None


def test_a_node_that_stops_in_the_middle_leaves_a_whole_log(box: Any) -> None:
    async def scenario() -> None:
        manager = managed(box)
        await manager.start(lambda _: MANAGED)
        last = await fill(box, manager)
        run, cleaning = box.machine.workers.run, asyncio.create_task(manager.cleaner.run())

        async def stopping(function: Any, *args: Any) -> Any:
            result = await run(function, *args)
            if any(name.endswith(".log.cleaned") for name in box.disk.names):
                cleaning.cancel()
            return result

        box.machine.workers.run = stopping
        await asyncio.gather(cleaning, return_exceptions=True)
        del box.machine.workers.run
        assert cleaning.cancelled()
        await manager.stop()
        again = managed(box)
        await again.start(lambda _: MANAGED)
        assert not [name for name in box.disk.names if name.endswith(".cleaned")]
        log = again.get(NAME)
        assert log is not None
        log.high_watermark = log.log_end_offset
        await again.cleaner.run()
        segments = log.segments.segments
        views = [segment.file.view(0, segment.size_bytes) for segment in segments]
        records = [record for view in views for record in _records(bytes(view))]
        assert {record.key: record.offset for record in records} == last
        assert len(records) == len(last)
        await again.stop()

    box.run(scenario())


def test_the_pause_between_rounds_may_change_at_any_time() -> None:
    """``log.cleaner.backoff.ms`` may change while the cleaner runs."""
    rounds: list[float] = []

    class NoLogs:
        def __iter__(self) -> Iterator[PartitionLog]:
            rounds.append(asyncio.get_running_loop().time())
            return iter(())

    async def story(machine: Machine) -> None:
        cleaner = LogCleaner(machine, NoLogs(), CleanerSettings(backoff_ms=1_000))  # type: ignore[arg-type]
        chore = asyncio.create_task(cleaner.run_forever())
        await asyncio.sleep(2.5)
        cleaner.settings = CleanerSettings(backoff_ms=10_000)
        await asyncio.sleep(20)
        chore.cancel()

    with World(1) as world:
        process = world.host("broker").start(story)
        assert process.main is not None
        world.run(process.main)
    assert [round(time - rounds[0]) for time in rounds] == [0, 1, 2, 12]
