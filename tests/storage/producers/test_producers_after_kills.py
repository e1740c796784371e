"""Producers that a log must still know after its process was killed."""

import asyncio
from typing import Any

import pytest
from memory_disk import NothingKept

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.log.append_info import AppendInfo
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

FIRST = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
FOLDER = "/data/t-0"
SMALL = LogConfig(segment_bytes=1_000, retention_bytes=1_500)


def open_log(box: Any, **how: Any) -> PartitionLog:
    return PartitionLog.open(box.machine, FOLDER, TopicPartition("t", 0), SMALL, **how)


def append(box: Any, log: PartitionLog, value: bytes = b"v", epoch: int = 0, **producer: int) -> AppendInfo:
    batch = build_batch([Record(0, box.clock.time_ms, None, value, ())], **producer)
    return log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**7), epoch)


def filled(box: Any) -> PartitionLog:
    """A log with a batch of the idempotent producer 7, and many batches after it."""
    log = open_log(box)
    append(box, log, **FIRST)
    for _ in range(6):
        append(box, log, b"v" * 700)
    return log


def expire(box: Any, log: PartitionLog) -> None:
    """Let retention remove the first segments, with the producer's batch."""
    log.high_watermark = log.log_end_offset
    asyncio.run(log.delete_old_segments(box.clock.time_ms))
    assert log.log_start_offset > 0


def test_a_producer_stays_known_after_retention_between_two_kills(box: Any) -> None:
    filled(box)
    expire(box, open_log(box))
    assert append(box, open_log(box), **FIRST).is_duplicate


def test_a_producer_stays_known_after_a_loss_of_power(box: Any) -> None:
    """A start rebuilds a damaged index below the recovery point, and is killed. The next start believes the
    snapshots that the first one has written, so they must be durable."""
    log = filled(box)
    end_offset = log.log_end_offset
    log.close()
    box.disk.remove(f"{FOLDER}/00000000000000000000.timeindex")
    box.disk.sync_dir(FOLDER)
    open_log(box, recovery_point=end_offset, clean_shutdown=True)
    log = open_log(box, recovery_point=end_offset, was_killed=True)
    expire(box, log)
    start_offset = log.log_start_offset
    box.disk.crash(NothingKept())
    log = open_log(box, recovery_point=end_offset, log_start_offset=start_offset)
    assert append(box, log, **FIRST).is_duplicate


def test_a_producer_stays_known_after_a_truncation_to_the_start(box: Any) -> None:
    log = filled(box)
    expire(box, log)
    asyncio.run(log.truncate_to(log.log_start_offset))
    assert append(box, log, **FIRST).is_duplicate


def test_epochs_below_the_start_are_not_learned_again(box: Any) -> None:
    """DeleteRecords has removed all records, but their segment still exists. If its epochs were in the file,
    the next start would believe that the log begins with them."""
    log = open_log(box)
    for epoch in (1, 2, 3):
        append(box, log, epoch=epoch)
    asyncio.run(log.flush())
    log.high_watermark = 3
    log.update_log_start_offset(3)
    log.forget_empty_epochs()
    asyncio.run(log.persist_start())
    log = open_log(box, log_start_offset=3)
    assert [entry.start_offset for entry in log.leader_epochs.entries] in ([], [3])
    assert log.log_start_offset == 3


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_producer_stays_known_in_an_empty_log(box: Any, is_clean: bool) -> None:
    log = open_log(box)
    append(box, log, **FIRST)
    log.high_watermark = log.log_end_offset
    log.config = LogConfig(retention_ms=1)
    asyncio.run(log.delete_old_segments(box.clock.time_ms + 10_000))
    assert log.log_start_offset == log.log_end_offset
    if is_clean:
        log.close()

    log = open_log(box, clean_shutdown=is_clean)
    assert append(box, log, **FIRST).is_duplicate
