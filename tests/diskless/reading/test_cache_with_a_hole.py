"""Cached segments of a diskless partition. One of them was lost, but readers skip no record."""

from pathlib import Path
from uuid import UUID

import pytest

from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records import Record, build_batch
from moldau.runtime import InlineWorkers, LocalDisk, Machine, SeededEntropy, SystemClock
from moldau.storage.critical_logs.recovery_report import RecoveryReport, RepairKind
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

KEY = PartitionKey(UUID(int=1), 0)
NAME = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=400)


def open_log(folder: Path, report: RecoveryReport | None = None, config: LogConfig = CONFIG) -> PartitionLog:
    machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), InlineWorkers())
    return PartitionLog.open(
        machine, str(folder), NAME, config, topic_id=KEY.topic_id, clean_shutdown=True, report=report
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a log with four segments. The second segment is missing."""
    folder = tmp_path / "t-0"
    log = open_log(folder)
    for offset in range(8):
        log.append_as_follower(build_batch([Record(0, 1, None, bytes(100))], base_offset=offset))
    log.close()
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    assert len(bases) == 4
    (folder / f"{bases[1]:020d}.log").unlink()
    return folder


def test_a_cache_with_a_hole_is_dropped(folder: Path) -> None:
    log = open_log(folder)
    assert len(log.holes) == 1
    cache = PartitionCache(KEY, "t", 0, log)
    assert cache.local_start_offset == cache.local_end_offset == 8
    assert log.holes == []


def test_a_hole_in_a_log_is_reported(folder: Path) -> None:
    report = RecoveryReport()
    log = open_log(folder, report)
    (start, end) = log.holes[0]
    (lost,) = [repair for repair in report.repairs if repair.kind is RepairKind.LOST]
    assert f"offsets {start} to {end - 1} are missing" in lost.reason


def test_a_gap_that_compaction_left_is_not_reported(folder: Path) -> None:
    report = RecoveryReport()
    open_log(folder, report, LogConfig(segment_bytes=400, cleanup_compact=True))
    assert report.count(RepairKind.LOST) == 0
