"""The format of WAL objects, the buffer that builds an object, and the memory of buffers and of recent
objects."""

import ctypes
import mmap
import random
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from writer_fakes import batch, key, topic

from moldau.diskless.object_keys import new_object_key, parse_object_key, wal_folders
from moldau.diskless.reading.recent_objects import RecentObjects
from moldau.diskless.wal import (
    TRAILER_SIZE_BYTES,
    CorruptWalObjectError,
    describe,
    parse_object,
    tail_size_bytes,
)
from moldau.diskless.writing.buffers.arenas import ArenaPool
from moldau.diskless.writing.buffers.buffer import (
    BuiltObject,
    CloseDecision,
    ClosePolicy,
    CloseReason,
    WalBuffer,
)
from moldau.protocol.partitions import PartitionKey
from moldau.records import check_batch
from moldau.runtime import SeededEntropy

ARENA = 1 << 20

arrivals = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 3),
        st.binary(max_size=200),
        st.integers(1, 3),
        st.sampled_from([-1, 0, 77]),
        st.integers(0, 2**31 - 1),
    ),
    min_size=1,
    max_size=30,
)


def _fill(
    pool: ArenaPool, rows: Sequence[tuple[int, int, bytes, int, int, int]]
) -> tuple[BuiltObject[int], dict[PartitionKey, list[bytes]]]:
    buffer: WalBuffer[int] = WalBuffer(pool, 1)
    sent: dict[PartitionKey, list[bytes]] = defaultdict(list)
    for number, (topic_number, partition, value, count, producer, sequence) in enumerate(rows):
        records, header = batch(
            value,
            count=count,
            producer_id=producer,
            epoch=3 if producer >= 0 else -1,
            sequence=sequence if producer >= 0 else -1,
        )
        where = key(topic_number, partition)
        buffer.add(where, records, header, 0, number)
        sent[where].append(bytes(records))
    return buffer.build(created_ms=1_700_000_000_000, broker_id=4), sent


@given(arrivals)
def test_an_object_describes_its_batches(rows: list[tuple[int, int, bytes, int, int, int]]) -> None:
    built, sent = _fill(ArenaPool(ARENA), rows)
    content = bytes(built.arena[: built.size_bytes])
    found = parse_object(content, len(content))
    assert (found.created_ms, found.broker_id) == (1_700_000_000_000, 4)
    assert [PartitionKey(run.topic_id, run.partition_index) for run in found.runs] == sorted(sent)
    position = 0
    for run in found.runs:
        assert run.byte_offset == position
        parts = sent[PartitionKey(run.topic_id, run.partition_index)]
        assert content[position : position + run.size_bytes] == b"".join(parts)
        position += run.size_bytes
    assert position == found.data_size_bytes
    for entry, buffered in zip(found.batches(), built.batches, strict=True):
        header = check_batch(content, entry.byte_offset)
        assert buffered.byte_offset == entry.byte_offset
        assert header == buffered.header
        assert entry[3:] == (
            header.size_bytes,
            header.last_offset_delta,
            header.records_count,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.attributes,
            header.crc,
        )


@given(arrivals, st.integers(0, 10_000))
def test_the_footer_can_be_read_from_the_tail_alone(
    rows: list[tuple[int, int, bytes, int, int, int]], more: int
) -> None:
    built, _ = _fill(ArenaPool(ARENA), rows)
    content = bytes(built.arena[: built.size_bytes])
    needed = tail_size_bytes(content[-TRAILER_SIZE_BYTES:], len(content))
    tail = content[max(0, len(content) - needed - more) :]
    assert parse_object(tail, len(content)) == parse_object(content, len(content))
    with pytest.raises(CorruptWalObjectError):
        parse_object(content[len(content) - needed + 1 :], len(content))


