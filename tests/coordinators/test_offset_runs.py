"""The faster replay of committed offsets has the same result as the codec and the shard."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_coordinator_log import MemoryLog
from moldau.coordinators.groups.codec import ConsumerOffsetsCodec
from moldau.coordinators.groups.records import CommittedOffset, GroupRecord, OffsetRecord, StoredGroup
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.kind import LogPolicy
from moldau.coordinators.loader import ShardLoader
from moldau.protocol.records.groups import (
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from moldau.protocol.schema import ZERO_UUID
from moldau.records import Record, build_batch
from moldau.records.batch import HEADER_SIZE_BYTES, parse_header
from moldau.records.compression import Compression
from moldau.records.control import build_end_transaction_marker

Pair = tuple[bytes | None, bytes | None]
CODEC = ConsumerOffsetsCodec()
IDS = (ZERO_UUID, UUID(int=5), UUID(int=2**100))
GROUPS = ("g", "h", "grüppe", "long" * 30, "")
TOPICS = ("orders", "others", "t" * 70)
INT64 = st.integers(-(2**63), 2**63 - 1)

KEYS = st.builds(
    lambda cls, group, topic, partition: encode_key(cls(group=group, topic=topic, partition=partition)),
    st.sampled_from([OffsetCommitKey, OffsetCommitKey, LegacyOffsetCommitKey]),
    st.sampled_from(GROUPS),
    st.sampled_from(TOPICS),
    st.integers(0, 5) | st.integers(-(2**31), 2**31 - 1),
)
VALUES = st.builds(
    encode_value,
    st.builds(
        OffsetCommitValue,
        offset=INT64,
        leader_epoch=st.integers(-(2**31), 2**31 - 1),
        metadata=st.just("") | st.sampled_from(["m", "größer", "x" * 126, "x" * 127, "x" * 200]),
        commit_timestamp=INT64,
        expire_timestamp=st.just(-1) | INT64,
        topic_id=st.sampled_from(IDS),
    ),
    st.sampled_from([3, 4, 3, 4, 3, 4, 0, 1, 2]),
)
GROUP = CODEC.encode(GroupRecord("g", StoredGroup("consumer", 3, "range", "leader", 1, ())))
GROUP_GONE = CODEC.encode(GroupRecord("h", None))
EXTRA_TAG = b"\x00\x04" + bytes(12) + b"\x01" + bytes(8) + b"\x01\x05\x01x"
"""A value of version 4 with a tagged field that is not known."""


def changed(record: Pair, at: int, byte: int) -> Pair:
    key, value = record
    joined = bytearray((key or b"") + (value or b""))
    joined[at % len(joined)] = byte
    size = len(key or b"")
    return bytes(joined[:size]), None if value is None else bytes(joined[size:])


COMMITTED = st.tuples(KEYS, VALUES)
PAIRS: st.SearchStrategy[Pair] = st.one_of(
    COMMITTED,
    COMMITTED,
    COMMITTED,
    st.tuples(KEYS, st.none()),
    st.tuples(KEYS, st.just(EXTRA_TAG)),
    st.sampled_from([GROUP, GROUP_GONE, (None, b"x"), (b"\x03\xe7\x00\x00", b"\x00\x00")]),
    st.builds(changed, COMMITTED, st.integers(0, 500), st.integers(0, 255)),
    st.tuples(KEYS, VALUES.map(lambda value: value[:-1])),
    st.tuples(KEYS, VALUES.map(lambda value: value + b"\0")),
)


class Row(NamedTuple):
    """A record of a batch."""

    pair: Pair
    repeats: int
    """Number of copies of the record, in consecutive partitions if it is a commit."""
    gap: int
    """Number of missing offsets before the record, as after a compaction."""
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


ROWS = st.builds(
    Row,
    PAIRS,
    st.sampled_from([1, 1, 2, 5, 70]),
    st.sampled_from([0, 0, 0, 3, 60, 9_000]),
    st.integers(0, 2) | st.just(2**40),
    st.sampled_from([(), (), (), (("name", b"value"),)]),
)


class Batch(NamedTuple):
    """A batch of commits, or the marker that ends a producer's transaction."""

    rows: Sequence[Row]
    producer_id: int
    compression: Compression
    is_committed: bool | None


