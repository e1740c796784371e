"""The critical logs of a node, and the data about these logs in the node's log folders."""

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.files.disk import Disk
from moldau.storage.critical_logs.integrity_check import ADVICE, DamagedLogError, IntegrityRules
from moldau.storage.critical_logs.recovery_report import RecoveryReport, Repair, RepairKind
from moldau.storage.folders.file_names import (
    CUT_SUFFIX,
    DELETED_SUFFIX,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    base_offset_of,
    folder_of,
    is_deleted_folder,
    is_stray_folder,
    segment_file,
    was_set_aside,
)
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.partition_log import PartitionLog

__all__ = [
    "METADATA_LOG",
    "CriticalTopic",
    "MetadataWatermark",
    "check_critical_owners",
    "check_no_folder_is_missing",
    "check_owner",
    "checked_watermark",
    "integrity_of",
    "removed_segment",
    "report_of",
]

METADATA_LOG: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


class MetadataWatermark:
    """The row for the metadata log. Every log folder has this row in its checkpoint of high watermarks.

    It is stored outside the metadata folder. Therefore it shows if a metadata log was truncated, or restored
    from an older backup. Such a log ends before the offset in this row.
    """

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._directories = directories
        self._current: Callable[[], int] = lambda: 0

    def stored(self) -> tuple[int, str]:
        """Return the highest offset in the checkpoints that were read, with the path of its checkpoint. The
        offset is 0 if no checkpoint has the row."""
        found = ((each.high_watermarks.get(METADATA_LOG, 0), each.path) for each in self._directories)
        offset, path = max(found, key=lambda item: item[0], default=(0, ""))
        return offset, f"{path}/{HIGH_WATERMARKS}"

    def follow(self, current: Callable[[], int]) -> None:
        """From now on, write the result of ``current`` into the row, because the log is open. ``current``
        returns the durable and committed offset of the log."""
        self._current = current

    def of(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """Return the row for the checkpoint of a folder. It is empty while the offset is unknown."""
        offset = max(self._current(), directory.high_watermarks.get(METADATA_LOG, 0))
        return {METADATA_LOG: offset} if offset else {}


@dataclass(frozen=True, slots=True)
class CriticalTopic:
    """The properties of a critical topic's partitions."""

    is_compacted: bool = False
    has_snapshots: bool = False


def integrity_of(
    directory: LogDirectory, topic_partition: TopicPartition, topics: Mapping[str, CriticalTopic]
) -> IntegrityRules | None:
    """Return the properties that the check of a log needs; ``None`` if the log is not critical. The log
    folder is already open."""
    topic = topics.get(topic_partition.topic)
    if topic is None:
        return None
    written = {RECOVERY_POINTS: directory.recovery_points.get(topic_partition, 0)}
    if directory.same_boot:
        # Some records below this offset may be unsynced. A loss of power removes such records.
        written[HIGH_WATERMARKS] = directory.high_watermarks.get(topic_partition, 0)
    written_by, written_offset = max(written.items(), key=lambda item: item[1])
    return IntegrityRules(
        same_boot=directory.same_boot,
        written_offset=written_offset,
        written_by=f"{directory.path}/{written_by}",
        is_dense=not topic.is_compacted,
        has_snapshots=topic.has_snapshots,
    )


def check_no_folder_is_missing(
    disk: Disk, directories: Sequence[LogDirectory], critical: Iterable[str]
) -> dict[TopicPartition, Repair]:
    """Raise :class:`DamagedLogError` when a critical log has a checkpoint but no folder.

    Returns the other logs whose folder is missing. They are reported when they are created again. A deleted
    topic is removed from the checkpoint within seconds. Its renamed folder is kept longer, so the topic does
    not look missing.
    """
    online = [directory for directory in directories if directory.is_online]
    names = {name for directory in online for name in disk.list(directory.path)}
    set_aside = [name for name in names if is_deleted_folder(name) or is_stray_folder(name)]
    missing: dict[TopicPartition, Repair] = {}
    for directory, name in itertools.product(online, (HIGH_WATERMARKS, RECOVERY_POINTS)):
        offsets = directory.high_watermarks if name == HIGH_WATERMARKS else directory.recovery_points
        for topic_partition, offset in offsets.items():
            if not offset or folder_of(topic_partition) in names or topic_partition == METADATA_LOG:
                continue
            if topic_partition in missing or any(was_set_aside(each, topic_partition) for each in set_aside):
                continue
            folder = f"{directory.path}/{folder_of(topic_partition)}"
            if topic_partition.topic in critical:
                raise DamagedLogError(
                    f"{folder} is missing: {directory.path}/{name} says that it held records up to"
                    f" offset {offset}. Nothing was changed. Restore the folder from a backup, or see"
                    " 'Damaged files' in docs/operations.md."
                )
            reason = f"the folder was missing, and {name} says {offset}; the log begins at offset 0"
            missing[topic_partition] = Repair(RepairKind.LOST, folder, reason, 0)
    return missing


def check_owner(log: PartitionLog, owner_of: Callable[[UUID], str | None]) -> None:
    """Raise ``KafkaError(inconsistent_topic_id)`` when a log has the id of another existing topic. Topics are
    never renamed. Therefore the file with the id, or the whole folder, was replaced."""
    owner = None if log.topic_id is None else owner_of(log.topic_id)
    if owner is not None and owner != log.topic_partition.topic:
        raise KafkaError(
            ErrorCode.inconsistent_topic_id,
            f"{log.directory}/{PARTITION_METADATA} holds the topic id of {owner}, {log.topic_id}: this file,"
            f" or the whole folder, was replaced. {ADVICE}",
        )


def check_critical_owners(
    logs: Iterable[PartitionLog], critical: Container[str], owner_of: Callable[[UUID], str | None]
) -> None:
    """Raise :class:`DamagedLogError` for a critical log that has the id of another existing topic."""
    for log in logs:
        if log.topic_partition.topic in critical:
            try:
                check_owner(log, owner_of)
            except KafkaError as error:
                raise DamagedLogError(error.message) from error


def report_of(disk: Disk, folder: str, report: RecoveryReport) -> RecoveryReport:
    """Return the report for repairs of a partition's log. A log without stored epochs is a cache, and repairs
    of a cache lose nothing."""
    is_cache = disk.is_dir(folder) and not disk.exists(f"{folder}/{LEADER_EPOCHS}")
    return report.of_cache() if is_cache else report


def removed_segment(disk: Disk, folder: str) -> str | None:
    """Return the evidence that a segment of a log was removed while its node was stopped or after the node
    was killed. The evidence does not cover the first segment. The result is ``None`` when there is no
    evidence.

    The evidence is an index without its log file. When a node removes a segment, it renames the log file
    first. When it begins a segment, it creates the log file first. Epochs are written only when there is a
    segment. The log's checkpoints do not show the loss of a segment in the middle, and a compacted log may
    have gaps. If no checkpoint has been written yet, the loss of the last segment is not visible in the
    checkpoints, either.
    """
    names = set(disk.list(folder)) if disk.is_dir(folder) else set()
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        return None  # A ``.swap`` file shows that the node itself was replacing segments.
    found = {suffix: [base_offset_of(name, suffix) for name in names] for suffix in SEGMENT_SUFFIXES}
    logs = {base for base in found.pop(LOG_SUFFIX) if base is not None}
    first = min(logs, default=-1)
    orphans = [base for bases in found.values() for base in bases if base is not None and base not in logs]
    removed = [base for base in orphans if base > first and not _is_being_removed(base, names)]
    if removed:
        return f"{segment_file(min(removed), LOG_SUFFIX)} is missing, and its indexes are there"
    if logs or LEADER_EPOCHS not in names or any(name.endswith(DELETED_SUFFIX) for name in names):
        return None
    return f"no segment is there, and {LEADER_EPOCHS} is"


def _is_being_removed(base_offset: int, names: Container[str]) -> bool:
    log_file = segment_file(base_offset, LOG_SUFFIX)
    return any(log_file + suffix in names for suffix in (DELETED_SUFFIX, CUT_SUFFIX))


def checked_watermark(log: PartitionLog, watermark: int, removed: str | None, report: RecoveryReport) -> int:
    """The log's high watermark. It is computed from the checkpointed high watermark.

    If the log ends before the checkpointed high watermark, or if a segment was ``removed``, the log has lost
    acknowledged records. The loss is reported.
    """
    reason = f"the log ends at offset {log.log_end_offset}: {removed}" if removed is not None else None
    if log.log_end_offset < watermark:
        reason = f"the log ends at offset {log.log_end_offset}, and {HIGH_WATERMARKS} says {watermark}"
    if reason is not None:
        report.add(Repair(RepairKind.LOST, log.directory, reason, log.log_end_offset))
    return max(log.log_start_offset, min(watermark, log.log_end_offset))
