"""If the log file of a segment was replaced by a file of another partition, the start is refused. If only an
index is wrong, the index is rebuilt."""

from typing import Any

import pytest

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.critical_logs.integrity_check import DamagedLogError
from moldau.storage.critical_logs.recovery_report import RecoveryReport, RepairKind
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

CONFIG = LogConfig(segment_bytes=1_000, index_interval_bytes=200)
ONE, OTHER = "/data/one-0", "/data/other-0"
SUFFIXES = (".log", ".index", ".timeindex")


def open_log(box: Any, folder: str, report: RecoveryReport | None = None, **how: Any) -> PartitionLog:
    name = TopicPartition(folder.rpartition("/")[2].removesuffix("-0"), 0)
    return PartitionLog.open(
        box.machine, folder, name, CONFIG, report=report, **{"clean_shutdown": True, **how}
    )


def fill(box: Any, folder: str, first_ms: int, size: int = 100) -> None:
    """A log of several segments with one batch each. It was closed cleanly."""
    log = open_log(box, folder)
    for number in range(40):
        batch = build_batch([Record(0, first_ms + number, None, bytes(size))])
        log.append_as_leader(batch, [parse_header(batch)], 0)
    log.close()


def segments(box: Any, folder: str, suffix: str = ".log") -> list[str]:
    return sorted(name for name in box.disk.names if name.startswith(folder) and name.endswith(suffix))


def put(box: Any, path: str, other: str) -> None:
    box.disk.write_atomically(path, box.disk.read(other))


@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("how", [{}, {"clean_shutdown": False, "was_killed": True}], ids=["stop", "kill"])
@pytest.mark.parametrize("size", [100, 130])
def test_a_segment_of_another_partition_is_refused(box: Any, number: int, how: Any, size: int) -> None:
    """The segments of the other partition have the same offsets. With ``size`` 100 they also have the same
    lengths."""
    fill(box, ONE, 1_000)
    fill(box, OTHER, 500_000, size)
    path = segments(box, ONE)[number]
    before = box.disk.read(path)
    put(box, path, segments(box, OTHER)[number])
    with pytest.raises(DamagedLogError) as raised:
        open_log(box, ONE, **how)
    assert path in str(raised.value)
    assert "docs/operations.md" in str(raised.value)
    box.disk.write_atomically(path, before)
    report = RecoveryReport()
    assert open_log(box, ONE, report, **how).log_end_offset == 40
    assert report.repairs == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("number", [0, 2])
def test_an_index_of_another_partition_is_refused_with_the_remedy(box: Any, suffix: str, number: int) -> None:
    """A start detects that an index and its log file do not match. It cannot detect which of the two files
    was replaced."""
    fill(box, ONE, 1_000)
    fill(box, OTHER, 500_000, 90)
    path = segments(box, ONE, suffix)[number]
    whole = box.disk.read(path)
    put(box, path, segments(box, OTHER, suffix)[number])
    with pytest.raises(DamagedLogError, match=r"remove its .index and .timeindex"):
        open_log(box, ONE)
    for each in (".index", ".timeindex"):
        box.disk.remove(path.removesuffix(suffix) + each)
    report = RecoveryReport()
    log = open_log(box, ONE, report)
    assert log.log_end_offset == 40
    assert [repair.kind for repair in report.repairs] == [RepairKind.REBUILT]
    log.close()
    assert box.disk.read(path) == whole


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_entry_of_an_index_is_rebuilt(box: Any, suffix: str) -> None:
    fill(box, ONE, 1_000)
    path = segments(box, ONE, suffix)[1]
    whole = box.disk.read(path)
    box.disk.write_atomically(path, whole[:-2] + b"\x7f\x7f")
    report = RecoveryReport()
    log = open_log(box, ONE, report)
    assert log.log_end_offset == 40
    assert [repair.kind for repair in report.repairs] == [RepairKind.REBUILT]
    log.close()
    assert box.disk.read(path) == whole


def test_a_cached_segment_of_another_partition_is_emptied(box: Any) -> None:
    """A log of a diskless topic is a cache. The start empties the replaced segment, and its records are read
    from the object store again."""
    fill(box, ONE, 1_000)
    fill(box, OTHER, 500_000)
    path = segments(box, ONE)[0]
    put(box, path, segments(box, OTHER)[0])
    report = RecoveryReport()
    open_log(box, ONE, report.of_cache())
    assert not box.disk.size(path)
    assert {repair.kind for repair in report.repairs} == {RepairKind.REBUILT}
    assert path in {repair.path for repair in report.repairs}


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_file_does_not_count_as_a_replaced_file(box: Any, damage: str) -> None:
    fill(box, ONE, 1_000)
    path = segments(box, ONE)[1]
    content = bytearray(box.disk.read(path))
    if damage == "flipped":
        content[-150:-50] = bytes(byte ^ 0xFF for byte in content[-150:-50])
    else:
        del content[-150:]
    box.disk.write_atomically(path, bytes(content))
    report = RecoveryReport()
    log = open_log(box, ONE, report, clean_shutdown=False, was_killed=True)
    assert log.log_end_offset < 40
    assert report.count(RepairKind.LOST) or report.count(RepairKind.TORN_TAIL)
