"""Checks the objects of tiered topics. Every segment must have its objects, and every object must belong to a
segment."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import cast

from moldau.runtime import KafkaError
from moldau.server.node import ServerNode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.history import History
from moldau.simulation.world.disks.lost_files import lose_databases
from moldau.simulation.world.host import Host
from moldau.simulation.world.world import World
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.object_layout import parse_segment_key
from moldau.tiered.storage.storage_manager import RemoteStorageError

QUIET_S = 150.0
"""Time after which the objects of failed copies have been found and deleted. Such an object must be 60 s old.
After a start that truncated a log, nothing is deleted for 40 s."""
SETTLE_LIMIT_S = 120.0


class TieredAfterlife:
    """The checks at the end of a tiered scenario. The attribute ``exhibit`` of the node's process must be the
    node.
    """

    async def quiet(self, world: World, node: Host, history: History) -> None:
        """Wait for the grace periods and some rounds of background work."""
        history.note("quiet")
        await asyncio.sleep(QUIET_S)

    async def check(self, world: World, node: Host, history: History) -> None:
        assert node.process is not None
        checking = _check(cast(ServerNode, node.process.exhibit).get(TieredSubsystem), world, history)
        context = node.process.context()
        task = context.run(world.loop.create_task, checking, name="check of segments", context=context)
        async with asyncio.timeout(SETTLE_LIMIT_S):
            await task

    async def spoil(self, world: World, node: Host, history: History) -> None:
        history.note("caches of the remote tier are lost")
        node.kill()
        node.clock.skew_ms = 0  # a node that has started with a wrong clock continues to use that clock
        lose_databases(node)


async def _check(tiered: TieredSubsystem, world: World, history: History) -> None:
    expected: set[tuple[str, bool]] = set()
    for partition in tiered.manager.partitions:
        await tiered.metadata.wait_ready(partition)
        for segment in tiered.metadata.list_remote_log_segments(partition):
            if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                history.violate(f"{segment.id} is still {segment.state.name}")
            expected |= {(str(segment.id), True), (str(segment.id), False)}
    for deletion in tiered.metadata.remote_partition_deletions():
        history.violate(f"the deletion of {deletion.partition} is still {deletion.state.name}")
    found: set[tuple[str, bool]] = set()
    for key in sorted(world.object_store.objects):
        parsed = parse_segment_key(key)
        if parsed is None:
            continue
        name = (str(parsed.id), parsed.is_log)
        found.add(name)
        if name not in expected:
            history.violate(f"object {key} has leaked")
    for name in sorted(expected - found):
        history.violate(f"an object of segment {name[0]} is missing")


def segment_problems(nodes: Iterable[ServerNode], world: World) -> Iterator[str]:
    """Check that every finished segment of an existing topic has its objects, and that there are no other
    objects. ``nodes`` are all brokers of a cluster."""
    expected: set[tuple[str, bool]] = set()
    for node in nodes:
        for partition, tiered in _led(node):
            try:
                segments = tiered.metadata.list_remote_log_segments(partition)
            except (RemoteStorageError, KafkaError) as error:
                yield f"the segments of {partition} are not known to its leader: {error}"
                continue
            for segment in segments:
                if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                    yield f"{segment.id} is still {segment.state.name}"
                expected |= {(str(segment.id), True), (str(segment.id), False)}
    parsed = {key: parse_segment_key(key) for key in sorted(world.object_store.objects)}
    found = {(str(each.id), each.is_log): key for key, each in parsed.items() if each is not None}
    yield from (f"object {key} has leaked" for name, key in found.items() if name not in expected)
    yield from (f"an object of {name} is missing" for name, _ in sorted(expected - found.keys()))


def _led(node: ServerNode) -> Iterator[tuple[TopicIdPartition, TieredSubsystem]]:
    tiered, partitions = node.get(TieredSubsystem), node.get(PartitionsSubsystem)
    for partition in tiered.manager.partitions:
        hosted = partitions.partition(partition.topic, partition.partition)
        if hosted is not None and hosted.is_leader:
            yield partition, tiered
