"""Producers that a log must still know after its process was killed."""

import asyncio
from typing import Any

import pytest

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.log.append_info import AppendInfo
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

SMALL = LogConfig(segment_bytes=1_000, retention_bytes=1_500)


def open_log(box: Any, *, clean_shutdown: bool = False) -> PartitionLog:
    partition = TopicPartition("t", 0)
    return PartitionLog.open(box.machine, "/data/t-0", partition, SMALL, clean_shutdown=clean_shutdown)


def append(box: Any, log: PartitionLog, value: bytes = b"v", **producer: int) -> AppendInfo:
    batch = build_batch([Record(0, box.clock.time_ms, None, value, ())], **producer)
    return log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**7), 0)


def test_a_producer_stays_known_after_retention_between_two_kills(box: Any) -> None:
    first = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    log = open_log(box)
    append(box, log, **first)
    for _ in range(6):
        append(box, log, b"v" * 700)

    log = open_log(box)
    log.high_watermark = log.log_end_offset
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert log.log_start_offset > 0, "retention has removed the producer's batch"

    log = open_log(box)
    assert append(box, log, **first).is_duplicate


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_producer_stays_known_in_an_empty_log(box: Any, is_clean: bool) -> None:
    first = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    log = open_log(box)
    append(box, log, **first)
    log.high_watermark = log.log_end_offset
    log.config = LogConfig(retention_ms=1)
    asyncio.run(log.delete_old_segments(box.clock.time_ms + 10_000))
    assert log.log_start_offset == log.log_end_offset
    if is_clean:
        log.close()

    log = open_log(box, clean_shutdown=is_clean)
    assert append(box, log, **first).is_duplicate
