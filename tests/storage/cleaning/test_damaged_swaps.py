"""A compacted segment that was damaged before it replaced the old segments."""

from typing import Any

import pytest
from cleaned_log import CleanedLog

from moldau.storage.critical_logs.integrity_check import DamagedLogError
from moldau.storage.critical_logs.recovery_report import RecoveryReport, RepairKind
from moldau.storage.segments.segment_swap import complete_swaps

FOLDER = "/data/t-0"
FIRST = f"{FOLDER}/00000000000000000000.log"
GARBAGE = b"\x3c" * 80
"""If these bytes are read as a batch header, its offset is larger than all other offsets."""


def with_damaged_swap(box: Any) -> Any:
    """A disk with a log of two segments. The file that replaces the first segment has invalid bytes at its
    end."""
    cleaned = CleanedLog(box)
    for _ in range(2):
        cleaned.append([(b"a", b"1"), (b"b", b"2")])
        cleaned.log.roll()
    disk = box.machine.disk
    disk.write_atomically(f"{FIRST}.swap", disk.read(FIRST) + GARBAGE)
    return disk


def logs(disk: Any) -> dict[str, bytes]:
    return {name: disk.read(f"{FOLDER}/{name}") for name in disk.list(FOLDER) if name.endswith(".log")}


def test_a_damaged_compaction_removes_no_segment(box: Any) -> None:
    disk = with_damaged_swap(box)
    before = logs(disk)
    report = RecoveryReport()
    complete_swaps(disk, FOLDER, report, is_critical=False)
    assert logs(disk) == before
    assert not disk.exists(f"{FIRST}.swap")
    assert report.count(RepairKind.LOST) == 1
    assert f"{FIRST}.swap is damaged at byte" in str(report.summary(RepairKind.LOST)).replace(": is", " is")


def test_a_damaged_compaction_without_old_segments_keeps_what_is_whole(box: Any) -> None:
    disk = with_damaged_swap(box)
    before = logs(disk)
    disk.remove(FIRST)
    report = RecoveryReport()
    complete_swaps(disk, FOLDER, report, is_critical=False)
    assert logs(disk).keys() == before.keys()
    assert disk.read(FIRST).startswith(before["00000000000000000000.log"])
    assert report.count(RepairKind.LOST) == 1


def test_a_damaged_compaction_of_a_guarded_log_stops_the_start(box: Any) -> None:
    disk = with_damaged_swap(box)
    before = logs(disk)
    with pytest.raises(DamagedLogError, match=r"log\.swap is damaged at byte"):
        complete_swaps(disk, FOLDER, RecoveryReport(), is_critical=True)
    assert logs(disk) == before
    assert disk.exists(f"{FIRST}.swap")
