"""Recovery of a critical log. If its last batch is incomplete, this batch is removed. Any other damage stops
the start before a byte is changed."""

from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.records import Record, build_batch
from moldau.records.batch import iter_headers, parse_header
from moldau.records.control import SnapshotFooter, SnapshotHeader, build_control_batch
from moldau.records.record import iter_records
from moldau.storage.critical_logs.integrity_check import (
    DURABLE_OFFSET,
    DamagedLogError,
    DurableOffset,
    IntegrityRules,
)
from moldau.storage.critical_logs.recovery_report import RecoveryReport, RepairKind
from moldau.storage.folders.file_names import LEADER_EPOCHS
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot import snapshot_file
from moldau.storage.snapshots.snapshot_log import SnapshotLog

FOLDER = "/data/__cluster_metadata-0"
NAME = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
FIRST, SECOND, THIRD = (f"{FOLDER}/{offset:020d}.log" for offset in (0, 4, 8))
KILLED = IntegrityRules(has_snapshots=True)
POWER_LOST = replace(KILLED, same_boot=False)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=64)


def open_log(box: Any, integrity: IntegrityRules, report: RecoveryReport | None = None) -> SnapshotLog:
    return SnapshotLog.open(box.machine, FOLDER, NAME, CONFIG, integrity=integrity, report=report)


def append(log: SnapshotLog, number: int, epoch: int = 1) -> None:
    records = [Record(n, 1_000, None, b"%d" % number * 30) for n in range(2)]
    log.append_as_leader(build_batch(records, leader_epoch=epoch), epoch)


def filled(box: Any, *, synced: int = 6, unsynced: int = 0) -> None:
    """A log of batches of two records each, after a kill of the process."""

    async def scenario() -> None:
        log = open_log(box, KILLED)
        log.initialize_epoch(1)
        for number in range(synced):
            append(log, number)
        await log.flush()
        for number in range(unsynced):
            append(log, synced + number)

    box.run(scenario())


def put_snapshot(box: Any, snapshot_id: LogPosition) -> None:
    """A snapshot as Kafka writes it."""
    header, epoch = SnapshotHeader(last_contained_log_timestamp=1_000), snapshot_id.epoch
    batches = [
        build_control_batch([content], timestamp=1_000, base_offset=offset, leader_epoch=epoch)
        for offset, content in enumerate((header, SnapshotFooter()))
    ]
    box.disk.write_atomically(f"{FOLDER}/{snapshot_file(snapshot_id)}", b"".join(batches))


def content(box: Any, path: str) -> bytes:
    found: bytes = box.disk.read(path)
    return found


def damage(box: Any, path: str, position: int, size: int = 8) -> None:
    changed = bytearray(content(box, path))
    for at in range(position, min(position + size, len(changed))):
        changed[at] ^= 0xFF
    box.disk.write_atomically(path, bytes(changed))


def everything(box: Any) -> dict[str, bytes]:
    return {name: content(box, f"{FOLDER}/{name}") for name in box.disk.list(FOLDER)}


