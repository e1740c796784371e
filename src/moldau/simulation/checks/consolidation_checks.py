"""Checks the result of consolidation. All records that left the WAL must be in segments, and every object
must be referenced."""

import asyncio
from typing import cast

from moldau.coordinators.diskless.calls import DescribedPartition
from moldau.server.node import ServerNode
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.checks.diskless_checks import (
    SETTLE_LIMIT_S,
    DisklessAfterlife,
    described_partitions,
)
from moldau.simulation.history import History
from moldau.simulation.world.host import Host
from moldau.simulation.world.world import World
from moldau.tiered.consolidation.consolidated_retention import readable_chain
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.object_layout import parse_segment_key

REMOVER_QUIET_S = 100.0


class ConsolidationAfterlife(DisklessAfterlife):
    """The checks at the end of a diskless scenario, including its remote tier."""

    async def quiet(self, world: World, node: Host, history: History) -> None:
        """Wait like the base class, and then for :data:`REMOVER_QUIET_S` more. In this time, the data of
        interrupted copies and deletions are removed."""
        await super().quiet(world, node, history)
        await asyncio.sleep(REMOVER_QUIET_S)

    async def check(self, world: World, node: Host, history: History) -> None:
        await super().check(world, node, history)
        assert node.process is not None
        checking = _LeakCheck(cast(ServerNode, node.process.exhibit), world, history).run()
        context = node.process.context()
        task = context.run(world.loop.create_task, checking, name="check of segments", context=context)
        async with asyncio.timeout(SETTLE_LIMIT_S):
            await task


class _LeakCheck:
    def __init__(self, exhibit: ServerNode, world: World, history: History) -> None:
        self._coordinators = exhibit.get(DisklessSubsystem).coordinators
        self._tiered = exhibit.get(TieredSubsystem)
        self._checker = SegmentsChecker(world, history)

    async def run(self) -> None:
        for coordinator_id in self._coordinators.coordinator_ids:
            for described in await described_partitions(self._coordinators, coordinator_id):
                await self._tiered.metadata.wait_ready(identity_of(described))
                self._checker.check_partition(described, self._tiered.metadata)
        self._checker.check_deletions(self._tiered.metadata)
        self._checker.check_objects()


def identity_of(described: DescribedPartition) -> TopicIdPartition:
    """The identity of a partition, as the remote metadata use it."""
    return TopicIdPartition(described.topic_id, described.topic_name, described.partition_index)


class SegmentsChecker:
    """Compares the segments of diskless partitions with the objects in the store."""

    def __init__(self, world: World, history: History) -> None:
        self._objects = world.object_store.objects
        self._history = history
        self._expected: set[tuple[str, bool]] = set()
        self._moved_count = 0

    def check_partition(self, described: DescribedPartition, metadata: RemoteLogMetadataManager) -> None:
        """Check that finished segments contain all records that left the WAL. ``metadata`` is the remote log
        metadata manager of a broker that has loaded the partition."""
        partition = identity_of(described)
        segments = metadata.list_remote_log_segments(partition)
        for segment in segments:
            if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                self._history.violate(f"{segment.id} is still {segment.state.name}")
            self._expected |= {(str(segment.id), True), (str(segment.id), False)}
        start, end = described.log_start_offset, described.wal_start_offset
        chain = readable_chain(segments, start, end)
        reached = chain[-1].end_offset + 1 if chain else start
        if reached < end:
            self._history.violate(f"{partition} has nothing at {reached}, and its WAL begins at {end}")
        self._moved_count += end > start

    def check_deletions(self, metadata: RemoteLogMetadataManager) -> None:
        """Check that no removal of a deleted partition is unfinished."""
        for deletion in metadata.remote_partition_deletions():
            self._history.violate(f"the deletion of {deletion.partition} is still {deletion.state.name}")

    def check_objects(self) -> None:
        """After all partitions were checked, check that every segment has its objects, and that no other
        object of a segment exists."""
        if not self._moved_count:
            self._history.violate("nothing has left the WAL")
        found: set[tuple[str, bool]] = set()
        for key in sorted(self._objects):
            parsed = parse_segment_key(key)
            if parsed is None:
                continue
            name = (str(parsed.id), parsed.is_log)
            found.add(name)
            if name not in self._expected:
                self._history.violate(f"object {key} has leaked")
        for name in sorted(self._expected - found):
            self._history.violate(f"an object of segment {name[0]} is missing")
