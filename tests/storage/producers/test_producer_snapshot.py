"""Producer snapshots: their bytes must be Kafka's bytes, and the files must be beside the segments."""

import asyncio
import random
import struct
from pathlib import Path
from typing import Any

import pytest

# types of aiokafka, which encode the expected bytes without our code
from aiokafka.protocol.types import Int16, Int32, Int64
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import LocalDisk
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.producers.producer_snapshot import (
    CorruptSnapshotError,
    ProducerSnapshots,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from moldau.storage.producers.producer_state import BatchMetadata, ProducerEntry, ProducerState

INT64 = st.integers(0, 2**63 - 1)
INT32 = st.integers(0, 2**31 - 1)


@st.composite
def entries(draw: st.DrawFn) -> ProducerEntry:
    timestamp = draw(INT64)
    batches = draw(st.lists(st.builds(BatchMetadata, INT32, INT64, INT32, st.just(timestamp)), max_size=5))
    return ProducerEntry(
        draw(INT64),
        draw(st.integers(-1, 2**15 - 1)),
        draw(st.integers(-1, 2**31 - 1)),
        timestamp,
        draw(st.none() | INT64),
        batches,
    )


@given(st.lists(entries(), max_size=5, unique_by=lambda entry: entry.producer_id))
def test_a_written_snapshot_can_be_read(written: list[ProducerEntry]) -> None:
    assert decode_producer_snapshot(encode_producer_snapshot(written)) == written


def test_the_bytes_are_kafkas() -> None:
    entry = ProducerEntry(11, 2, 3, 1_000, 77, [BatchMetadata(5, 90, 4, 1_000)])
    body = b"".join(
        [
            Int32.encode(1),
            Int64.encode(11),
            Int16.encode(2),
            Int32.encode(5),
            Int64.encode(90),
            Int32.encode(4),
            Int64.encode(1_000),
            Int32.encode(3),
            Int64.encode(77),
        ]
    )
    assert encode_producer_snapshot([entry]) == Int16.encode(1) + struct.pack(">I", crc32c(body)) + body


def test_the_last_five_batches_survive_and_kafka_finds_the_last_one() -> None:
    batches = [BatchMetadata(n, n, 0, 5 + n) for n in range(5)]
    content = encode_producer_snapshot([ProducerEntry(1, 0, -1, 9, 3, batches), ProducerEntry(2, 0, -1, 9)])
    first, second = decode_producer_snapshot(content)
    assert list(first.batches) == batches
    assert not second.batches
    # Kafka uses the last entry of each producer.
    rows = {row[0]: row[1:] for row in struct.iter_unpack(">qhiqiqiq", content[10:])}
    assert rows == {1: (0, 4, 4, 0, 9, -1, 3), 2: (0, -1, -1, 0, 9, -1, -1)}


def test_no_entry_expires_after_the_last_entry_of_its_producer() -> None:
    batches = [BatchMetadata(n, n, 0, timestamp) for n, timestamp in enumerate((7, 12, 9))]
    content = encode_producer_snapshot([ProducerEntry(1, 0, -1, 9, None, batches)])
    assert [row[5] for row in struct.iter_unpack(">qhiqiqiq", content[10:])] == [7, 9, 9]


def test_batches_of_an_earlier_epoch_are_not_mixed_with_later_ones() -> None:
    entries = [ProducerEntry(1, epoch, -1, 9, None, [BatchMetadata(epoch, epoch, 0, 9)]) for epoch in (3, 4)]
    [read] = decode_producer_snapshot(encode_producer_snapshot(entries))
    assert (read.producer_epoch, list(read.batches)) == (4, [BatchMetadata(4, 4, 0, 9)])


@given(st.integers(0, 100), st.integers(1, 255))
def test_a_flipped_byte_is_noticed(position: int, flip: int) -> None:
    content = bytearray(encode_producer_snapshot([ProducerEntry(1), ProducerEntry(2)]))
    content[position % len(content)] ^= flip
    with pytest.raises(CorruptSnapshotError):
        decode_producer_snapshot(bytes(content))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_noticed(content: bytes) -> None:
    with pytest.raises(CorruptSnapshotError):
        decode_producer_snapshot(content)


def state_at(offset: int, producer_id: int) -> ProducerState:
    state = ProducerState(expiration_ms=1_000)
    state.reset(offset, [ProducerEntry(producer_id, last_timestamp=500)])
    return state


def test_the_newest_snapshot_inside_the_log_is_loaded(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(LocalDisk(), str(tmp_path))
    for offset in (5, 10, 20, 30):
        snapshots.take_snapshot(state_at(offset, offset))
    (tmp_path / "00000000000000000020.log").touch()
    state = ProducerState(expiration_ms=1_000)
    assert snapshots.load_latest(state, 10, 25, now_ms=600) == 20
    assert [entry.producer_id for entry in state] == [20]
    assert state.end_offset == 20
    assert snapshots.offsets() == [10, 20]


def test_a_damaged_snapshot_is_passed_over_and_deleted(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(LocalDisk(), str(tmp_path))
    snapshots.take_snapshot(state_at(10, 10))
    snapshots.take_snapshot(state_at(20, 20))
    Path(snapshots.path(20)).write_bytes(b"rubbish")
    state = ProducerState(expiration_ms=1_000)
    assert snapshots.load_latest(state, 0, 25, now_ms=600) == 10
    assert snapshots.offsets() == [10]


def test_without_a_snapshot_the_state_is_rebuilt_from_the_start(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(LocalDisk(), str(tmp_path))
    state = state_at(9, 1)
    assert snapshots.load_latest(state, 3, 25, now_ms=600) == 3
    assert (len(state), state.end_offset) == (0, 3)


def test_expired_producers_are_not_loaded(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(LocalDisk(), str(tmp_path))
    snapshots.take_snapshot(state_at(10, 1))
    state = ProducerState(expiration_ms=1_000)
    snapshots.load_latest(state, 0, 10, now_ms=1_500)
    assert len(state) == 0


def test_retention_and_truncation_drop_snapshots(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(LocalDisk(), str(tmp_path))
    for offset in (5, 10, 15, 20):
        snapshots.take_snapshot(state_at(offset, 1))
    snapshots.remove_before(10)
    snapshots.remove_after(15)
    assert snapshots.offsets() == [10, 15]


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_leaves_a_whole_snapshot_or_the_one_before(new_box: Any, seed: int) -> None:
    box = new_box()
    box.disk.make_dirs("/t-0")
    snapshots = ProducerSnapshots(box.disk, "/t-0")
    snapshots.take_snapshot(state_at(10, 10))
    snapshots.take_snapshot(state_at(20, 20), durably=False)
    if seed % 2:
        snapshots.make_durable()
    box.disk.crash(random.Random(seed))
    state = ProducerState(expiration_ms=1_000)
    found = ProducerSnapshots(box.disk, "/t-0").load_latest(state, 0, 25, now_ms=600)
    assert found == 20 if seed % 2 else found in (10, 20)
    assert [entry.producer_id for entry in state] == [found]


def open_log(box: Any) -> PartitionLog:
    config = LogConfig(segment_bytes=200, retention_bytes=200, retention_ms=-1)
    return PartitionLog.open(box.machine, "/t-0", TopicPartition("t", 0), config)


def fill_segments(box: Any, log: PartitionLog) -> None:
    """Write a segment for each of three producers."""
    for producer_id in (7, 8, 9):
        record = Record(0, box.clock.time_ms, None, bytes(90))
        batch = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
    log.high_watermark = log.log_end_offset


def test_producers_do_not_wait_for_a_snapshots_sync_when_a_segment_is_closed(box: Any) -> None:
    log = open_log(box)
    box.disk.failing_syncs = True
    fill_segments(box, log)
    box.disk.failing_syncs = False
    asyncio.run(log.flush())
    for offset in (1, 2):
        path = log.producers.snapshots.path(offset)
        decode_producer_snapshot(box.disk.durable[path].on_disk())


def test_segments_are_deleted_only_when_a_durable_snapshot_has_their_producers(box: Any) -> None:
    log = open_log(box)
    fill_segments(box, log)
    assert asyncio.run(log.delete_old_segments(box.clock.time_ms))
    path = log.producers.snapshots.path(2)
    known = decode_producer_snapshot(box.disk.durable[path].on_disk())
    assert [entry.producer_id for entry in known] == [7, 8]
