"""Damaged transaction indexes. Readers of committed records still get all committed records and no aborted
records."""

from pathlib import PurePosixPath
from typing import Any

import pytest

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header, validate_produce
from moldau.records.builder import build_batch
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record
from moldau.storage.critical_logs.recovery_report import RecoveryReport, RepairKind
from moldau.storage.log.append_info import AbortedEntry, AppendOrigin
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

FOLDER = "/data/t-0"
ENTRY_SIZE_BYTES = 34
ROUNDS = 8


def open_log(box: Any, report: RecoveryReport | None = None, *, is_clean: bool = True) -> PartitionLog:
    return PartitionLog.open(
        box.machine,
        FOLDER,
        TopicPartition("t", 0),
        LogConfig(segment_bytes=900),
        clean_shutdown=is_clean,
        report=report,
    )


def abort(box: Any, log: PartitionLog, number: int) -> None:
    record = Record(0, box.clock.time_ms, None, b"v", ())
    batch = build_batch([record], producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
    log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**7), 0)
    end = build_end_transaction_marker(7, 0, committed=False, coordinator_epoch=1, timestamp=1)
    log.append_as_leader(end, [parse_header(end)], 0, origin=AppendOrigin.COORDINATOR)


def aborted(log: PartitionLog) -> list[AbortedEntry]:
    return [entry for segment in log.segments.segments for entry in segment.transaction_index]


def files(box: Any, suffix: str) -> list[str]:
    return sorted(path for path in box.disk.names if PurePosixPath(path).suffix == suffix)


@pytest.fixture
def whole(box: Any) -> list[AbortedEntry]:
    """A log that was closed cleanly. It has several segments, and each segment has aborted transactions."""
    log = open_log(box)
    for number in range(ROUNDS):
        abort(box, log, number)
    found = aborted(log)
    box.run(log.flush())
    log.close()
    assert len(found) == ROUNDS
    assert len(files(box, ".txnindex")) > 1
    return found


@pytest.mark.parametrize("which", [0, -1], ids=["sealed", "active"])
@pytest.mark.parametrize("kept", [None, 0, 1], ids=["removed", "emptied", "cut"])
def test_a_shorter_index_is_rebuilt(
    box: Any, whole: list[AbortedEntry], which: int, kept: int | None
) -> None:
    path = files(box, ".txnindex")[which]
    if kept is None:
        box.disk.remove(path)
    else:
        box.disk.open(path).truncate(kept * ENTRY_SIZE_BYTES)
    report = RecoveryReport()
    assert aborted(open_log(box, report)) == whole
    assert report.count(RepairKind.REBUILT) == 1
    assert path in report.repairs[0].reason


def test_a_changed_entry_is_found(box: Any, whole: list[AbortedEntry]) -> None:
    path = files(box, ".txnindex")[0]
    box.disk.open(path).write_at(2, [b"\xff" * 8])
    assert aborted(open_log(box)) == whole


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_entries_of_later_segments_are_not_repeated(box: Any, whole: list[AbortedEntry], suffix: str) -> None:
    box.disk.remove(files(box, suffix)[0])
    assert aborted(open_log(box)) == whole
    assert aborted(open_log(box, is_clean=False)) == whole


def test_an_undamaged_log_is_not_rebuilt(box: Any, whole: list[AbortedEntry]) -> None:
    report = RecoveryReport()
    for number in range(ROUNDS, ROUNDS + 2):
        log = open_log(box, report)
        assert len(aborted(log)) == number
        abort(box, log, number)
        box.run(log.flush())
        log.close()
    assert not report.repairs
    del whole


def test_an_index_of_an_earlier_version_is_accepted(box: Any, whole: list[AbortedEntry]) -> None:
    for path in files(box, ".sum"):
        box.disk.remove(path)
    report = RecoveryReport()
    assert aborted(open_log(box, report)) == whole
    assert not report.repairs
