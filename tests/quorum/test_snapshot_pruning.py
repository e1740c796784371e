"""Old snapshots and records of the metadata log are deleted by Kafka's two rules (KIP-630)."""

import asyncio
from pathlib import Path

import pytest

from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.quorum.snapshot_pruning import INTERVAL_S, SnapshotPruning, SnapshotRetention
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import InlineWorkers, LocalDisk, Machine, SeededEntropy, SystemClock
from moldau.simulation.world.loop import SimulatedLoop
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot import snapshot_file
from moldau.storage.snapshots.snapshot_log import SnapshotLog

DAY_MS = 24 * 3_600_000
UNLIMITED = -1


def filled_log(folder: Path, days: int) -> SnapshotLog:
    """A log with one segment for each day, and a snapshot at the end of each segment. Snapshot ``n`` ends at
    offset ``10 * n``."""
    machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), InlineWorkers())
    log = SnapshotLog.open(machine, str(folder), TopicPartition(CLUSTER_METADATA_TOPIC, 0))
    for day in range(1, days + 1):
        records = [Record(0, day * DAY_MS, None, b"v", ()) for _ in range(10)]
        log.append_as_leader(build_batch(records), 1)
        log.log.roll()
        log.update_high_watermark(log.end_offset)
        writer = log.create_snapshot(LogPosition(10 * day, 1), day * DAY_MS)
        assert writer is not None
        writer.append([b"v" * 1000])
        asyncio.run(writer.freeze())
    return log


def pruned(log: SnapshotLog, retention: SnapshotRetention, day: int) -> list[int]:
    """The end offsets of the snapshots that still exist on this day."""
    asyncio.run(SnapshotPruning(log, retention, lambda: day * DAY_MS).prune())
    return [each.offset for each in log.snapshot_ids()]


@pytest.mark.parametrize(
    ("days", "left"), [(UNLIMITED, [10, 20, 30, 40]), (7, [10, 20, 30, 40]), (6, [20, 30, 40]), (5, [30, 40])]
)
def test_snapshots_older_than_the_limit_are_deleted(tmp_path: Path, days: int, left: list[int]) -> None:
    log = filled_log(tmp_path, 4)
    max_age_ms = days * DAY_MS if days > 0 else UNLIMITED
    assert pruned(log, SnapshotRetention(UNLIMITED, max_age_ms), day=8) == left
    assert log.start_offset == (0 if left[0] == 10 else left[0])
    log.close()


def test_the_newest_snapshot_is_kept_at_any_age_and_size(tmp_path: Path) -> None:
    log = filled_log(tmp_path, 3)
    assert pruned(log, SnapshotRetention(0, 0), day=1000) == [30]
    assert [path.name for path in sorted(tmp_path.glob("*.checkpoint"))] == [
        snapshot_file(LogPosition(30, 1))
    ]
    assert [path.name for path in sorted(tmp_path.glob("*.log"))] == ["00000000000000000030.log"]
    assert (log.start_offset, log.end_offset) == (30, 30)
    log.close()


def test_segments_and_snapshots_together_have_at_most_the_limit(tmp_path: Path) -> None:
    log = filled_log(tmp_path, 4)

    def used() -> int:
        return log.size_bytes + sum(path.stat().st_size for path in tmp_path.glob("*.checkpoint"))

    limit = used()
    assert pruned(log, SnapshotRetention(limit, UNLIMITED), day=1000) == [10, 20, 30, 40]
    # One byte too many is used, so only the oldest snapshot is deleted, with the segment before the next
    # snapshot.
    assert pruned(log, SnapshotRetention(limit - 1, UNLIMITED), day=1000) == [20, 30, 40]
    assert used() < limit
    assert pruned(log, SnapshotRetention(UNLIMITED, UNLIMITED), day=1000) == [20, 30, 40]
    log.close()


def test_time_alone_makes_a_snapshot_old_while_the_log_is_idle(tmp_path: Path) -> None:
    log = filled_log(tmp_path, 2)
    loop = SimulatedLoop(seed=1, time_limit_s=600)

    async def wait() -> None:
        retention = SnapshotRetention(UNLIMITED, DAY_MS)
        begin_ms = 2 * DAY_MS - int(1.5 * INTERVAL_S * 1000)
        pruning = SnapshotPruning(log, retention, lambda: begin_ms + int(loop.elapsed_s() * 1000))
        task = loop.create_task(pruning.run())
        await asyncio.sleep(1.5 * INTERVAL_S)
        assert len(log.snapshot_ids()) == 2
        await asyncio.sleep(INTERVAL_S)
        assert len(log.snapshot_ids()) == 1
        task.cancel()

    try:
        loop.run_until_complete(wait())
    finally:
        loop.dispose()
    log.close()


def test_a_snapshot_with_a_damaged_header_is_no_obstacle(tmp_path: Path) -> None:
    log = filled_log(tmp_path, 2)
    path = tmp_path / snapshot_file(LogPosition(10, 1))
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    assert pruned(log, SnapshotRetention(UNLIMITED, 7 * DAY_MS), day=8) == [20]
    log.close()