@given(arrivals, st.data())
def test_a_changed_or_missing_byte_of_the_tail_is_noticed(
    rows: list[tuple[int, int, bytes, int, int, int]], data: st.DataObject
) -> None:
    built, _ = _fill(ArenaPool(ARENA), rows)
    content = bytearray(built.arena[: built.size_bytes])
    needed = tail_size_bytes(content, len(content))
    where = data.draw(st.integers(1, needed))
    content[-where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptWalObjectError):
        parse_object(content, len(content))
    cut = data.draw(st.integers(1, len(content)))
    with pytest.raises(CorruptWalObjectError):
        parse_object(content[:-cut], len(content) - cut)


def test_an_object_is_described_for_people() -> None:
    built, _ = _fill(ArenaPool(ARENA), [(2, 0, b"b", 2, 7, 5), (1, 3, b"a", 1, -1, 0)])
    lines = list(describe(parse_object(built.arena[: built.size_bytes], built.size_bytes), "wal/key"))
    assert lines == [
        "WAL object wal/key version: 1 createTime: 1700000000000 broker: 4 dataSize: 146"
        " partitions: 2 batches: 2",
        f"topicId: {topic(1)} partition: 3 position: 0 size: 69 batches: 1",
        lines[2],
        f"topicId: {topic(2)} partition: 0 position: 69 size: 77 batches: 1",
        lines[4],
    ]
    assert lines[4].startswith("| position: 69 size: 77 count: 2 lastOffsetDelta: 1 baseTimestamp: 1000")
    assert "producerId: 7 producerEpoch: 3 baseSequence: 5 isTransactional: False" in lines[4]


# Memory -------------------------------------------------------------------------------------------


def test_batches_in_order_are_not_copied_again_and_small_objects_hold_little() -> None:
    pool = ArenaPool(4_000)
    buffer: WalBuffer[int] = WalBuffer(pool, 1)
    records, header = batch(b"x" * 1_500)
    buffer.add(key(), records, header, 0, 0)
    buffer.add(key(), records, header, 0, 1)
    arena = buffer._arena
    assert buffer.build(created_ms=1, broker_id=1).arena is arena

    small: WalBuffer[int] = WalBuffer(pool, 1)
    records, header = batch(b"x")
    small.add(key(), records, header, 0, 0)
    built = small.build(created_ms=1, broker_id=1)
    assert len(built.arena) == built.size_bytes
    assert len(pool.acquire(1)) == 4_000


def test_an_arena_that_is_still_read_is_not_used_again() -> None:
    pool = ArenaPool(1_000)
    arena = pool.acquire(10)
    arena[:3] = b"abc"
    reader = memoryview(memoryview(arena)[1:3])
    pool.release(arena)
    assert pool.acquire(10) is not arena
    assert reader == b"bc"
    reader.release()
    assert pool.acquire(10) is arena


def test_arenas_are_reused_when_they_are_not_read_any_more() -> None:
    pool = ArenaPool(1_000)
    arenas = [pool.acquire(10) for _ in range(2)]
    reader = memoryview(arenas[1])
    for arena in arenas:
        pool.release(arena)
    assert pool.is_low
    reader.release()
    assert not pool.is_low
    assert {id(pool.acquire(10)) for _ in range(2)} == {id(arena) for arena in arenas}


def test_an_arena_begins_on_a_page_so_that_files_are_written_from_it_directly() -> None:
    arena = ArenaPool(10_000).acquire(1)
    address = ctypes.addressof(ctypes.c_char.from_buffer(arena))
    assert address % mmap.PAGESIZE == 0


def test_an_arena_of_another_size_is_not_kept() -> None:
    pool = ArenaPool(1_000)
    large = pool.acquire(2_000)
    assert len(large) == 2_000
    pool.release(large)
    assert len(pool.acquire(1)) == 1_000


