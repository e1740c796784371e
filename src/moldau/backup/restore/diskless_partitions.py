"""The diskless partitions of a cut, in the metadata and in the states of their coordinators."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from moldau.backup.restore.remote_segments import RemoteSegments, end_of_deleted
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.image.partition import NO_OWNER
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import OffsetToDelete, PartitionsToCreate
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.protocol.partitions import PartitionKey
from moldau.storage.snapshots.snapshot_log import SnapshotLog
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.removal.expired_segments import is_of_lineage

__all__ = ["create_partitions", "delete_expired", "diskless_partitions", "ends_of", "without_aborted"]


def diskless_partitions(image: MetadataImage) -> tuple[dict[PartitionKey, int], set[UUID]]:
    """The coordinators of all diskless partitions. The second result is the topics whose records get the
    append time."""
    owners: dict[PartitionKey, int] = {}
    stamped: set[UUID] = set()
    for topic in image.topics:
        for index, partition in enumerate(topic.partitions):
            if partition.owner != NO_OWNER:
                owners[PartitionKey(topic.topic_id, index)] = partition.owner
        config = image.config(ResourceType.TOPIC, topic.name)
        if config.get("message.timestamp.type") == "LogAppendTime":
            stamped.add(topic.topic_id)
    return owners, stamped


async def create_partitions(image: MetadataImage, coordinators: DisklessCoordinator) -> None:
    """Create the partitions that the coordinators of the cut do not have yet."""
    wanted: dict[int, list[PartitionsToCreate]] = {}
    for topic in image.topics:
        indexes: dict[int, list[int]] = {}
        for index, partition in enumerate(topic.partitions):
            if partition.owner != NO_OWNER:
                indexes.setdefault(partition.owner, []).append(index)
        for coordinator_id, found in indexes.items():
            call = PartitionsToCreate(topic.topic_id, topic.name, found)
            wanted.setdefault(coordinator_id, []).append(call)
    for coordinator_id, calls in wanted.items():
        await coordinators.create_partitions(coordinator_id, calls)


async def delete_expired(
    image: MetadataImage,
    coordinators: DisklessCoordinator,
    coordinator_ids: Iterable[int],
    segments: RemoteSegments,
) -> None:
    """Delete the records whose remote segments were being deleted when the logs were saved."""
    for coordinator_id in coordinator_ids:
        led = coordinators.led(coordinator_id)
        assert led is not None
        expired: list[OffsetToDelete] = []
        for state in led.store.view:
            partition = image.topics.partition(*state.id)
            if partition is not None:
                name = TopicIdPartition(state.id.topic_id, state.name, state.id.partition)
                bounds = state.log_start, state.wal_start
                offset = end_of_deleted(segments.of(name), partition.generations, *bounds)
                expired += [] if offset is None else [OffsetToDelete(*state.id, offset)]
        if expired:
            await coordinators.delete_records(coordinator_id, expired)


def ends_of(
    image: MetadataImage, coordinators: DisklessCoordinator, logs: Mapping[int, SnapshotLog]
) -> dict[PartitionKey, int]:
    """The offset after the cut's last record, for each diskless partition and for each coordinator's log."""
    topic = image.topics.get(DISKLESS_METADATA_TOPIC)
    ends: dict[PartitionKey, int] = {}
    if topic is not None:
        ends = {PartitionKey(topic.topic_id, each): log.end_offset for each, log in logs.items()}
    ends |= dict.fromkeys(diskless_partitions(image)[0], 0)
    for coordinator_id in logs:
        led = coordinators.led(coordinator_id)
        assert led is not None
        for partition in led.store.view:
            ends[partition.id] = partition.next
    return ends


def without_aborted(
    starts: Mapping[PartitionKey, int],
    image: MetadataImage,
    coordinators: DisklessCoordinator,
    coordinator_ids: Iterable[int],
    segments: RemoteSegments,
) -> dict[PartitionKey, int]:
    """The start offsets of the new generation. Each offset is at or before its value in ``starts``.

    The metadata of segments are saved last. A segment may therefore have records of a transaction that was
    committed after the logs of the coordinators were saved, and that the restore has aborted. The segment's
    index lacks this abort, so the segment must not be read. The new generation of such a partition begins
    with the transaction. The segment is then not a part of the log, and its records are still in the WAL.
    """
    found = dict(starts)
    for coordinator_id in coordinator_ids:
        led = coordinators.led(coordinator_id)
        assert led is not None
        for state in led.store.view:
            partition = image.topics.partition(*state.id)
            if partition is None:
                continue
            start, known = starts[state.id], partition.generations
            name = TopicIdPartition(state.id.topic_id, state.name, state.id.partition)
            end = max(
                (
                    each.end_offset
                    for each in segments.finished(name)
                    if state.wal_start <= each.end_offset < start and is_of_lineage(each, known, 0)
                ),
                default=-1,
            )
            aborted = [
                each.first_offset
                for each in state.aborted
                if each.first_offset <= end and each.last_offset >= start
            ]
            if aborted:
                found[state.id] = max(min(aborted), state.wal_start, *known.starts[-1:])
    return found
