"""Diskless topics on three nodes whose records leave the WAL within seconds.

The leader of each partition builds its segments. Leaders fail and move. Every broker must be able to return
the records, even if it has not read the metadata of the newest segments yet. In some scenarios, a second
topic is deleted and created again while its segments are built. At the end, segments must contain all records
that left the WAL, and the store must have no other object of a segment.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from moldau.coordinators.diskless.calls import DescribedPartition
from moldau.diskless.partition.partition import DisklessPartition
from moldau.protocol.partitions import TopicPartition
from moldau.server.node import ServerNode
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.checks.consolidation_checks import SegmentsChecker
from moldau.simulation.checks.diskless_checks import described_partitions
from moldau.simulation.clients.client import SimulatedClient
from moldau.simulation.cluster.stories.diskless_cluster_stories import (
    ClusterLayout,
    DisklessClusterStory,
    scenario_of,
)
from moldau.simulation.nemesis import Fault
from moldau.simulation.scenario import Scenario
from moldau.simulation.world.loop import SimulationError
from moldau.simulation.world.object_storage import TIER_CLASS_NAME
from moldau.simulation.world.world import World

_PROPERTIES: Final = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.metadata.topic.num.partitions": "3",
    "remote.log.metadata.topic.replication.factor": "3",
    # Small amounts are consolidated often, so that every run has many segments.
    "diskless.consolidation.interval.ms": "300",
    "diskless.consolidation.segment.bytes": "1500",
    "diskless.consolidation.max.age.ms": "2000",
    # Leaders also move back, when a broker has returned.
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "7",
}
_FAULTS: Final = (*(Fault.KILL,) * 3, *(Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY) * 2)
_STORE: Final = (Fault.STORE_DOWN, Fault.STORE_POOR, Fault.STORE_POOR)
REMOVER_QUIET_S: Final = 100.0
"""Time in which interrupted copies and deletions of segments are completed."""


def consolidation_cluster() -> Scenario:
    """Nodes are killed, paused and cleanly restarted, caches are lost, links break, and the store fails."""
    return _scenario((*_FAULTS, *_STORE, Fault.CACHE_LOST, Fault.DATABASES_LOST))


def consolidation_cluster_power() -> Scenario:
    """Nodes lose power, and are killed, paused and cleanly restarted. Links break, and the store fails."""
    scenario = _scenario((*(Fault.POWER_LOSS,) * 4, *_FAULTS, *_STORE))
    return replace(scenario, story=partial(ConsolidationClusterStory, loses_all_power=True))


def consolidation_cluster_topics() -> Scenario:
    """A topic is deleted and created again under the same name, while nodes and the store fail."""
    scenario = _scenario((*_FAULTS, *_STORE))
    return replace(scenario, story=partial(ConsolidationClusterStory, deletes_topics=True))


def _scenario(faults: tuple[Fault, ...]) -> Scenario:
    return replace(scenario_of(faults), story=ConsolidationClusterStory)


class ConsolidationClusterStory(DisklessClusterStory):
    """A seeded run of diskless partitions with a remote tier."""

    def __init__(
        self, world: World, scenario: Scenario, *, loses_all_power: bool = False, deletes_topics: bool = False
    ) -> None:
        layout = ClusterLayout(properties=_PROPERTIES)
        super().__init__(world, scenario, layout, checks_leaks=True, loses_all_power=loses_all_power)
        self._deletes_topics = deletes_topics

    def _begin_other_work(self, goes_on: Callable[[], bool]) -> "Sequence[asyncio.Task[Any]]":
        if not self._deletes_topics:
            return ()
        self._passing = self._passing_topic()
        meddler: SimulatedClient = self._begin_at_any(SimulatedClient, "meddler")
        return [self._on("meddler", self._passing.play(meddler))]

    async def _check(self) -> None:
        await super()._check()
        await asyncio.sleep(REMOVER_QUIET_S)
        await self._converge()
        checker = SegmentsChecker(self._world, self.history)
        described: list[DescribedPartition] = []
        for node in self.nodes.values():
            coordinators = node.get(DisklessSubsystem).coordinators
            for coordinator_id in coordinators.coordinator_ids:
                described += await described_partitions(coordinators, coordinator_id)
        for each in described:
            leader = self._leader_of(TopicPartition(each.topic_name, each.partition_index))
            checker.check_partition(each, leader.get(TieredSubsystem).metadata)
        for node in self.nodes.values():
            checker.check_deletions(node.get(TieredSubsystem).metadata)
        checker.check_objects()

    def _leader_of(self, wanted: TopicPartition) -> ServerNode:
        """The node that leads a partition. All nodes must be running."""
        for node in self.nodes.values():
            partition = node.get(PartitionsSubsystem).partition(wanted.topic, wanted.partition)
            if isinstance(partition, DisklessPartition) and partition.is_leader:
                return node
        raise SimulationError(f"{wanted} has no leader")