def test_recent_objects_are_bounded_and_the_oldest_go_first() -> None:
    evicted: list[bytearray] = []
    recent = RecentObjects(30, evicted.append)
    arenas = {name: bytearray(name.encode() * 10) for name in "abcd"}
    for name in "abc":
        recent.put(name, arenas[name], 8)
    held = recent.get("a", 2, 3)
    assert held == b"aaa"
    assert held.readonly
    recent.put("d", arenas["d"], 10)
    assert evicted == [arenas["a"]]
    assert recent.get("a", 0, 1) is None
    # The position is after the end of the object, but inside the memory that the object uses.
    assert recent.get("b", 6, 3) is None
    recent.discard("b")
    assert (len(recent), recent.size_bytes, recent.hits, recent.misses) == (2, 20, 1, 2)
    recent.put("huge", bytearray(31), 31)
    assert len(recent) == 0


# Keys -----------------------------------------------------------------------------------------------


def test_uncommitted_objects_stay_in_memory_beyond_the_bound() -> None:
    gone: list[bytearray] = []
    recent = RecentObjects(100, gone.append)
    arenas = {name: bytearray(40) for name in "abcd"}
    recent.put("a", arenas["a"], 40, is_committed=False)
    recent.put("b", arenas["b"], 40)
    recent.put("c", arenas["c"], 40, is_committed=False)
    assert [name for name in "abc" if name in recent] == ["a", "c"]
    recent.put("d", arenas["d"], 40, is_committed=False)
    assert recent.size_bytes == 120
    recent.committed("c")
    assert [name for name in "acd" if name in recent] == ["a", "d"]
    recent.committed("a")
    recent.discard("d")
    assert "a" in recent
    assert gone == [arenas["b"], arenas["c"], arenas["d"]]


def test_keys_are_unique_contain_time_and_broker_and_sort_by_time_in_each_folder() -> None:
    entropy = SeededEntropy(1)
    times = [1_700_000_000_000 + 977 * number for number in range(3_000)]
    keys = [new_object_key(time, 12, entropy) for time in times]
    assert len(set(keys)) == len(keys)
    for time, name in zip(times, keys, strict=True):
        assert parse_object_key(name) == (time, 12, -1)
    assert "/2023111422/" in keys[0]
    folders = wal_folders()
    by_folder = [[name for name in sorted(keys) if name.startswith(folder)] for folder in folders]
    assert sum(map(len, by_folder)) == len(keys)
    for names in by_folder:
        assert 100 < len(names) < 280
        created = [found.created_ms for name in names if (found := parse_object_key(name))]
        assert created == sorted(created)
    for other in ("wal/0/x", "a-b-c", "000000000000-x-y", ".moldau/check"):
        assert parse_object_key(other) is None


# When to close --------------------------------------------------------------------------------------


def test_a_buffer_is_due_after_the_interval_and_early_when_it_is_quiet() -> None:
    policy = ClosePolicy(interval_ms=250, quiet_ms=5, puts_per_second=2)
    assert policy.decide(1_000, 1_000, 1_000, True) == CloseDecision(None, 1_005)
    assert policy.decide(1_004, 1_000, 1_003, True) == CloseDecision(None, 1_008)
    assert policy.decide(1_008, 1_000, 1_003, True) == CloseDecision(CloseReason.EARLY)
    policy.closed(1_008)
    policy.closed(1_009)
    # The budget for early closes is used up, and the next token would come half a second later. So the buffer
    # is closed at the end of the interval.
    decision = policy.decide(1_020, 1_010, 1_010, True)
    assert decision == CloseDecision(None, 1_260)
    assert policy.decide(1_260, 1_010, 1_259, True) == CloseDecision(CloseReason.INTERVAL)


def test_no_buffer_is_closed_while_no_upload_can_start() -> None:
    policy = ClosePolicy(interval_ms=250)
    assert policy.decide(9_000, 1_000, 1_000, False) == CloseDecision(None)
    assert policy.decide(9_000, 1_000, 1_000, True) == CloseDecision(CloseReason.INTERVAL)


def test_without_a_budget_only_the_interval_counts() -> None:
    policy = ClosePolicy(interval_ms=250, puts_per_second=0)
    assert policy.decide(1_100, 1_000, 1_000, True) == CloseDecision(None, 1_250)
    policy.closed(1_250)