BATCHES = st.builds(
    Batch,
    st.lists(ROWS, max_size=6),
    st.sampled_from([-1, -1, 7, 8]),
    st.sampled_from([Compression.NONE, Compression.NONE, Compression.GZIP]),
    st.sampled_from([None, None, None, True, False]),
)


def batch_at(base_offset: int, batch: Batch) -> bytearray:
    if batch.is_committed is not None and batch.producer_id >= 0:
        return bytearray(
            build_end_transaction_marker(
                batch.producer_id, 0, committed=batch.is_committed, coordinator_epoch=0, timestamp=0
            )
        )
    records, offset = [], base_offset
    for row in batch.rows:
        offset += row.gap
        key, value = row.pair
        for number in range(row.repeats):
            if key is not None and key[:2] == b"\0\1" and row.repeats > 1:
                key = key[:-4] + number.to_bytes(4, "big")
            records.append(Record(offset, row.timestamp, key, value, row.headers))
            offset += 1
    return bytearray(
        build_batch(
            records,
            base_offset=base_offset,
            compression=batch.compression,
            producer_id=batch.producer_id,
            producer_epoch=0 if batch.producer_id >= 0 else -1,
            transactional=batch.producer_id >= 0,
            keep_offsets=True,
            last_offset=max(base_offset, offset - 1),
        )
    )


def log_of(batches: Sequence[Batch]) -> MemoryLog:
    log = MemoryLog()
    for batch in batches:
        log.append(batch_at(log.log_end_offset, batch))
    return log


def signed(batch: bytearray) -> bytearray:
    """The batch with the checksum of its bytes."""
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


class Found(NamedTuple):
    """Everything that a load has changed."""

    state: Any
    offsets: Any
    groups: list[str]
    loads: tuple[int, int, int, int]
    after_the_ends: Any


def loaded(log: MemoryLog, *, in_runs: bool, start: int = 0) -> Found:
    shard = GroupShard(GroupSettings())
    loader = ShardLoader(
        shard, CODEC, log, policy=LogPolicy(skips_broken=True), runs=shard.run_replay() if in_runs else None
    )
    asyncio.run(loader.run(start))
    store = shard.offsets.store
    before = shard.canonical(), [(group, [*store.of_group(group).items()]) for group in store.group_ids()]
    for producer_id in (7, 8):
        shard.replay_marker(producer_id, 0, True)
    counts = loader.records_replayed, loader.records_unknown, loader.broken.count, loader.broken.first_offset
    return Found(*before, list(shard.classic.by_id), counts, shard.canonical())


@settings(max_examples=300)
@given(st.lists(BATCHES, max_size=6), st.integers(0, 20))
def test_a_replay_in_runs_gives_the_same_state(batches: list[Batch], start: int) -> None:
    log = log_of(batches)
    start = min(start, log.log_end_offset)
    assert loaded(log, in_runs=True, start=start) == loaded(log, in_runs=False, start=start)


@settings(max_examples=300)
@given(
    st.lists(st.builds(Row, COMMITTED, st.integers(1, 4), st.just(0), st.just(0), st.just(())), min_size=1),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), min_size=1, max_size=3),
    st.integers(-1, 2),
)
def test_a_replay_in_runs_skips_the_same_broken_bytes(
    rows: list[Row], changes: list[tuple[int, int]], more_records: int
) -> None:
    """The batch has a correct checksum, and its records contain any bytes."""
    batch = batch_at(0, Batch(rows, -1, Compression.NONE, None))
    for at, byte in changes:
        batch[HEADER_SIZE_BYTES + at % (len(batch) - HEADER_SIZE_BYTES)] = byte
    struct.pack_into(">i", batch, 57, parse_header(batch).records_count + more_records)
    log = log_of([])
    log.append(signed(batch))
    log.append(batch_at(log.log_end_offset, Batch(rows, -1, Compression.NONE, None)))
    assert loaded(log, in_runs=True) == loaded(log, in_runs=False)


