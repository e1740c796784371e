"""No sync runs on the event loop of a node that serves clients. Operations that consist of several steps
survive a loss of power."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import UUID

import pytest

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers, validate_produce
from moldau.records.builder import build_batch
from moldau.records.control import SnapshotFooter, SnapshotHeader, build_control_batch
from moldau.records.record import Record, iter_records
from moldau.runtime import Machine
from moldau.simulation.seeds import stream
from moldau.simulation.world.process import serving
from moldau.simulation.world.world import World
from moldau.storage.cleaner.cleaner import CleanerSettings, LogCleaner
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager
from moldau.storage.log_manager_settings import LogManagerSettings
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot_log import SnapshotLog

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

NAME = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
COMPACTED = LogConfig(
    cleanup_delete=False, cleanup_compact=True, min_cleanable_dirty_ratio=0.0, index_interval_bytes=50
)

Work = Callable[[Machine, LogManager], Coroutine[Any, Any, None]]


def append(log: PartitionLog, key: bytes | None, value: bytes, epoch: int = 0) -> None:
    batch = build_batch([Record(0, 0, key, value, ())])
    log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=1 << 20), epoch)
    log.high_watermark = log.log_end_offset


def fill(log: PartitionLog, segments: int = 3, epoch: int = 0) -> None:
    """Segments of three records each, and a producer snapshot. None of these files was ever synced."""
    for number in range(segments):
        for record in range(3):
            append(log, None, b"%d-%d" % (number, record), epoch)
        log.roll()


async def logs_of(machine: Machine) -> LogManager:
    settings = LogManagerSettings(cleaner=CleanerSettings(enable=False))
    manager = LogManager(machine, ["/data"], settings)
    await manager.start(lambda _: LogConfig())
    return manager


def run_served(work: Work, seed: int = 0) -> None:
    """Do ``work`` on the log manager of a node that serves clients. The node's event loop must not wait for
    the disk."""

    async def program(machine: Machine) -> None:
        machine.disk.make_dirs("/data")
        manager = await logs_of(machine)
        serving()
        await work(machine, manager)
        await manager.stop()

    async def story(world: World) -> None:
        process = world.host("node").start(program)
        assert process.main is not None
        await asyncio.wait([process.main])
        process.main.result()

    with World(seed) as world:
        world.run(story(world))
        assert world.errors() == []


async def roll_and_flush(machine: Machine, manager: LogManager) -> None:
    log = await get_or_create(manager, NAME, LogConfig(), TOPIC_ID)
    fill(log)
    await manager.flush_due()
    assert log.flushed_offset == 9
    fill(log, epoch=3)
    await manager.checkpoint()
    await manager.checkpoint_high_watermarks()


async def retention(machine: Machine, manager: LogManager) -> None:
    log = await get_or_create(manager, NAME, LogConfig(retention_bytes=0), TOPIC_ID)
    fill(log)
    await manager.clean_up()
    assert log.log_start_offset == 9


async def deletion_of_records(machine: Machine, manager: LogManager) -> None:
    log = await get_or_create(manager, NAME, LogConfig(retention_ms=-1), TOPIC_ID)
    fill(log)
    log.update_log_start_offset(4)
    await log.persist_start()
    await manager.clean_up()
    assert log.segments.segments[0].base_offset == 3


async def truncation(machine: Machine, manager: LogManager) -> None:
    log = await get_or_create(manager, NAME, LogConfig(), TOPIC_ID)
    fill(log)
    await log.flush()
    await manager.checkpoint()
    await log.truncate_to(4)
    assert log.log_end_offset == 4
    fill(log)
    await log.flush()
    await log.truncate_fully_and_start_at(100)
    assert log.log_start_offset == log.log_end_offset == 100


async def compaction(machine: Machine, manager: LogManager) -> None:
    log = await get_or_create(manager, NAME, COMPACTED, TOPIC_ID)
    for number in range(12):
        append(log, b"%d" % (number % 2), b"%d" % number)
        if number % 3 == 2:
            log.roll()
    assert await manager.cleaner.clean_dirtiest()
    assert manager.cleaner_offset(NAME) == 12


async def deletion_of_topics(machine: Machine, manager: LogManager) -> None:
    for number in range(20):
        await get_or_create(manager, TopicPartition("many", number), LogConfig(), TOPIC_ID)
    for number in range(20):
        manager.delete(TopicPartition("many", number))
    await manager.settled()
    await manager.clean_up()


def _snapshot_of_the_leader(snapshot_id: LogPosition) -> bytes:
    """The bytes of a snapshot without records."""
    parts = (
        build_control_batch([part], base_offset=number, leader_epoch=snapshot_id.epoch, timestamp=0)
        for number, part in enumerate((SnapshotHeader(0), SnapshotFooter()))
    )
    return b"".join(parts)


async def snapshots(machine: Machine, manager: LogManager) -> None:
    log = await get_or_create(manager, NAME, LogConfig(), TOPIC_ID)
    snapshots = SnapshotLog(machine, log)
    for end_offset in (9, 18):
        fill(log)
        await log.flush()
        writer = snapshots.create_snapshot(LogPosition(end_offset, 0), 0)
        assert writer is not None
        writer.append([b"state"])
        await writer.freeze()
        await snapshots.delete_before_snapshot(LogPosition(end_offset, 0))
        assert log.segments.segments[0].base_offset == end_offset
    fetched = snapshots.store_snapshot(LogPosition(30, 2))
    assert fetched is not None
    fetched.append(_snapshot_of_the_leader(LogPosition(30, 2)))
    await fetched.freeze()
    assert await snapshots.truncate_to_latest_snapshot()
    assert log.log_start_offset == 30


@pytest.mark.parametrize(
    "work",
    [
        roll_and_flush,
        retention,
        deletion_of_records,
        truncation,
        compaction,
        deletion_of_topics,
        snapshots,
    ],
)
def test_no_operation_of_a_log_syncs_on_the_loop(work: Work) -> None:
    run_served(work)


def test_a_sync_on_the_loop_is_noticed() -> None:
    async def work(machine: Machine, manager: LogManager) -> None:
        machine.disk.sync_dir("/data")

    with pytest.raises(AssertionError, match="sync of /data on the loop"):
        run_served(work)


def play_until_power_is_lost(
    seed: int,
    config: LogConfig,
    work: Callable[[Machine, PartitionLog], Coroutine[Any, Any, None]],
    read: Callable[[PartitionLog], None],
) -> None:
    """Do ``work`` on a log until the machine loses power, three times. After each loss, open the log again
    and ``read`` it."""
    chance = stream(seed, "when")

    async def program(machine: Machine) -> None:
        machine.disk.make_dirs("/data/t-0")
        machine.disk.sync_dir("/")
        machine.disk.sync_dir("/data")
        log = PartitionLog.open(machine, "/data/t-0", NAME, config)
        log.high_watermark = log.log_end_offset
        read(log)
        serving()
        await work(machine, log)

    async def story(world: World) -> None:
        host = world.host("node")
        for _ in range(3):
            process = host.start(program)
            assert process.main is not None
            await asyncio.wait([process.main], timeout=chance.uniform(0.01, 4 * host.disk_delay_s * 40))
            if process.main.done():
                process.main.result()
            host.lose_power()
        process = host.start(program)
        assert process.main is not None
        await asyncio.wait([process.main], timeout=0.001)

    with World(seed) as world:
        world.run(story(world))
        assert world.errors() == []


@pytest.mark.parametrize("seed", range(60))
def test_a_compaction_that_loses_power_loses_no_key(seed: int) -> None:
    flushed: dict[bytes | None, int] = {}
    number = 0

    def read(log: PartitionLog) -> None:
        found = {key: int(value) for key, value in _records(log)}
        assert all(found.get(key, -1) >= value for key, value in flushed.items()), (found, flushed)

    async def work(machine: Machine, log: PartitionLog) -> None:
        nonlocal number
        manager = _OneLog(log)
        cleaner = manager.cleaner(machine)
        chance = random.Random(seed)
        while True:
            written: dict[bytes | None, int] = {}
            for _ in range(chance.randint(1, 6)):
                key = b"%d" % chance.randrange(5)
                number += 1
                append(log, key, b"%d" % number)
                written[key] = number
            log.roll()
            await log.flush()
            flushed.update(written)
            await cleaner.clean_dirtiest()

    play_until_power_is_lost(seed, COMPACTED, work, read)


@pytest.mark.parametrize("seed", range(60))
def test_a_loss_of_power_during_a_truncation_restores_no_older_record_after_a_newer_one(seed: int) -> None:
    """After a truncation and a loss of power, all flushed records exist, and no older record follows a newer
    record."""
    kept: list[bytes] = []
    number = 0

    def read(log: PartitionLog) -> None:
        found = [value for _, value in _records(log)]
        assert found[: len(kept)] == kept
        # Records after a truncation replace older records. The new records were written later, so no older
        # record may follow them.
        assert found == sorted(found, key=int)
        kept[:] = found

    async def work(machine: Machine, log: PartitionLog) -> None:
        nonlocal number
        chance = random.Random(seed)
        epoch = max(0, log.epoch_for_offset(log.log_end_offset))
        while True:
            epoch += 1
            for _ in range(chance.randint(1, 8)):
                number += 1
                append(log, None, b"%d" % number, epoch)
                if chance.random() < 0.3:
                    log.roll()
            await log.flush()
            kept[:] = [value for _, value in _records(log)]
            offset = chance.randrange(log.log_end_offset + 1)
            # During the truncation, a loss of power may leave the old end or the new end of the log.
            del kept[offset:]
            await log.truncate_to(offset)

    play_until_power_is_lost(seed, LogConfig(), work, read)


def _records(log: PartitionLog) -> list[tuple[bytes | None, bytes]]:
    found: list[tuple[bytes | None, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20)
        for view in result.views:
            found += [(record.key, record.value or b"") for record in _in(view)]
        offset = result.next_offset
    return found


def _in(view: memoryview) -> Iterator[Record]:
    for position, header in iter_headers(view):
        yield from iter_records(view[position : position + header.size_bytes])


class _OneLog:
    """The logs of a node, with the interface that the cleaner needs."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._offset: int | None = None

    def cleaner(self, machine: Machine) -> LogCleaner:
        return LogCleaner(machine, self, CleanerSettings())

    def __iter__(self) -> Any:
        return iter([self._log])

    def cleaner_offset(self, topic_partition: TopicPartition) -> int | None:
        return self._offset

    async def note_cleaned(self, log: PartitionLog, offset: int) -> None:
        self._offset = offset

    async def make_recoverable(self, log: PartitionLog) -> None:
        pass

    def remove_files_later(self, log: PartitionLog, paths: Any) -> None:
        pass