def test_batches_that_never_pause_wait_only_as_long_as_the_budget_asks() -> None:
    policy = ClosePolicy(interval_ms=250, quiet_ms=5, puts_per_second=8)
    assert policy.decide(1_100, 1_000, 1_099, True) == CloseDecision(None, 1_104)
    assert policy.decide(1_124, 1_000, 1_123, True) == CloseDecision(None, 1_125)
    assert policy.decide(1_125, 1_000, 1_124, True) == CloseDecision(CloseReason.EARLY)
    free = ClosePolicy(interval_ms=250, quiet_ms=5, puts_per_second=100)
    # Even with a large budget, batches that arrive without a pause are collected for 50 ms.
    assert free.decide(1_049, 1_000, 1_048, True) == CloseDecision(None, 1_050)


def test_large_objects_are_not_counted_against_the_budget() -> None:
    policy = ClosePolicy(interval_ms=250, quiet_ms=5, puts_per_second=1)
    assert policy.decide(1_005, 1_000, 1_000, True, large=True) == CloseDecision(CloseReason.EARLY)
    for now in range(1_005, 1_305, 10):
        policy.closed(now, large=True)
        assert policy.decide(now + 10, now, now, True, large=True) == CloseDecision(CloseReason.EARLY)
    # the budget has a token for one early close
    assert policy.decide(1_310, 1_305, 1_305, True) == CloseDecision(CloseReason.EARLY)
    policy.closed(1_310)
    assert policy.decide(1_325, 1_320, 1_320, True).reason is None
    assert policy.decide(1_325, 1_320, 1_320, True, large=True) == CloseDecision(CloseReason.EARLY)


def test_a_large_object_that_is_complete_does_not_wait_for_quiet() -> None:
    policy = ClosePolicy(interval_ms=250, quiet_ms=5, puts_per_second=1)
    early = CloseDecision(CloseReason.EARLY)
    assert policy.decide(1_001, 1_000, 1_001, True, large=True, complete=True) == early
    assert policy.decide(1_001, 1_000, 1_001, True, large=True) == CloseDecision(None, 1_006)
    assert policy.decide(1_001, 1_000, 1_001, True, complete=True) == CloseDecision(None, 1_006)
    assert policy.decide(1_001, 1_000, 1_001, False, large=True, complete=True) == CloseDecision(None)


def test_long_uploads_need_a_longer_pause_before_an_early_close() -> None:
    policy = ClosePolicy(interval_ms=250, quiet_ms=5, puts_per_second=8)
    for _ in range(100):
        policy.uploaded(120)
    decision = policy.decide(1_005, 1_000, 1_000, True)
    assert decision.reason is None
    assert decision.look_again_ms == pytest.approx(1_010, abs=0.1)
    for _ in range(100):
        policy.uploaded(60_000)
    # If the store fails, the wait does not become longer than the interval.
    assert policy.decide(1_005, 1_000, 1_000, True).look_again_ms == pytest.approx(1_000 + 250 / 12, abs=0.1)


@given(st.integers(0, 2**32), st.sampled_from([1, 4, 20]))
def test_early_closes_never_exceed_the_budget_and_each_next_check_is_later(
    seed: int, puts_per_second: int
) -> None:
    chance = random.Random(seed)
    policy = ClosePolicy(interval_ms=250, quiet_ms=5, puts_per_second=puts_per_second)
    now = 0.0
    quiet_closes = 0
    while now < 10_000:
        opened = now
        while True:
            decision = policy.decide(now, opened, opened, True)
            if decision.reason is not None:
                break
            assert decision.look_again_ms is not None
            assert decision.look_again_ms > now
            now = decision.look_again_ms
        assert now - opened <= 250.001
        quiet_closes += decision.reason is CloseReason.EARLY
        policy.closed(now)
        now += chance.uniform(0, 20)
    assert quiet_closes <= puts_per_second * (1 + now / 1000)
