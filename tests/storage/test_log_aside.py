"""A worker writes bytes to a log. When the worker has finished, the log contains the bytes. If the log has
changed meanwhile, the bytes have no effect."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header, set_base_offset_and_epoch
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log.worker_appends import AsideWrite

FOLDER = "/data/t-0"
EPOCHS = f"{FOLDER}/leader-epoch-checkpoint"


def open_log(box: Any, **config: Any) -> PartitionLog:
    return PartitionLog.open(box.machine, FOLDER, TopicPartition("t", 0), LogConfig(**config))


def batches_at(box: Any, offset: int, count: int = 2, **producer: int) -> memoryview:
    """``count`` batches of two records each."""
    content = bytearray()
    for number in range(count):
        records = [Record(index, box.clock.time_ms, b"k", b"%d" % offset, ()) for index in range(2)]
        begin = len(content)
        content += build_batch(records, **producer)
        set_base_offset_and_epoch(content, begin, offset + 2 * number, 0)
    return memoryview(content)


def begin(log: PartitionLog, batches: memoryview) -> AsideWrite:
    write = log.begin_aside(batches)
    assert write is not None
    return write


def read_all(log: PartitionLog) -> bytes:
    content, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20)
        content += b"".join(found.views)
        offset = found.next_offset
    return content


def test_a_log_is_the_same_if_a_worker_writes_its_bytes(box: Any) -> None:
    boxes = box, type(box)()
    aside, plain = (open_log(each, segment_bytes=600, index_interval_bytes=100) for each in boxes)
    offset, sent = 0, b""
    for count in (1, 3, 2, 1, 4):
        batches = batches_at(box, offset, count, producer_id=7, producer_epoch=0, base_sequence=offset)
        write = begin(aside, batches)
        assert aside.log_end_offset == offset
        assert read_all(aside) == sent
        write.run()
        assert aside.end_aside(write)
        plain.append_as_follower(batches)
        offset, sent = offset + 2 * count, sent + bytes(batches)
        assert aside.log_end_offset == offset
        assert read_all(aside) == sent
    for log in (aside, plain):
        log.close()
    aside_files, plain_files = (
        {path: bytes(inode.data) for path, inode in each.disk.names.items()} for each in boxes
    )
    logs = {path for path in plain_files if path.endswith(".log")}
    assert len(logs) > 1
    assert aside.active_producers() == plain.active_producers()
    assert {path: aside_files[path] for path in logs} == {path: plain_files[path] for path in logs}


def test_bytes_that_do_not_follow_the_log_end_are_not_written_by_a_worker(box: Any) -> None:
    log = open_log(box)
    assert log.begin_aside(batches_at(box, 3)) is None
    assert log.begin_aside(memoryview(b"")) is None
    log.append_as_follower(batches_at(box, 0))
    assert log.begin_aside(batches_at(box, 2)) is None
    assert log.log_end_offset == 4


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda log: asyncio.run(log.truncate_fully_and_start_at(50)), id="restarted"),
        pytest.param(lambda log: asyncio.run(log.truncate_to(2)), id="truncated"),
        pytest.param(lambda log: log.roll(), id="rolled"),
    ],
)
def test_a_log_that_has_changed_meanwhile_keeps_nothing_of_it(
    box: Any, meanwhile: Callable[[PartitionLog], None]
) -> None:
    log = open_log(box)
    log.append_as_follower(batches_at(box, 0))
    write = begin(log, batches_at(box, 4))
    meanwhile(log)
    end, content = log.log_end_offset, read_all(log)
    write.run()
    assert not log.end_aside(write)
    assert (log.log_end_offset, read_all(log)) == (end, content)
    log.append_as_follower(batches_at(box, end))
    log.close()
    again = open_log(box)
    assert again.log_end_offset == end + 4
    assert len(read_all(again)) == len(content) + len(batches_at(box, end))


def test_a_write_that_fails_takes_the_log_offline_and_leaves_no_bytes(box: Any) -> None:
    log = open_log(box)
    log.append_as_follower(batches_at(box, 0))
    sizes = log.size_bytes
    write = begin(log, batches_at(box, 4))
    box.disk.room_bytes = 10
    write.run()
    with pytest.raises(KafkaError) as refused:
        log.end_aside(write)
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert log.is_offline
    assert len(box.disk.names[f"{FOLDER}/{0:020d}.log"].data) == sizes


def test_a_write_that_its_worker_did_not_finish_does_not_change_the_log(box: Any) -> None:
    log = open_log(box)
    write = begin(log, batches_at(box, 0))
    assert not log.end_aside(write)
    assert log.log_end_offset == 0
    log.append_as_follower(batches_at(box, 0))
    assert log.log_end_offset == 4


def test_a_file_is_not_closed_while_a_worker_writes_to_it(box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(box)
    write = begin(log, batches_at(box, 0))
    closed: list[str] = []
    monkeypatch.setattr(type(write.file), "close", lambda file: closed.append(file.path))
    log.take_offline("the topic was deleted")
    assert closed == []
    write.run()
    assert not log.end_aside(write)
    assert write.file.path in closed


def test_a_cache_writes_down_no_epochs_and_finds_them_again(box: Any) -> None:
    log = open_log(box, is_cache=True)
    asyncio.run(log.truncate_fully_and_start_at(10))
    write = begin(log, batches_at(box, 10))
    write.run()
    assert log.end_aside(write)
    assert EPOCHS not in box.disk.names
    asyncio.run(log.flush())
    log.close()
    again = open_log(box, is_cache=True)
    assert (again.log_start_offset, again.log_end_offset) == (10, 14)
    assert again.epoch_for_offset(12) == parse_header(batches_at(box, 12)).partition_leader_epoch == 0
    again.append_as_follower(batches_at(box, 14))
    assert again.log_end_offset == 18
