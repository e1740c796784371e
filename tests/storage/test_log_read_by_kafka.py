"""Kafka's own DumpLogSegments reads our segments, indexes and snapshots, and reports no fault."""

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER, CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header, validate_produce
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import LeaderChange, build_control_batch, build_end_transaction_marker
from moldau.records.record import Record
from moldau.runtime import Machine
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot_log import SnapshotLog

JARS = Path(__file__).parents[2] / ".tools" / "jars"
NO_OP = b"\x01\x14\x00\x00"


def dump(files: list[Path], *options: str, may_have_holes: bool = False) -> str:
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Kafka's jars are missing")
        pytest.skip("java or Kafka's jars are missing")
    names = ",".join(map(str, files))
    command = [
        java,
        "-Xmx128m",
        "-cp",
        f"{JARS}/*",
        "kafka.tools.DumpLogSegments",
        "--files",
        names,
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    complaints = done.stderr
    if may_have_holes:  # Kafka prints this line for every compacted log.
        complaints = re.sub(r"Non-consecutive offsets in .*\n(  \d+ is followed by \d+\n)+", "", complaints)
    assert (done.returncode, complaints) == (0, "")
    return done.stdout


def write_partition(folder: Path) -> int:
    """A log with every codec, with idempotent and transactional producers, and with timestamps that are out
    of order."""
    machine = Machine.real()
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=1_000)
    log = PartitionLog.open(machine, str(folder), TopicPartition("t", 0), config)
    now = machine.clock.now_ms()
    sequences = {5: 0, 9: 0, -1: -1}
    for index in range(300):
        count, epoch = index % 7 + 1, index // 100
        producer = 5 if index % 10 > 6 else 9 if index % 2 else -1
        times = [now - index * 37 % 100 + number for number in range(count)]
        batch = build_batch(
            [Record(0, time_ms, b"key", b"x" * 80, (("h", None),)) for time_ms in times],
            compression=list(Compression)[index % 5],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequences[producer],
            transactional=producer == 5,
        )
        if producer >= 0:
            sequences[producer] += count
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), epoch)
        if index % 10 == 9:
            marker = build_end_transaction_marker(
                5, 0, committed=index % 20 == 9, coordinator_epoch=1, timestamp=now
            )
            log.append_as_leader(marker, [parse_header(marker)], epoch, origin=AppendOrigin.COORDINATOR)
    end_offset = log.log_end_offset
    log.close()
    return end_offset


@pytest.mark.java
def test_kafka_finds_nothing_wrong_with_a_partition(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    end_offset = write_partition(folder)
    shown = dump(sorted(folder.glob("*.log")), "--deep-iteration")
    assert shown.count("isvalid: true") == 330
    assert "isvalid: false" not in shown
    assert f"offset: {end_offset - 1} " in shown
    indexes = sorted(folder.glob("*index"))
    assert len(indexes) == 9
    checked = dump([path for path in indexes if path.suffix != ".txnindex"], "--index-sanity-check")
    assert checked.count("passed sanity check") == 6
    dump(indexes, "--verify-index-only")
    assert dump(sorted(folder.glob("*.txnindex"))).count("producerId: 5") == 15
    # Each of three snapshots has five batches of each of two producers.
    assert dump(sorted(folder.glob("*.snapshot"))).count("producerId: ") == 30


@pytest.mark.java
def test_kafka_finds_nothing_wrong_with_a_compacted_partition(tmp_path: Path) -> None:
    """A thread cleans the log on a real disk while batches are appended."""
    config = LogConfig(
        segment_bytes=20_000, index_interval_bytes=1_000, cleanup_compact=True, min_cleanable_dirty_ratio=0.0
    )
    name = TopicPartition("t", 0)
    end_offset = write_partition(tmp_path / "t-0")

    async def compact() -> int:
        machine = Machine.real()
        manager = LogManager(machine, [str(tmp_path)])
        await manager.start(lambda _: config)
        log = manager.get(name)
        assert log is not None
        now = machine.clock.now_ms()
        tombstone = build_batch([Record(0, now, b"gone", None, ())])
        log.append_as_leader(tombstone, validate_produce(tombstone, max_batch_bytes=10**6), 3)
        log.high_watermark = log.log_end_offset
        log.roll()
        cleaning = asyncio.create_task(manager.cleaner.clean_dirtiest())
        appended = 1
        # The number of batches is limited. On a busy machine the cleaner is so slow that the names of all
        # files would not fit in a command line.
        while not cleaning.done() and appended < 2_000:
            batch = build_batch([Record(0, now, b"key %d" % (appended % 50), b"v", ())])
            log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 3)
            log.high_watermark = log.log_end_offset
            appended += 1
            await asyncio.sleep(0)
        await cleaning
        assert not manager.cleaner.uncleanable
        await manager.stop()
        return appended

    appended = asyncio.run(compact())
    folder = tmp_path / "t-0"
    logs = sorted(folder.glob("*.log"))
    assert sum(path.stat().st_size for path in logs) < 20_000 + 100 * appended
    shown = dump(logs, "--deep-iteration", may_have_holes=True)
    assert "isvalid: false" not in shown
    assert f"offset: {end_offset + appended - 1} " in shown
    assert "deleteHorizonMs: OptionalLong[" in shown
    indexes = [path for path in sorted(folder.glob("*index")) if path.suffix != ".txnindex"]
    dump(indexes, "--index-sanity-check")
    dump(indexes, "--verify-index-only")


@pytest.mark.java
def test_kafka_reads_our_metadata_log_and_snapshot(tmp_path: Path) -> None:
    machine = Machine.real()
    folder = tmp_path / CLUSTER_METADATA_FOLDER
    log = SnapshotLog.open(machine, str(folder), TopicPartition(CLUSTER_METADATA_TOPIC, 0))
    log.append_as_leader(build_control_batch([LeaderChange(1)], timestamp=1), 1)
    log.append_as_leader(build_batch([Record(0, 1, None, NO_OP, ())] * 5), 1)
    log.update_high_watermark(6)
    writer = log.create_snapshot(LogPosition(6, 1), 1)
    assert writer is not None
    writer.append([NO_OP] * 3)
    asyncio.run(writer.freeze())
    log.close()
    files = [*folder.glob("*.checkpoint"), *folder.glob("*.log")]
    shown = dump(files, "--cluster-metadata-decoder", "--deep-iteration")
    assert "Snapshot end offset: 6, epoch: 1" in shown
    assert shown.count("NO_OP_RECORD") == 8
    assert "SnapshotHeader" in shown
    assert "SnapshotFooter" in shown