def refused(box: Any, integrity: IntegrityRules, *said: str) -> None:
    before = everything(box)
    with pytest.raises(DamagedLogError) as raised:
        open_log(box, integrity)
    for words in said:
        assert words in str(raised.value)
    assert everything(box) == before


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
def test_a_whole_log_opens(box: Any, integrity: IntegrityRules) -> None:
    filled(box)
    assert box.disk.exists(THIRD)
    report = RecoveryReport()
    assert open_log(box, integrity, report).end_offset == 12
    assert not report.has_cut


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
@pytest.mark.parametrize("path", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("position", [0, 5, 9, 13, 16, 17, 30, 70, 130, 200])
def test_flipped_bytes_stop_the_start(box: Any, integrity: IntegrityRules, path: str, position: int) -> None:
    filled(box)
    damage(box, path, position)
    refused(box, integrity, path, "damaged at byte")


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
@pytest.mark.parametrize("path", [FIRST, SECOND, THIRD])
def test_a_missing_segment_stops_the_start(box: Any, integrity: IntegrityRules, path: str) -> None:
    filled(box)
    box.disk.remove(path)
    refused(box, integrity, FOLDER, "damaged")


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
def test_a_log_without_segments_stops_the_start(box: Any, integrity: IntegrityRules) -> None:
    filled(box)
    for path in (FIRST, SECOND, THIRD):
        box.disk.remove(path)
    refused(box, integrity, "holds no segment", "offset 12", DURABLE_OFFSET)


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_shorter_log_stops_the_start(box: Any, integrity: IntegrityRules, kept: int) -> None:
    filled(box)
    box.disk.write_atomically(THIRD, content(box, THIRD)[:kept])
    refused(box, integrity, THIRD, "offset 12")


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
@pytest.mark.parametrize("replaced", [b"", bytes(64), b"\xff" * 64])
def test_a_torn_end_is_cut(box: Any, integrity: IntegrityRules, replaced: bytes) -> None:
    filled(box, synced=5, unsynced=1)
    whole = content(box, THIRD)
    start = len(whole) // 2
    box.disk.write_atomically(THIRD, whole[: start + 40] + replaced)
    report = RecoveryReport()
    assert open_log(box, integrity, report).end_offset == 10
    assert (report.count(RepairKind.TORN_TAIL), report.count(RepairKind.LOST)) == (1, 0)
    assert THIRD in str(report.repairs[0])


def test_a_bad_batch_before_a_valid_one_stops_the_start_of_a_killed_process(box: Any) -> None:
    filled(box, synced=4, unsynced=2)
    damage(box, THIRD, 70)
    refused(box, KILLED, THIRD, "a valid one follows at byte")


def test_a_loss_of_power_may_damage_any_unsynced_batch(box: Any) -> None:
    filled(box, synced=4, unsynced=2)
    damage(box, THIRD, 70)
    report = RecoveryReport()
    assert open_log(box, POWER_LOST, report).end_offset == 8
    assert report.has_cut


def test_without_its_durable_offset_the_bytes_of_a_log_are_checked(box: Any) -> None:
    filled(box)
    box.disk.write_atomically(f"{FOLDER}/{DURABLE_OFFSET}", b"garbage")
    report = RecoveryReport()
    log = open_log(box, KILLED, report)
    assert (log.end_offset, report.count(RepairKind.REBUILT)) == (12, 1)
    log.close()
    assert content(box, f"{FOLDER}/{DURABLE_OFFSET}").startswith(b"1 00000000000000000012 ")


def test_a_truncation_takes_the_durable_offset_back(box: Any) -> None:
    async def scenario() -> None:
        log = open_log(box, KILLED)
        log.initialize_epoch(1)
        for number in range(4):
            append(log, number)
        await log.flush()
        await log.truncate_to(4)

    box.run(scenario())
    assert open_log(box, KILLED).end_offset == 4


def test_a_log_that_begins_after_a_snapshot_needs_the_snapshot(box: Any) -> None:
    async def scenario() -> None:
        log = open_log(box, KILLED)
        log.initialize_epoch(1)
        for number in range(6):
            append(log, number)
        log.update_high_watermark(await log.flush())
        writer = log.create_snapshot(LogPosition(10, 1), 0)
        assert writer is not None
        await writer.freeze()
        assert await log.delete_before_snapshot(LogPosition(10, 1))
        log.close()

    box.run(scenario())
    assert open_log(box, KILLED).start_offset == 10
    snapshot = next(name for name in box.disk.list(FOLDER) if name.endswith(".checkpoint"))
    box.disk.remove(f"{FOLDER}/{snapshot}")
    refused(box, KILLED, "its first segment begins at offset 8")


@pytest.mark.parametrize("lost", [(FIRST,), (SECOND,), (FIRST, SECOND)])
def test_a_loss_of_power_during_a_deletion_before_a_snapshot_loses_no_record_after_it(
    box: Any, lost: tuple[str, ...]
) -> None:
    """A loss of power may undo each of the deletions separately. So an older segment may exist although a
    newer segment was deleted."""
    filled(box)
    put_snapshot(box, LogPosition(8, 1))
    for path in lost:
        box.disk.remove(path)

    report = RecoveryReport()
    log = open_log(box, POWER_LOST, report)
    assert (log.start_offset, log.end_offset) == (8, 12)
    assert not box.disk.exists(FIRST)
    assert report.count(RepairKind.LOST) == 0


def test_a_gap_after_the_latest_snapshot_stops_the_start(box: Any) -> None:
    filled(box)
    put_snapshot(box, LogPosition(4, 1))
    box.disk.remove(SECOND)
    refused(box, POWER_LOST, "offsets 4 to 7 are missing")


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
def test_a_log_without_segments_and_durable_offset_stops_the_start(
    box: Any, integrity: IntegrityRules
) -> None:
    filled(box)
    for path in (FIRST, SECOND, THIRD, f"{FOLDER}/{DURABLE_OFFSET}"):
        box.disk.remove(path)
    refused(box, integrity, "holds no segment", LEADER_EPOCHS)


def test_a_log_that_ends_before_its_last_epoch_stops_the_start(box: Any) -> None:
    filled(box, synced=5)

    async def next_epoch() -> None:
        log = open_log(box, KILLED)
        log.initialize_epoch(2)
        append(log, 6, epoch=2)
        await log.flush()

    box.run(next_epoch())
    box.disk.remove(f"{FOLDER}/{DURABLE_OFFSET}")
    box.disk.write_atomically(THIRD, b"")
    refused(box, replace(KILLED, is_only_replica=True), FOLDER, "epoch 2 began at offset 10", LEADER_EPOCHS)
    # A follower may have been killed in the middle of a truncation.
    assert open_log(box, KILLED).end_offset == 8


def test_a_checkpoint_in_another_folder_shows_that_the_log_was_longer(box: Any) -> None:
    filled(box)
    box.disk.remove(f"{FOLDER}/{DURABLE_OFFSET}")
    box.disk.write_atomically(THIRD, b"")
    refused(box, replace(POWER_LOST, written_offset=12, written_by="/data/checkpoint"), "/data/checkpoint")


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_partial_batch_at_the_end_of_a_closed_segment_is_removed(box: Any, is_clean: bool) -> None:
    filled(box)
    box.disk.remove(f"{FOLDER}/{DURABLE_OFFSET}")
    whole = content(box, FIRST)
    box.disk.write_atomically(FIRST, whole + b"garbage")
    log = SnapshotLog.open(
        box.machine, FOLDER, NAME, CONFIG, recovery_point=12, clean_shutdown=is_clean, integrity=POWER_LOST
    )
    assert log.end_offset == 12
    log.close()
    assert content(box, FIRST) == whole
    assert open_log(box, KILLED).end_offset == 12


def test_a_kill_while_a_snapshot_replaces_the_log_leaves_no_segment(box: Any) -> None:
    filled(box)
    for path in (FIRST, SECOND, THIRD):
        box.disk.remove(path)
    put_snapshot(box, LogPosition(11, 1))
    noted = replace(KILLED, written_offset=12, written_by="/data/checkpoint")
    refused(box, noted, "holds no segment", "it reached offset 12")
    put_snapshot(box, LogPosition(20, 2))
    log = open_log(box, noted)
    assert (log.start_offset, log.end_offset) == (20, 20)


def reason_of(box: Any, integrity: IntegrityRules) -> str:
    """The reason why a log does not open. The function checks that all segments and snapshots are
    unchanged."""
    before = {name: found for name, found in everything(box).items() if not name.endswith(".snapshot")}
    with pytest.raises(DamagedLogError) as raised:
        open_log(box, integrity)
    after = everything(box)
    assert {name: after[name] for name in before} == before
    return str(raised.value)


def test_a_snapshot_ahead_of_the_only_replica_s_log_stops_the_start(box: Any) -> None:
    filled(box)
    put_snapshot(box, LogPosition(20, 1))
    alone = replace(KILLED, is_only_replica=True)
    reason = reason_of(box, alone)
    assert f"{FOLDER}/{snapshot_file(LogPosition(20, 1))}" in reason
    assert "the log ends at offset 12" in reason


@pytest.mark.parametrize("snapshot_id", [LogPosition(8, 2), LogPosition(12, 3)])
def test_a_snapshot_of_another_epoch_than_the_log_s_record_stops_the_start(
    box: Any, snapshot_id: LogPosition
) -> None:
    filled(box)
    put_snapshot(box, snapshot_id)
    reason = reason_of(box, KILLED)
    assert f"{FOLDER}/{snapshot_file(snapshot_id)}" in reason
    assert f"of epoch {snapshot_id.epoch}" in reason


@pytest.mark.parametrize("integrity", [KILLED, POWER_LOST])
@pytest.mark.parametrize("is_dense", [True, False])
def test_the_log_of_another_partition_stops_the_start(
    box: Any, integrity: IntegrityRules, is_dense: bool
) -> None:
    """Both logs have the same offsets, epochs and lengths, and all batches in them are valid."""
    filled(box)
    whole = {path: content(box, path) for path in (FIRST, SECOND, THIRD)}
    other = box_of_other_records(box)
    for path, found in whole.items():
        assert len(found) == len(other[path])
        box.disk.write_atomically(path, other[path])
    reason = reason_of(box, replace(integrity, is_dense=is_dense))
    assert THIRD in reason
    assert DURABLE_OFFSET in reason
    for path, found in whole.items():
        box.disk.write_atomically(path, found)
    assert open_log(box, integrity).end_offset == 12


def box_of_other_records(box: Any) -> dict[str, bytes]:
    """Segments of another partition. They differ from the right segments only in their timestamps."""

    def at_another_time(path: str) -> bytes:
        batches = b""
        for batch in batches_of(content(box, path)):
            header = parse_header(batch)
            records = [record._replace(timestamp=2_000) for record in iter_records(batch)]
            batches += build_batch(records, base_offset=header.base_offset, leader_epoch=1)
        return batches

    return {path: at_another_time(path) for path in (FIRST, SECOND, THIRD)}


def batches_of(found: bytes) -> list[bytes]:
    view = memoryview(found)
    return [bytes(view[at : at + header.size_bytes]) for at, header in iter_headers(view)]


def test_a_durable_offset_without_a_checksum_is_read(box: Any) -> None:
    """An earlier version wrote the file ``durable-offset`` without the checksum of the last batch."""
    filled(box)
    text = b"0 %020d" % 12
    box.disk.write_atomically(f"{FOLDER}/{DURABLE_OFFSET}", b"%b %08x\n" % (text, crc32c(text)))
    report = RecoveryReport()
    assert open_log(box, KILLED, report).end_offset == 12
    assert report.count(RepairKind.REBUILT) == 0


def checksum_of_batch_at(log: SnapshotLog, offset: int) -> int:
    return parse_header(b"".join(log.read(offset, 1).views)).crc


def test_each_sync_stores_the_checksum_of_the_last_batch(box: Any) -> None:
    """Appends remember the checksum. After a truncation, it is read from the file."""

    def stored() -> tuple[int | None, int | None]:
        durable = DurableOffset(box.disk, FOLDER)
        return durable.read(), durable.checksum

    async def scenario() -> None:
        log = open_log(box, KILLED)
        log.initialize_epoch(1)
        for number in range(3):
            append(log, number)
            await log.flush()
            assert stored() == (2 * number + 2, checksum_of_batch_at(log, 2 * number))
        await log.truncate_to(4)
        append(log, 9)
        await log.flush()
        assert stored() == (6, checksum_of_batch_at(log, 4))

    box.run(scenario())


def test_a_log_that_begins_anew_forgets_the_checksum_of_its_last_batch(box: Any) -> None:
    async def scenario() -> None:
        log = PartitionLog.open(box.machine, FOLDER, NAME, CONFIG, integrity=IntegrityRules())
        content = build_batch([Record(0, 1_000, None, b"a", ())])
        log.append_as_leader(content, [parse_header(content)], 1)
        await log.flush()
        await log.truncate_fully_and_start_at(7)
        await log.flush()
        durable = DurableOffset(box.disk, FOLDER)
        assert (durable.read(), durable.checksum) == (7, None)

    box.run(scenario())
