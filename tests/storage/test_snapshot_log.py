"""The log with snapshots: its responses to a follower, and partial snapshots after a crash."""

import asyncio
from typing import Any

import pytest

from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.folders.file_names import PART_SUFFIX
from moldau.storage.snapshots.replicated_log import Divergence, LogPosition
from moldau.storage.snapshots.snapshot import SETTLE_BYTES, snapshot_file
from moldau.storage.snapshots.snapshot_log import SnapshotLog

FOLDER = "/data/__cluster_metadata-0"


def open_log(box: Any) -> SnapshotLog:
    return SnapshotLog.open(box.machine, FOLDER, TopicPartition(CLUSTER_METADATA_TOPIC, 0))


def append(log: SnapshotLog, epoch: int, count: int = 1) -> None:
    log.append_as_leader(build_batch([Record(0, 1, None, b"v", ()) for _ in range(count)]), epoch)


def take_snapshot(log: SnapshotLog, offset: int, epoch: int) -> None:
    log.update_high_watermark(log.end_offset)
    writer = log.create_snapshot(LogPosition(offset, epoch), 1)
    assert writer is not None
    writer.append([b"a", b"b"])
    writer.append([b"c"])
    asyncio.run(writer.freeze())


def test_followers_are_validated_as_in_kip_595(box: Any) -> None:
    log = open_log(box)
    for epoch, count in ((1, 5), (3, 5), (5, 5)):
        append(log, epoch, count)
    validate = log.validate_offset_and_epoch
    assert validate(0, 0).divergence is Divergence.VALID
    assert validate(15, 5).divergence is Divergence.VALID
    assert validate(7, 3).divergence is Divergence.VALID
    assert validate(12, 3) == (Divergence.DIVERGING, LogPosition(10, 3))
    assert validate(12, 4) == (Divergence.DIVERGING, LogPosition(10, 3))
    assert validate(16, 5) == (Divergence.DIVERGING, LogPosition(15, 5))
    assert validate(3, 9) == (Divergence.DIVERGING, LogPosition(15, 5))
    assert log.last_epoch == 5


def test_records_before_a_snapshot_are_deleted(box: Any) -> None:
    log = open_log(box)
    append(log, 1, 5)
    log.log.roll()
    append(log, 2, 5)
    take_snapshot(log, 5, 1)
    take_snapshot(log, 8, 2)
    assert asyncio.run(log.delete_before_snapshot(LogPosition(8, 2)))
    for current in (log, open_log(box)):
        assert (current.start_offset, current.end_offset, current.last_epoch) == (8, 10, 2)
        assert current.earliest_snapshot_id() == current.latest_snapshot_id() == LogPosition(8, 2)
        validate = current.validate_offset_and_epoch
        assert validate(3, 1) == (Divergence.SNAPSHOT, LogPosition(8, 2))
        assert validate(0, 0) == (Divergence.SNAPSHOT, LogPosition(8, 2))
        assert validate(8, 2).divergence is Divergence.VALID
        assert validate(9, 2).divergence is Divergence.VALID
        with pytest.raises(KafkaError) as refused:
            current.read(7, 100)
        assert refused.value.code is ErrorCode.offset_out_of_range
    assert [name for name in box.disk.names if name.endswith(".log")] == [
        f"{FOLDER}/00000000000000000005.log"
    ]


def test_a_snapshot_has_its_batches_between_a_header_and_a_footer(box: Any) -> None:
    log = open_log(box)
    append(log, 4, 3)
    take_snapshot(log, 3, 4)
    reader = log.open_snapshot(LogPosition(3, 4))
    assert reader is not None
    content = reader.read(0, 10**6)
    assert [(h.base_offset, h.partition_leader_epoch, h.is_control) for _, h in iter_headers(content)] == [
        (0, 4, True),
        (1, 4, False),
        (3, 4, False),
        (4, 4, True),
    ]
    values = [record.value for batch in list(reader.batches())[1:-1] for record in iter_records(batch)]
    assert values == [b"a", b"b", b"c"]


def test_a_large_snapshot_reaches_the_disk_while_it_is_written(box: Any) -> None:
    log = open_log(box)
    append(log, 4, 3)
    log.update_high_watermark(log.end_offset)
    writer = log.create_snapshot(LogPosition(3, 4), 1)
    assert writer is not None

    def durable_bytes() -> int:
        path = f"{FOLDER}/{snapshot_file(LogPosition(3, 4))}{PART_SUFFIX}"
        return len(box.disk.names[path].on_disk())

    asyncio.run(writer.settle())
    assert durable_bytes() == 0
    writer.append([b"x" * SETTLE_BYTES])
    asyncio.run(writer.settle())
    assert durable_bytes() > SETTLE_BYTES
    asyncio.run(writer.freeze())


def test_a_fetched_snapshot_restarts_a_follower(box: Any, new_box: Any) -> None:
    leader = open_log(box)
    append(leader, 4, 6)
    take_snapshot(leader, 6, 4)
    reader = leader.open_snapshot(LogPosition(6, 4))
    assert reader is not None
    other = new_box()
    follower = open_log(other)
    append(follower, 1, 2)
    for damage in (True, False):
        writer = follower.store_snapshot(LogPosition(6, 4))
        assert writer is not None
        while writer.size_bytes < reader.size_bytes - (5 if damage else 0):
            writer.append(reader.read(writer.size_bytes, 50 if not damage else reader.size_bytes - 5))
        if damage:
            with pytest.raises(KafkaError):
                asyncio.run(writer.freeze())
        else:
            asyncio.run(writer.freeze())
    assert asyncio.run(follower.truncate_to_latest_snapshot())
    assert not asyncio.run(follower.truncate_to_latest_snapshot())
    for current in (follower, open_log(other)):
        assert (current.start_offset, current.end_offset, current.last_epoch) == (6, 6, 4)
        assert current.validate_offset_and_epoch(6, 4).divergence is Divergence.VALID


def test_an_unfinished_snapshot_is_no_snapshot(box: Any) -> None:
    log = open_log(box)
    append(log, 1, 3)
    log.update_high_watermark(3)
    writer = log.create_snapshot(LogPosition(3, 1), 1)
    assert writer is not None
    writer.append([b"a"])
    again = open_log(box)
    assert again.latest_snapshot_id() is None
    assert not any(name.endswith(".part") for name in box.disk.names)


def test_snapshots_must_fit_the_log(box: Any) -> None:
    log = open_log(box)
    append(log, 1, 3)
    with pytest.raises(ValueError, match="above the high watermark"):
        log.create_snapshot(LogPosition(3, 1), 1)
    log.update_high_watermark(3)
    with pytest.raises(ValueError, match="another epoch"):
        log.create_snapshot(LogPosition(3, 2), 1)
    take_snapshot(log, 3, 1)
    assert log.create_snapshot(LogPosition(2, 1), 1) is None
    with pytest.raises(ValueError, match="below the high watermark"):
        asyncio.run(log.truncate_to(2))
