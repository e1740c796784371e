"""Staged appends that are written together have the same result as separate appends, or have no effect at
all."""

import random
from typing import Any

import pytest

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import TimestampType, parse_header
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.recompression import TargetCompression
from moldau.records.record import Record
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log.staging import STAGED_BYTES_MAX

FOLDER = "/data/t-0"
EPOCH = 0


def open_log(box: Any, **config: Any) -> PartitionLog:
    log = PartitionLog.open(box.machine, FOLDER, TopicPartition("t", 0), LogConfig(**config))
    log.begin_epoch(EPOCH)
    return log


def batch_of(box: Any, size_bytes: int = 10, timestamp_ms: int | None = None, **producer: int) -> bytes:
    time_ms = box.clock.time_ms if timestamp_ms is None else timestamp_ms
    return build_batch([Record(0, time_ms, b"k", bytes(size_bytes), ())], **producer)


def stage(log: PartitionLog, batch: bytes) -> int | None:
    if not log.may_stage(len(batch), EPOCH):
        return None
    return log.stage(memoryview(batch), parse_header(batch))


def content(box: Any) -> dict[str, bytes]:
    return {path: bytes(inode.data) for path, inode in box.disk.names.items()}


def outcome(log: PartitionLog, batch: bytes) -> int | ErrorCode:
    try:
        return log.append_as_leader(batch, [parse_header(batch)], EPOCH).first_offset
    except KafkaError as error:
        return error.code


def staged_outcome(log: PartitionLog, batch: bytes) -> int | ErrorCode:
    """Append as a partition does. The batch is staged if that is possible."""
    try:
        offset = stage(log, batch)
    except KafkaError:
        offset = None
    if offset is not None:
        return offset
    log.write_staged()
    return outcome(log, batch)


@pytest.mark.parametrize("seed", range(60))
def test_a_log_is_the_same_with_staged_and_with_separate_appends(box: Any, seed: int) -> None:
    rng = random.Random(seed)
    segment_bytes = rng.choice([400, 2_000, 1 << 30])
    boxes = box, type(box)()
    plain, staging = (open_log(box, segment_bytes=segment_bytes, index_interval_bytes=100) for box in boxes)
    sequences = {1: 0, 2: 0}
    for _ in range(rng.randrange(1, 60)):
        producer_id = rng.choice([-1, -1, 1, 2])
        producer: dict[str, int] = {}
        if producer_id > 0:
            sequence = sequences[producer_id] + rng.choice([0, 0, 0, 0, -1, 2])
            sequences[producer_id] = max(0, sequence) + 1
            producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": max(0, sequence)}
        late_ms = rng.choice([0, 0, 0, 7_200_000])
        batch = batch_of(boxes[0], rng.randrange(300), boxes[0].clock.time_ms + late_ms, **producer)
        assert staged_outcome(staging, batch) == outcome(plain, batch)
        if rng.random() < 0.3:
            staging.write_staged()
            assert staging.log_end_offset == plain.log_end_offset
            assert staging.active_producers() == plain.active_producers()
    staging.write_staged()
    plain.close()
    staging.close()
    assert content(boxes[1]) == content(boxes[0])


def test_staged_appends_do_not_change_the_log_before_they_are_written(box: Any) -> None:
    log = open_log(box)
    before = content(box)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert [stage(log, batch_of(box)), stage(log, batch_of(box, **producer))] == [0, 1]
    assert content(box) == before
    assert log.log_end_offset == 0
    assert log.active_producers() == []
    log.write_staged()
    assert log.log_end_offset == 2
    assert [producer[0] for producer in log.active_producers()] == [7]


def test_nothing_of_staged_appends_is_left_if_the_disk_refuses_the_write(box: Any) -> None:
    log = open_log(box)
    outcome(log, batch_of(box))
    size_bytes = log.size_bytes
    stage(log, batch_of(box, 100))
    stage(log, batch_of(box, 100, producer_id=7, producer_epoch=0, base_sequence=0))
    box.disk.room_bytes = 200
    with pytest.raises(KafkaError) as failure:
        log.write_staged()
    assert failure.value.code is ErrorCode.kafka_storage_error
    assert log.is_offline
    assert log.log_end_offset == 1
    assert log.active_producers() == []
    assert len(box.disk.names[f"{FOLDER}/{0:020}.log"].data) == size_bytes
    assert stage(log, batch_of(box)) is None
    log.write_staged()


@pytest.mark.parametrize(
    "config",
    [
        {"message_timestamp_type": TimestampType.LOG_APPEND_TIME},
        {"cleanup_compact": True},
        {"compression": TargetCompression(Compression.ZSTD, 3)},
        {"message_timestamp_before_max_ms": 1000},
    ],
    ids=lambda config: next(iter(config)),
)
def test_batches_that_must_be_opened_are_not_staged(box: Any, config: dict[str, Any]) -> None:
    log = open_log(box)
    assert stage(log, batch_of(box)) == 0
    log.write_staged()
    log.config = LogConfig(**config)
    assert stage(log, batch_of(box)) is None


def test_large_batches_and_second_ones_of_a_producer_are_not_staged(box: Any) -> None:
    log = open_log(box)
    assert stage(log, batch_of(box, STAGED_BYTES_MAX)) is None
    assert stage(log, batch_of(box, producer_id=7, producer_epoch=0, base_sequence=0)) == 0
    assert stage(log, batch_of(box, producer_id=7, producer_epoch=0, base_sequence=1)) is None
    assert not log.may_stage(100, EPOCH + 1)
