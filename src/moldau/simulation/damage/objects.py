"""Finds the objects of the store that contain records of some topics. It asks the coordinators and the remote
tier."""

from uuid import UUID

from moldau.coordinators.diskless.calls import FindBatchesCall, PartitionToFind
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.runtime import ErrorCode
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.world.object_store import SimulatedObjectStore
from moldau.tiered.storage.object_layout import parse_segment_key


async def live_objects(
    store: SimulatedObjectStore,
    coordinators: DisklessCoordinator,
    tiered: TieredSubsystem,
    topics: frozenset[str],
) -> set[str]:
    """Return the keys of WAL objects and remote segments of these topics. Call this function while the
    simulation runs code of the node."""
    live = await _wal_objects(coordinators, topics)
    segments: set[UUID] = set()
    for partition in tiered.manager.partitions:
        if partition.topic in topics:
            await tiered.metadata.wait_ready(partition)
            segments |= {segment.id.id for segment in tiered.metadata.list_remote_log_segments(partition)}
    for key in store.objects:
        parsed = parse_segment_key(key)
        if parsed is not None and parsed.id.id in segments:
            live.add(key)
    return live


async def _wal_objects(coordinators: DisklessCoordinator, topics: frozenset[str]) -> set[str]:
    found: set[str] = set()
    for coordinator_id in coordinators.coordinator_ids:
        await coordinators.until_loaded(coordinator_id)
        for partition in await coordinators.describe_topics(coordinator_id):
            if partition.topic_name not in topics:
                continue
            offset = partition.wal_start_offset
            while offset < partition.high_watermark:
                wanted = PartitionToFind(partition.topic_id, partition.partition_index, offset)
                answer = (await coordinators.find_batches(coordinator_id, FindBatchesCall([wanted])))[0]
                if answer.error is not ErrorCode.none or not answer.batches:
                    break  # readers will report that records of this object are missing
                found |= {batch.object_key for batch in answer.batches if batch.marker is None}
                offset = answer.batches[-1].last_offset + 1
    return found