def commit(version: int, metadata: str = "", topic_id: UUID = ZERO_UUID) -> Pair:
    value = OffsetCommitValue(offset=9, metadata=metadata, commit_timestamp=1, topic_id=topic_id)
    return encode_key(OffsetCommitKey(group="g", topic="orders")), encode_value(value, version)


FREQUENT: dict[str, Pair] = {
    "version 3": commit(3),
    "version 4": commit(4),
    "with a topic id": commit(4, topic_id=UUID(int=5)),
    "version 3 with metadata": commit(3, "metadata"),
    "with metadata and a topic id": commit(4, "metadata", UUID(int=5)),
    "as the coordinator writes it": CODEC.encode(
        OffsetRecord("g", "orders", 0, CommittedOffset(1, -1, "", 1, topic_id=UUID(int=5)))
    ),
}


@pytest.mark.parametrize("name", FREQUENT)
@pytest.mark.parametrize("gap", [0, 100])
def test_a_wrong_byte_has_the_same_effect_in_a_run(name: str, gap: int) -> None:
    """Every byte of the first and of the second record is changed once in several ways."""
    rows = [Row(FREQUENT[name], 1, gap, 0, ()), *[Row(FREQUENT[name], 1, 0, 0, ())] * 2]
    whole = batch_at(0, Batch(rows, -1, Compression.NONE, None))
    records_bytes = len(whole) - HEADER_SIZE_BYTES
    for at in range(2 * records_bytes // 3 + 1):
        for change in (0x01, 0x02, 0x03, 0x80, 0xFF):
            batch = whole.copy()
            batch[HEADER_SIZE_BYTES + at] ^= change
            log = log_of([])
            log.append(signed(batch))
            assert loaded(log, in_runs=True) == loaded(log, in_runs=False), (at, change)


def test_a_topic_id_of_zeros_is_none() -> None:
    key, value = commit(4, topic_id=UUID(int=5))
    assert value is not None
    row = Row((key, value[:-16] + bytes(16)), 3, 0, 0, ())
    log = log_of([Batch([row], -1, Compression.NONE, None)])
    assert loaded(log, in_runs=True) == loaded(log, in_runs=False)


@pytest.mark.parametrize("name", FREQUENT)
def test_frequent_forms_are_replayed_in_runs(name: str) -> None:
    """64 is the first offset delta with two bytes, so it begins a second run."""
    data = batch_at(0, Batch([Row(FREQUENT[name], 100, 0, 0, ())], -1, Compression.NONE, None))
    header, records = parse_header(data), bytes(data[HEADER_SIZE_BYTES:])
    runs = GroupShard(GroupSettings()).run_replay()
    first = runs.replay_run(header, records, 0, 1_000)
    assert first is not None
    assert (first.records_count, first.last_offset) == (64, 63)
    second = runs.replay_run(header, records, first.end_position, 30)
    assert second is not None
    assert (second.records_count, second.last_offset) == (30, 93)


def test_a_run_has_the_commits_of_many_groups() -> None:
    pairs = [
        CODEC.encode(OffsetRecord(f"group-{number}", "orders", number, CommittedOffset(number, -1, "", 1)))
        for number in range(10, 60)
    ]
    data = batch_at(0, Batch([Row(pair, 1, 0, 0, ()) for pair in pairs], -1, Compression.NONE, None))
    shard = GroupShard(GroupSettings())
    run = shard.run_replay().replay_run(parse_header(data), bytes(data[HEADER_SIZE_BYTES:]), 0, 1_000)
    assert run is not None
    assert run.records_count == 50
    assert {
        group: offset.offset
        for group in shard.offsets.store.group_ids()
        for offset in shard.offsets.store.of_group(group).values()
    } == {f"group-{number}": number for number in range(10, 60)}
