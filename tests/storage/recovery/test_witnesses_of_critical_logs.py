"""The checkpoints of a log folder prove the durable end of a critical log, also after a loss of power."""

import random
import uuid
from typing import Any

import pytest

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.critical_logs.integrity_check import DURABLE_OFFSET, DamagedLogError
from moldau.storage.critical_logs.inventory import CriticalTopic
from moldau.storage.folders.file_names import HIGH_WATERMARKS, RECOVERY_POINTS
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager

A0 = TopicPartition("a", 0)
SEGMENT = "/one/a-0/00000000000000000000.log"


def append(box: Any, log: PartitionLog, count: int) -> None:
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v", ())])
    for _ in range(count):
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)


def reboot(box: Any, boot_id: str) -> None:
    object.__setattr__(box.machine, "boot_id", boot_id)


def manager_of(box: Any) -> LogManager:
    return LogManager(box.machine, ["/one"], critical={"a": CriticalTopic()})


async def started(box: Any) -> LogManager:
    manager = manager_of(box)
    await manager.start(lambda _: LogConfig())
    return manager


async def checkpointed(box: Any) -> PartitionLog:
    """A log with six records. Four of them are acknowledged, durable and in the checkpoints."""
    reboot(box, "first boot")
    manager = await started(box)
    log = await get_or_create(manager, A0, LogConfig(), uuid.UUID(int=7))
    append(box, log, 4)
    await log.flush()
    log.high_watermark = 4
    await manager.checkpoint()
    await manager.checkpoint_high_watermarks()
    for directory in manager.directories:
        directory.note_boot()
    append(box, log, 2)
    return log


def lose_power(box: Any) -> None:
    box.disk.crash(random.Random(1))
    box.disk.names.pop(f"/one/a-0/{DURABLE_OFFSET}", None)
    reboot(box, "second boot")


def test_a_loss_of_power_alone_does_not_stop_the_start(box: Any) -> None:
    async def scenario() -> None:
        await checkpointed(box)
        lose_power(box)
        log = (await started(box)).get(A0)
        assert log is not None
        assert log.log_end_offset in (4, 5, 6)

    box.run(scenario())


def test_damage_below_the_recovery_point_stops_the_start_after_a_loss_of_power(box: Any) -> None:
    async def scenario() -> None:
        await checkpointed(box)
        lose_power(box)
        box.disk.names[SEGMENT].data[100] ^= 0xFF
        before = bytes(box.disk.names[SEGMENT].data)
        with pytest.raises(
            DamagedLogError, match=f"{SEGMENT} is damaged.*offset 4, as /one/{RECOVERY_POINTS}"
        ):
            await started(box)
        assert bytes(box.disk.names[SEGMENT].data) == before

    box.run(scenario())


@pytest.mark.parametrize("other", [HIGH_WATERMARKS, RECOVERY_POINTS])
def test_each_of_the_two_checkpoints_shows_that_a_folder_is_missing(box: Any, other: str) -> None:
    async def scenario() -> None:
        await checkpointed(box)
        lose_power(box)
        box.disk.write_atomically(f"/one/{other}", b"")
        box.disk.remove_tree("/one/a-0")
        with pytest.raises(DamagedLogError, match="/one/a-0 is missing"):
            await started(box)

    box.run(scenario())


@pytest.mark.parametrize("offset", [2, 0])
def test_a_truncation_lowers_the_recovery_point_before_it_cuts(
    box: Any, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    files = type(box.disk.open("/any", create=True))
    truncate, remove, rename = files.truncate, box.disk.remove, box.disk.rename

    def see(path: str) -> None:
        if path == SEGMENT:
            seen.append(box.disk.read(f"/one/{RECOVERY_POINTS}"))

    def truncating(file: Any, size: int) -> None:
        see(file.path)
        truncate(file, size)

    def removing(path: str) -> None:
        see(path)
        remove(path)

    def renaming(source: str, target: str) -> None:
        see(source)
        rename(source, target)

    async def scenario() -> None:
        log = await checkpointed(box)
        monkeypatch.setattr(files, "truncate", truncating)
        monkeypatch.setattr(box.disk, "remove", removing)
        monkeypatch.setattr(box.disk, "rename", renaming)
        await log.truncate_to(offset)
        assert log.log_end_offset == offset
        assert seen
        assert set(seen) == {b"0\n1\na 0 %d\n" % offset}

    box.run(scenario())
