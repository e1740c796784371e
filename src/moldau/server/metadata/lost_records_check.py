"""Looks for evidence, outside the metadata log, that this log has lost records at its end.

The end offset of the metadata log is also stored in two other places: in the file ``durable-offset`` in the
folder of the log, and in the checkpoints of the log folders. When one of these two values is missing, the
partitions' folders are checked. A partition's topic and leader epoch were committed to the metadata before
its folder contained them. Therefore the metadata log must contain them, too. The check is valid only for a
single voter. Any other node may still receive missing metadata from the leader after its start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.errors import MetadataError
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import SNAPSHOT_TOPICS
from moldau.cluster.publisher import MetadataPublisher
from moldau.cluster.quorum_log import data_batches
from moldau.config.broker import BrokerConfig
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.records.metadata import RECORDS, RemoveTopicRecord
from moldau.runtime.errors import KafkaError
from moldau.runtime.files.disk import Disk
from moldau.storage.critical_logs.integrity_check import DURABLE_OFFSET, DamagedLogError, DurableOffset
from moldau.storage.folders.file_names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    base_offset_of,
    segment_file,
)
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager
from moldau.storage.segments.batch_scan import scan_checked
from moldau.storage.snapshots.snapshot import FileSnapshotReader, snapshot_file, snapshot_of

_ADVICE = (
    "The metadata log was cut, or is older than the partitions. Nothing was changed. Restore all log folders"
    " from one backup, or see 'Damaged files' in docs/operations.md."
)


def check_partitions_are_known(disk: Disk, folder: str, logs: LogManager) -> None:
    """Raise :class:`DamagedLogError` when a partition's folder is newer than the metadata log in ``folder``.

    Does nothing if both stored values of the log's end exist. The function blocks its thread, and changes
    nothing.
    """
    missing = _missing_evidence(disk, folder, logs)
    if missing is None:
        return
    try:
        found = _replay(disk, folder)
    except (KafkaError, MetadataError, ProtocolError):
        return  # A later step of the start finds the same damage, and names its place.
    if found.end_offset < logs.metadata_watermark.stored()[0]:
        return  # Another check, which compares the end of the log, refuses this log.
    # The folders are checked in a fixed order, so that each start names the same folder in the error.
    for log in sorted(logs, key=lambda log: log.directory):
        reason = _contradiction(log, found)
        if reason is not None:
            raise DamagedLogError(
                f"{folder} ends at offset {found.end_offset} and does not know {reason};"
                f" {missing}, which tells how long the log was, is gone. {_ADVICE}"
            )


def is_single_voter(config: BrokerConfig) -> bool:
    """Whether this node is the only voter of the quorum, and the voter is static."""
    return [voter.node_id for voter in config.quorum_voters] == [config.node_id]


def check_broker_epochs_are_known(folder: str, end_offset: int, logs: LogManager) -> None:
    """Raise :class:`DamagedLogError` when a single voter's broker stopped cleanly but its metadata log no
    longer has the broker's registration. The broker epoch is the offset of the registration's record."""
    for directory in logs.directories:
        if directory.clean_epoch >= end_offset:
            found = f"broker epoch {directory.clean_epoch} in {directory.path}/{CLEAN_SHUTDOWN}"
            raise _older(folder, end_offset, found)


def check_epochs_are_known(folder: str, image: MetadataImage, logs: LogManager) -> None:
    """Raise :class:`DamagedLogError` when a log has a newer leader epoch than the metadata of a single voter.

    ``image`` contains all records of the log in ``folder``, but no election of this start yet. This check
    needs no additional replay of the log, unlike :func:`check_partitions_are_known`, so it runs at every
    start. It can also detect an old copy of the metadata log if both stored values of the log's end were
    restored with it.
    """
    for log in sorted(logs, key=lambda log: log.directory):
        topic = None if log.topic_id is None else image.topics.get_by_id(log.topic_id)
        reason = None if topic is None else _newer_epoch(log, topic)
        if reason is not None:
            raise _older(folder, image.provenance.offset + 1, reason)


def _older(folder: str, end_offset: int, reason: str) -> DamagedLogError:
    return DamagedLogError(
        f"{folder} ends at offset {end_offset} and does not know {reason}. The metadata log is older than the"
        " partitions. No partition was changed. Restore all log folders from one backup, or see 'Damaged"
        " files' in docs/operations.md."
    )


def _missing_evidence(disk: Disk, folder: str, logs: LogManager) -> str | None:
    try:
        if DurableOffset(disk, folder).read() is None:
            return f"{folder}/{DURABLE_OFFSET}"
    except ValueError:
        return f"{folder}/{DURABLE_OFFSET}"
    stored, _ = logs.metadata_watermark.stored()
    return None if stored else f"the line of the metadata log in {HIGH_WATERMARKS}"


def _contradiction(log: PartitionLog, found: "_Replayed") -> str | None:
    if log.topic_id is None or log.topic_id in found.removed:
        return None
    topic = found.image.topics.get_by_id(log.topic_id)
    if topic is None:
        return f"topic id {log.topic_id} of {log.directory}"
    return _newer_epoch(log, topic)


def _newer_epoch(log: PartitionLog, topic: Topic) -> str | None:
    partition = log.topic_partition.partition
    # In the logs of some kinds of topics, and in coordinators' logs with snapshots, the epochs are not the
    # leader epochs of the metadata. These logs are not checked.
    has_cluster_epochs = kind_of(topic).has_cluster_epochs and topic.name not in SNAPSHOT_TOPICS
    if not has_cluster_epochs or partition >= len(topic.partitions):
        return None
    epoch = log.leader_epochs.latest_epoch
    if epoch is not None and epoch > topic.partitions[partition].leader_epoch:
        return f"leader epoch {epoch} in {log.directory}/{LEADER_EPOCHS}"
    return None


@dataclass(frozen=True, slots=True)
class _Replayed:
    """The result of a replay: the image that the records of a log make, the topics that these records delete,
    and the log's end offset."""

    image: MetadataImage
    removed: set[UUID]
    end_offset: int


