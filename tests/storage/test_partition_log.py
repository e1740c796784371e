"""A partition log and its operations for a leader, a follower, a reader and an operator."""

import asyncio
from typing import Any

import pytest
from times_of import TimesOf

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import TimestampType, parse_header, validate_produce
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record, iter_records
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.append_info import AbortedEntry, AppendInfo, AppendOrigin
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

FOLDER = "/data/t-0"


def open_log(box: Any, config: LogConfig | None = None, **how: Any) -> PartitionLog:
    return PartitionLog.open(box.machine, FOLDER, TopicPartition("t", 0), config, **how)


def records(
    box: Any, count: int = 1, value: bytes = b"v", timestamps: list[int] | None = None
) -> list[Record]:
    times = timestamps or [box.clock.time_ms] * count
    return [Record(0, time_ms, None, value, ()) for time_ms in times]


def append(log: PartitionLog, batch: bytes, epoch: int = 0) -> AppendInfo:
    return log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**7), epoch)


def marker(log: PartitionLog, *, committed: bool) -> AppendInfo:
    batch = build_end_transaction_marker(7, 0, committed=committed, coordinator_epoch=1, timestamp=1)
    return log.append_as_leader(batch, [parse_header(batch)], 0, origin=AppendOrigin.COORDINATOR)


def test_a_leader_stamps_offset_and_epoch_and_keeps_the_rest(box: Any) -> None:
    log = open_log(box)
    batch = build_batch(records(box, 3), compression=Compression.ZSTD)
    append(log, batch, 4)
    info = append(log, batch, 4)
    assert info[:2] == (3, 5)
    stored = bytes(log.read(3, 10**6).views[0])
    assert stored[12:16] == (4).to_bytes(4, "big")
    assert stored[16:] == batch[16:]
    assert [record.offset for record in iter_records(stored)] == [3, 4, 5]


