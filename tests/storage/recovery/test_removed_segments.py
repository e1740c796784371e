"""A segment of a log is removed while the node is stopped. The next start must detect this, even if the
segment was in the middle of the log. It must also detect this if no checkpoint contains the end of the log
yet."""

import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from memory_disk import NothingKept

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.critical_logs.recovery_report import RepairKind
from moldau.storage.folders.file_names import DELETED_SUFFIX
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager

A0 = TopicPartition("a", 0)
FOLDER = "/one/a-0"
SEGMENTS = ("00000000000000000000", "00000000000000000002")


def boot(box: Any, boot_id: str) -> None:
    object.__setattr__(box.machine, "boot_id", boot_id)


async def killed(box: Any) -> None:
    """A log of a killed process. It has two segments with two records each. No checkpoint has an offset of
    this log."""
    boot(box, "first boot")
    manager = LogManager(box.machine, ["/one"])
    await manager.start(lambda _: LogConfig())
    await manager.note_boot()
    log = await get_or_create(manager, A0, LogConfig(), uuid.UUID(int=7))
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v", ())] * 2)
    for _ in SEGMENTS:
        log.roll()
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)
    log.epochs.save()
    manager._unlock()


def remove(box: Any, *names: str, suffixes: tuple[str, ...]) -> None:
    for name in names:
        for suffix in suffixes:
            box.disk.remove(f"{FOLDER}/{name}{suffix}")


async def losses(box: Any) -> list[str]:
    """Start a log manager on the disk. Returns its messages about lost segments of the log."""
    manager = LogManager(box.machine, ["/one"])
    await manager.start(lambda _: LogConfig())
    repairs = manager.report.repairs
    await manager.stop()
    return [str(repair) for repair in repairs if repair.kind is RepairKind.LOST]


ALL = (".log", ".index", ".timeindex")


@pytest.mark.parametrize(
    ("names", "suffixes", "said"),
    [
        (SEGMENTS, ALL, "ends at offset 0: no segment is there"),
        (SEGMENTS, (".log",), "ends at offset 0: 00000000000000000000.log is missing"),
        (SEGMENTS[1:], (".log",), "ends at offset 2: 00000000000000000002.log is missing"),
    ],
)
def test_a_removed_segment_is_reported(
    box: Any, names: tuple[str, ...], suffixes: tuple[str, ...], said: str
) -> None:
    async def scenario() -> None:
        await killed(box)
        remove(box, *names, suffixes=suffixes)
        found = await losses(box)
        assert len(found) == 1
        assert said in found[0]
        assert not await losses(box), "the next start has nothing to tell"

    box.run(scenario())


def test_a_start_after_a_kill_with_all_segments_reports_no_loss(box: Any) -> None:
    async def scenario() -> None:
        await killed(box)
        assert not await losses(box)

    box.run(scenario())


def test_a_loss_of_power_may_take_a_segment(box: Any) -> None:
    async def scenario() -> None:
        await killed(box)
        remove(box, *SEGMENTS, suffixes=(".log",))
        boot(box, "second boot")
        assert not await losses(box)

    box.run(scenario())


def test_a_segment_that_the_node_was_removing_is_not_reported_as_lost(box: Any) -> None:
    async def scenario() -> None:
        await killed(box)
        path = f"{FOLDER}/{SEGMENTS[1]}.log"
        box.disk.rename(path, path + DELETED_SUFFIX)
        assert not await losses(box)

    box.run(scenario())


async def stopped(box: Any) -> None:
    """The log of :func:`killed`, but after a clean stop."""
    await killed(box)
    manager = LogManager(box.machine, ["/one"])
    await manager.start(lambda _: COMPACTED)
    await manager.stop()


COMPACTED = LogConfig(cleanup_delete=False, cleanup_compact=True)


@pytest.mark.parametrize("end", [killed, stopped])
def test_a_removed_segment_inside_a_compacted_log_is_reported(
    box: Any, end: Callable[[Any], Coroutine[Any, Any, None]]
) -> None:
    async def scenario() -> None:
        await end(box)
        remove(box, SEGMENTS[1], suffixes=(".log",))
        # Add a third segment, so that the missing segment is not the last segment.
        for suffix in ALL:
            box.disk.open(f"{FOLDER}/00000000000000000004{suffix}", create=True)
        manager = LogManager(box.machine, ["/one"])
        await manager.start(lambda _: COMPACTED)
        found = [str(repair) for repair in manager.report.repairs if repair.kind is RepairKind.LOST]
        await manager.stop()
        assert [SEGMENTS[1] + ".log is missing" in each for each in found] == [True]

    box.run(scenario())


def test_a_start_after_a_clean_stop_with_all_segments_reports_no_loss(box: Any) -> None:
    async def scenario() -> None:
        await stopped(box)
        assert not await losses(box)

    box.run(scenario())


def test_segments_that_a_start_removed_do_not_come_back_after_a_loss_of_power(box: Any) -> None:
    def start() -> PartitionLog:
        return PartitionLog.open(box.machine, FOLDER, A0, LogConfig(segment_bytes=100))

    def append(log: PartitionLog) -> None:
        batch = build_batch([Record(0, box.clock.time_ms, None, b"v", ())])
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)

    log = start()
    for _ in range(4):
        append(log)
    log.close()
    names = [name for name in box.disk.list(FOLDER) if name.endswith(".log")]
    file = box.disk.open(f"{FOLDER}/{names[1]}")
    file.truncate(0)
    file.sync()
    assert start().log_end_offset == 1
    box.disk.crash(NothingKept())
    left = [name for name in box.disk.list(FOLDER) if name.endswith(".log")]
    assert left == names[:2], "only the empty segment may be left"
    assert start().log_end_offset == 1