def _replay(disk: Disk, folder: str) -> _Replayed:
    faults: list[MetadataError] = []
    publisher = MetadataPublisher(faults.append)
    names = disk.list(folder)
    snapshots = sorted(found for name in names if (found := snapshot_of(name)) is not None)
    end_offset = epoch = 0
    if snapshots:
        file = disk.open(f"{folder}/{snapshot_file(snapshots[-1])}", read_only=True)
        try:
            reader = FileSnapshotReader(file, snapshots[-1])
            values = [value for batch in data_batches(reader.batches()) for value in batch.values]
            end_offset, epoch = reader.snapshot_id
            for _ in publisher.on_snapshot(end_offset, epoch, -1, values):
                pass
        finally:
            file.close()
    removed: set[UUID] = set()
    log_end_offset = end_offset
    for next_offset, view in _batches(disk, folder, names):
        log_end_offset = max(log_end_offset, next_offset)
        for batch in data_batches([view]):
            records = map(RECORDS.decode, batch.values)
            removed.update(record.topic_id for record in records if isinstance(record, RemoveTopicRecord))
            if batch.base_offset >= end_offset:
                for _ in publisher.on_commit([batch]) or ():
                    pass
    for fault in faults:
        raise fault
    return _Replayed(publisher.image, removed, log_end_offset)


def _batches(disk: Disk, folder: str, names: Sequence[str]) -> Iterator[tuple[int, memoryview]]:
    """The valid batches of the segments. Each batch comes with the offset after it."""
    for base_offset in sorted(
        base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None
    ):
        file = disk.open(f"{folder}/{segment_file(base_offset, LOG_SUFFIX)}", read_only=True)
        try:
            for _, header, batch in scan_checked(file, 0, file.size()):
                yield header.next_offset, memoryview(bytes(batch))
        finally:
            file.close()