def test_log_append_time_replaces_the_producers_and_fits_the_checksum(box: Any) -> None:
    log = open_log(box, LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    batch = build_batch(records(box, timestamps=[5, 9]))
    info = append(log, batch)
    assert info.log_append_time_ms == box.clock.time_ms
    stored = bytes(log.read(0, 10**6).views[0])
    assert [record.timestamp for record in iter_records(stored)] == [box.clock.time_ms] * 2
    assert open_log(box).log_end_offset == 2  # recovery checks the CRC


@pytest.mark.parametrize(
    ("config", "shift_ms"),
    [
        (LogConfig(message_timestamp_after_max_ms=1000), 1001),
        (LogConfig(message_timestamp_before_max_ms=1000), -1001),
    ],
)
def test_a_timestamp_too_far_off_is_refused(box: Any, config: LogConfig, shift_ms: int) -> None:
    log = open_log(box, config)
    near, far = box.clock.time_ms + shift_ms // 1001 * 1000, box.clock.time_ms + shift_ms
    append(log, build_batch(records(box, timestamps=[near])))
    with pytest.raises(KafkaError) as refused:
        append(log, build_batch(records(box, timestamps=[far])))
    assert refused.value.code is ErrorCode.invalid_timestamp
    assert log.log_end_offset == 1


def test_a_repeated_batch_gets_the_result_of_the_first_append(box: Any) -> None:
    log = open_log(box)

    def batch(sequence: int) -> bytes:
        return build_batch(records(box, 2), producer_id=7, producer_epoch=0, base_sequence=sequence)

    for sequence in range(0, 10, 2):
        append(log, batch(sequence))
    again = append(log, batch(4))
    assert (again.first_offset, again.last_offset, again.is_duplicate) == (4, 5, True)
    with pytest.raises(KafkaError) as refused:
        append(log, batch(14))
    assert refused.value.code is ErrorCode.out_of_order_sequence_number
    assert log.log_end_offset == 10
    for clean in (False, True):
        reopened = open_log(box, clean_shutdown=clean)
        assert append(reopened, batch(8)).is_duplicate
        reopened.close()


def test_an_older_epoch_may_not_append(box: Any) -> None:
    log = open_log(box)
    append(log, build_batch(records(box)), 3)
    with pytest.raises(KafkaError) as refused:
        append(log, build_batch(records(box)), 2)
    assert refused.value.code is ErrorCode.fenced_leader_epoch


def test_a_follower_refuses_batches_that_do_not_continue_its_log(box: Any) -> None:
    log = open_log(box)
    first = build_batch(records(box, 2), leader_epoch=1)
    log.append_as_follower(first)
    for bad in (first, build_batch(records(box), base_offset=2, leader_epoch=0)):
        with pytest.raises(KafkaError):
            log.append_as_follower(bad)
    damaged = bytearray(build_batch(records(box), base_offset=2, leader_epoch=1))
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        log.append_as_follower(damaged)
    assert refused.value.code is ErrorCode.corrupt_message
    assert log.log_end_offset == 2


def test_reads_give_whole_batches_within_their_bounds(box: Any) -> None:
    log = open_log(box, LogConfig(index_interval_bytes=200))
    batch = build_batch(records(box, 2, b"v" * 50))
    for _ in range(20):
        append(log, batch)
    size = len(batch)
    assert log.read(0, 3 * size + size // 2).size_bytes == 3 * size
    assert log.read(1, size - 1).size_bytes == size
    assert log.read(0, size - 1, min_one_batch=False).size_bytes == 0
    assert log.read(4, 10**6, upper_bound_offset=10).next_offset == 10
    assert log.read(4, 10**6, upper_bound_offset=10).size_bytes == 3 * size
    assert log.read(40, 10**6).size_bytes == 0
    for offset in (-1, 41):
        with pytest.raises(KafkaError) as refused:
            log.read(offset, 1)
        assert refused.value.code is ErrorCode.offset_out_of_range


def test_a_timestamp_finds_the_first_record_not_the_batch(box: Any) -> None:
    log = open_log(box, LogConfig(index_interval_bytes=100, segment_bytes=600))
    now = box.clock.time_ms
    for index in range(20):
        base = now + 100 * index
        append(log, build_batch(records(box, timestamps=[base, base + 10, base + 5])))
    for opened in (lambda: log, lambda: open_log(box)):
        times = TimesOf(box, opened())
        assert times.at_or_after(now + 1206) == (37, now + 1210)
        assert times.at_or_after(now + 1206, 37) is None
        assert times.at_or_after(now + 10_000) is None
        assert times.latest() == (58, now + 1910)
        assert times.latest(33) == (31, now + 1010)


def test_transactions_bound_readers_and_name_the_aborted(box: Any) -> None:
    log = open_log(box, LogConfig(segment_bytes=300))

    def batch(sequence: int) -> bytes:
        return build_batch(
            records(box), producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
        )

    append(log, batch(0))
    append(log, build_batch(records(box)))
    assert log.last_stable_offset(2) == 0
    marker(log, committed=False)
    assert log.last_stable_offset(2) == 0, "the marker is not replicated yet"
    assert log.last_stable_offset(3) == 3
    append(log, batch(1))
    marker(log, committed=True)
    append(log, batch(2))
    log.flushed_offset = 0
    for reopened in (log, open_log(box)):
        assert reopened.last_stable_offset(6) == 5
        aborted = reopened.aborted_transactions(0, reopened.read(0, 10**6))
        assert aborted == [AbortedEntry(7, 0, 2, 3)]
        assert reopened.aborted_transactions(3, reopened.read(3, 10**6)) == []


def test_retention_by_size_age_and_log_start(box: Any) -> None:
    log = open_log(box, LogConfig(segment_bytes=200, retention_ms=1000, retention_bytes=-1))
    for _ in range(6):
        append(log, build_batch(records(box, value=b"v" * 100)))
        box.clock.time_ms += 500
    log.high_watermark = 6
    assert len(log.segments.segments) == 6
    paths = asyncio.run(log.delete_old_segments(box.clock.time_ms, high_watermark=2))
    assert paths[0].endswith(".log.deleted")
    assert log.log_start_offset == 2
    log.update_log_start_offset(5)
    log.config = LogConfig(segment_bytes=200, retention_ms=-1, retention_bytes=-1)
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert log.segments.segments[0].base_offset == 5
    append(log, build_batch(records(box, value=b"v" * 100)))
    log.config = LogConfig(retention_ms=-1, retention_bytes=170)
    log.high_watermark = 7
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert log.log_start_offset == 6
    log.config = LogConfig(retention_ms=1)
    box.clock.time_ms += 10_000
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (7, 7, 0)


def test_segments_roll_by_time_and_by_a_full_index(box: Any) -> None:
    log = open_log(box, LogConfig(segment_ms=1000))
    append(log, build_batch(records(box)))
    box.clock.time_ms += 1001
    append(log, build_batch(records(box)))
    assert [segment.base_offset for segment in log.segments.segments] == [0, 1]
    log.config = LogConfig(segment_index_bytes=16, index_interval_bytes=1)
    log.roll()
    for _ in range(5):
        append(log, build_batch(records(box)))
    assert [segment.base_offset for segment in log.segments.segments] == [0, 1, 2, 4, 6]


def test_lost_indexes_are_built_again(box: Any) -> None:
    config = LogConfig(segment_bytes=1000, index_interval_bytes=100)
    log = open_log(box, config)
    for _ in range(40):
        append(log, build_batch(records(box)))
    log.close()
    names = [name for name in box.disk.names if name.endswith("index")]
    before = {name: bytes(box.disk.names[name].data) for name in names}
    for number, name in enumerate(names):
        if number % 2:
            box.disk.remove(name)
        else:
            box.disk.names[name].data.extend(b"?")
    open_log(box, config, clean_shutdown=True).close()
    assert {name: bytes(box.disk.names[name].data) for name in names} == before


def test_a_full_disk_acknowledges_nothing_and_shows_nothing(box: Any) -> None:
    log = open_log(box)
    failures: list[OSError] = []
    log.access.on_failure = failures.append
    batch = build_batch(records(box, value=b"v" * 100))
    append(log, batch)
    box.disk.room_bytes = 90
    with pytest.raises(KafkaError) as refused:
        append(log, batch)
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert "No space left" in str(refused.value)
    assert log.log_end_offset == 1
    box.disk.room_bytes = None
    for work in (lambda: append(log, batch), lambda: log.read(0, 1), log.roll):
        with pytest.raises(KafkaError):
            work()
    assert len(failures) == 1
    assert open_log(box).log_end_offset == 1


def test_a_failed_sync_is_never_tried_again(box: Any) -> None:
    log = open_log(box)
    append(log, build_batch(records(box)))
    box.disk.failing_syncs = True
    with pytest.raises(KafkaError):
        asyncio.run(log.flush())
    box.disk.failing_syncs = False
    with pytest.raises(KafkaError):
        asyncio.run(log.flush())
    assert log.flushed_offset == 0


def test_the_next_process_writes_the_bytes_of_a_failed_sync_again(box: Any) -> None:
    """After a failed sync, the operating system treats the pages as clean. The bytes reach the disk only if
    they are written again."""
    log = open_log(box)
    append(log, build_batch(records(box)))
    asyncio.run(log.flush())
    append(log, build_batch(records(box)))
    box.disk.failing_syncs = True
    with pytest.raises(KafkaError):
        asyncio.run(log.flush())
    box.disk.failing_syncs = False
    restarted = open_log(box, recovery_point=1)
    assert restarted.log_end_offset == 2
    path = f"{FOLDER}/{0:020}.log"
    assert box.disk.names[path].on_disk() == bytes(box.disk.names[path].data)


def test_the_files_are_kafkas_byte_for_byte(box: Any) -> None:
    log = open_log(box, LogConfig(index_interval_bytes=1))
    batch = build_batch(records(box, timestamps=[1_600_000_000_000]))
    append(log, batch, 5)
    append(log, batch, 5)
    log.close()
    files = {name[len(FOLDER) + 1 :]: bytes(inode.data) for name, inode in box.disk.names.items()}
    size = len(batch)
    stamped = (1).to_bytes(8, "big") + batch[8:12] + (5).to_bytes(4, "big") + batch[16:]
    assert files["00000000000000000000.log"][size:] == stamped
    assert files["00000000000000000000.index"] == (1).to_bytes(4, "big") + size.to_bytes(4, "big")
    assert files["00000000000000000000.timeindex"] == (1_600_000_000_000).to_bytes(8, "big") + bytes(4)
    assert files["leader-epoch-checkpoint"] == b"0\n1\n5 0\n"
    assert set(files) == {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
    }


def test_a_follower_takes_many_batches_at_once_and_rolls_where_it_must(box: Any) -> None:
    leader = open_log(box, LogConfig(segment_bytes=10**6))
    for epoch in (0, 0, 1, 1, 1, 1, 2):
        append(leader, build_batch(records(box, 2, b"v" * 100)), epoch)
    content = b"".join(leader.read(0, 10**6).views)
    follower = PartitionLog.open(
        box.machine, "/data/t-1", TopicPartition("t", 1), LogConfig(segment_bytes=700, index_interval_bytes=1)
    )
    follower.append_as_follower(content[: len(content) // 7 * 5])
    follower.append_as_follower(content[len(content) // 7 * 5 :])
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    assert (follower.log_end_offset, follower.size_bytes) == (14, len(content))
    copied = []
    while len(copied) < len(follower.segments.segments):
        segment = follower.segments.segments[len(copied)]
        copied.append(bytes(follower.read(segment.base_offset, 10**6).views[0]))
    assert b"".join(copied) == content


@pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 48, 10_000, 2**31 - 1])
def test_a_damaged_length_is_an_error_and_neither_skipped_nor_waited_for(box: Any, length: int) -> None:
    """The damaged segment was not read at the start, because the stop was clean."""
    log = open_log(box, LogConfig(index_interval_bytes=1 << 20))
    for _ in range(3):
        append(log, build_batch(records(box, 2)))
    log.roll()
    append(log, build_batch(records(box)))
    log.close()
    path = f"{FOLDER}/{0:020d}.log"
    content = bytearray(box.disk.read(path))
    second = len(content) // 3
    content[second + 8 : second + 12] = length.to_bytes(4, "big", signed=True)
    box.disk.write_atomically(path, bytes(content))
    again = open_log(box, LogConfig(index_interval_bytes=1 << 20), recovery_point=7, clean_shutdown=True)
    for offset in (2, 4, 5):
        with pytest.raises(KafkaError) as raised:
            again.read(offset, 1_000)
        assert raised.value.code is ErrorCode.corrupt_message
        assert f"{path} is damaged at byte {second}" in str(raised.value)
    assert again.read(0, 1).next_offset == 2
    assert again.read(6, 1_000).next_offset == 7
