"""Opens the folder of a partition. It recovers the segments, and then the state that is stored outside the
segments."""

import logging
import uuid
from typing import NamedTuple

from moldau.runtime import Disk, ErrorCode, KafkaError, Machine
from moldau.storage.critical_logs.integrity_check import CriticalLog, DurableOffset, IntegrityRules
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.folders.file_names import LEADER_EPOCHS, LOG_START_OFFSETS, PARTITION_METADATA
from moldau.storage.folders.partition_metadata import (
    is_misread,
    read_partition_metadata,
    write_partition_metadata,
)
from moldau.storage.log.log_producers import LogProducers
from moldau.storage.log.segment_loading import load_segments
from moldau.storage.log.segmented_log import SegmentedLog
from moldau.storage.log.state.offsets import LogOffsets
from moldau.storage.log.state.open_epochs import LogEpochs
from moldau.storage.snapshots.snapshot import snapshot_of

logger = logging.getLogger(__name__)


class Checkpoints(NamedTuple):
    """The properties of a log, as the checkpoints of its log folder contain them."""

    recovery_point: int = 0
    """All records below this offset are assumed to be durable. Batches at or after it are checked. In a log
    that is not critical, the first invalid batch and everything after it are removed."""
    clean_shutdown: bool = False
    """Whether the log was closed cleanly. If so, no batch is checked."""
    log_start_offset: int = 0
    was_killed: bool = False
    """Whether all written bytes still exist, because only the process was killed."""


class LoadedState(NamedTuple):
    """The state of an opened log that is not in its segments."""

    offsets: LogOffsets
    epochs: LogEpochs
    producers: LogProducers
    durable: DurableOffset | None
    """The stored durable offset of a critical log."""


def load_log(
    machine: Machine,
    segments: SegmentedLog,
    checkpoints: Checkpoints,
    integrity: IntegrityRules | None,
    report: RecoveryReport,
) -> LoadedState:
    """Load the folder, or create it, and fill the empty ``segments``. This call blocks.

    With ``integrity``, only an incomplete batch at the end is removed, and other damage raises
    :class:`DamagedLogError`. All repairs are added to ``report``. Raises ``OSError`` when the disk fails.
    """
    disk, folder = machine.disk, segments.folder
    recovery_point, clean_shutdown, _, was_killed = checkpoints
    _make_folder(disk, folder)
    epochs = LogEpochs(disk, segments, report)
    log_start_offset = _checked_start(folder, checkpoints.log_start_offset, epochs, report)
    durable = critical = None
    if integrity is not None:
        durable = DurableOffset(disk, folder)
        segments.close_beside, segments.keeps_checksum = durable.close, True
        critical = _critical(disk, folder, integrity, durable, epochs, log_start_offset, report)
        recovery_point = max(recovery_point, critical.durable_offset)
    loaded = load_segments(
        disk,
        folder,
        segments.config,
        recovery_point=recovery_point,
        clean_shutdown=clean_shutdown,
        was_killed=was_killed,
        critical=critical,
        report=report,
    )
    if loaded.segments:
        segments.adopt(loaded.segments, loaded.end_offset)
    if loaded.segments and segments.end_offset < log_start_offset:
        logger.warning(
            "%s ends at offset %d, before its checkpointed start %d: its records are dropped",
            folder,
            segments.end_offset,
            log_start_offset,
        )
    if not loaded.segments or segments.end_offset < log_start_offset:
        segments.drop_files(segments.segments)
        segments.restart_at(log_start_offset)
    segments.holes = loaded.holes
    log_start_offset = epochs.opened(log_start_offset)
    flushed_offset = min(recovery_point, segments.end_offset)
    if clean_shutdown and loaded.rebuilt_from is None:
        flushed_offset = segments.end_offset
    offsets = LogOffsets(log_start_offset, high_watermark=log_start_offset, flushed_offset=flushed_offset)
    producers = LogProducers(disk, folder, segments.config)
    producers.load(
        segments,
        offsets,
        now_ms=machine.clock.now_ms(),
        rebuilt_from=loaded.rebuilt_from,
        on_epoch=epochs.learn,
    )
    epochs.save_loaded()
    return LoadedState(offsets, epochs, producers, durable)


def claim_folder(
    disk: Disk, folder: str, topic_id: uuid.UUID | None, report: RecoveryReport
) -> uuid.UUID | None:
    """Store the topic id of a folder's data. Returns the topic id that the folder has afterwards. This call
    blocks.

    Raises ``KafkaError(inconsistent_topic_id)`` when the folder belongs to another topic id.
    """
    stored = read_partition_metadata(disk, folder)
    if stored is not None and topic_id is not None and is_misread(stored, topic_id):
        reason = f"is rebuilt: its topic id {topic_id} was damaged, it was {stored}"
        report.add(Repair(RepairKind.REBUILT, f"{folder}/{PARTITION_METADATA}", reason))
        stored = None
    if stored is None and topic_id is not None:
        write_partition_metadata(disk, folder, topic_id)
    elif topic_id is not None and stored != topic_id:
        raise KafkaError(
            ErrorCode.inconsistent_topic_id,
            f"{folder} holds topic id {stored}, not {topic_id}",
        )
    return stored or topic_id


def _make_folder(disk: Disk, folder: str) -> None:
    if not disk.is_dir(folder):
        disk.make_dirs(folder)
        disk.sync_dir(folder.rpartition("/")[0])


def _checked_start(folder: str, log_start_offset: int, epochs: LogEpochs, report: RecoveryReport) -> int:
    """Return the start of the log according to the checkpoint. If the first leader epoch starts at a lower
    offset, return that offset.

    When the start moves, the epochs are truncated first, and durably.
    """
    earliest = epochs.entries.earliest
    if earliest is None or earliest.start_offset >= log_start_offset:
        return log_start_offset
    reason = f"is not believed: it begins the log at {log_start_offset}, {LEADER_EPOCHS} at {earliest[1]}"
    report.add(Repair(RepairKind.REBUILT, f"{LOG_START_OFFSETS} of {folder}", reason))
    return earliest.start_offset


def _critical(
    disk: Disk,
    folder: str,
    integrity: IntegrityRules,
    durable: DurableOffset,
    epochs: LogEpochs,
    log_start_offset: int,
    report: RecoveryReport,
) -> CriticalLog:
    durable_offset: int | None = 0
    try:
        durable_offset = durable.read()
    except ValueError:
        report.add(Repair(RepairKind.REBUILT, durable.path, "is rebuilt: it cannot be read"))
        disk.remove(durable.path)
    earliest = epochs.entries.earliest
    latest_start: int | None = log_start_offset
    if integrity.has_snapshots:
        found = map(snapshot_of, disk.list(folder))
        latest_start = max((each.offset for each in found if each is not None), default=0)
    elif earliest is not None:
        latest_start = max(log_start_offset, earliest.start_offset)
    elif not log_start_offset:
        latest_start = None
    return CriticalLog(
        integrity,
        durable_offset or 0,
        latest_start,
        epochs.entries,
        durable_offset is not None,
        durable.checksum if durable_offset else None,
    )
