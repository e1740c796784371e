"""The scan for orphans on a broker that may be wrong about the cluster: its metadata are old, its clock is
wrong, or it is fenced. In each story, this broker led all coordinators of the cluster at first."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from test_gateways_in_racks import BATCH, PARTITIONS, RACKS, RackCluster

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.diskless.manager import ClusterContext
from moldau.diskless.object_keys import parse_object_key
from moldau.diskless.upkeep.unowned_files import UnownedFileScan
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.runtime import ErrorCode
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SCAN_S = 5.0
ORPHAN_AGE_S = 180.0
"""The age at which an object can be an orphan: the maximum age of a commit and the clocks' skew."""
HOUR_MS = 3_600_000
FREQUENT_SCANS = {
    "diskless.coordinator.orphan.scan.interval.ms": "5000",
    "diskless.coordinator.orphan.scan.grace.period.ms": "40000",
}


class ScanningCluster(RackCluster):
    """A cluster whose brokers often scan for orphans."""

    scanner: int
    """The broker that leads the coordinators at first."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        for broker in RACKS:
            self.properties[broker].update(FREQUENT_SCANS)

    async def ready(self) -> None:
        await super().ready()
        leaders = {partition.leader for partition in self.partitions(11, DISKLESS_METADATA_TOPIC)}
        (self.scanner,) = leaders

    @property
    def others(self) -> list[int]:
        return [broker for broker in RACKS if broker != self.scanner]

    def partitions(self, broker: int, topic: str) -> Any:
        metadata = self.nodes[broker].metadata
        assert metadata is not None
        found = metadata.publisher.image.topics.get(topic)
        assert found is not None
        return found.partitions

    def diskless(self, broker: int) -> DisklessSubsystem:
        return self.nodes[broker].get(DisklessSubsystem)

    def is_scanner_fenced(self) -> bool:
        """Whether the scanning broker is fenced, according to its own metadata."""
        metadata = self.nodes[self.scanner].metadata
        assert metadata is not None
        fenced: bool = metadata.publisher.image.brokers[self.scanner].fenced
        return fenced

    async def restart_scanner(self, **properties: str) -> None:
        self.kill(self.scanner)
        self.properties[self.scanner].update(properties)
        self.start(self.scanner)
        await self.until(lambda: self.scanner in self.nodes)
        coordinators = self.diskless(self.scanner).coordinators
        await self.until(lambda: all(coordinators.is_active(number) for number in (0, 1)))

    def cut(self, *others: int) -> None:
        """Disconnect the scanning broker from other nodes, in both directions."""
        for other in others:
            self.world.network.cut(f"node-{self.scanner}", f"node-{other}")
            self.world.network.cut(f"node-{other}", f"node-{self.scanner}")

    async def grow(self, topic: str, count: int) -> None:
        """Increase the number of a topic's partitions."""
        wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000)
        broker = self.others[0]
        (row,) = (await self.ask(broker, "operator", ApiKey.CREATE_PARTITIONS, 3, request)).results
        assert row.error_code is ErrorCode.none
        await self.until(lambda: len(self.partitions(broker, topic)) == count)

    def objects(self) -> set[str]:
        """The keys of all objects with records."""
        return {key for key in self.world.object_store.objects if parse_object_key(key) is not None}


async def coordinator_that_is_not_known_yet(cluster: ScanningCluster) -> list[str]:
    """Coordinators are added while the scanning broker cannot connect to the controller. One of them commits
    an object. The scanning broker must not delete the object when it becomes old."""
    await cluster.ready()
    cluster.cut(1)
    seen_by = cluster.others[0]
    await cluster.until(lambda: cluster.partitions(seen_by, DISKLESS_METADATA_TOPIC)[0].leader < 0)
    await cluster.grow(DISKLESS_METADATA_TOPIC, 4)
    await cluster.grow("t", PARTITIONS + 2)
    assert {each.owner for each in cluster.partitions(seen_by, "t")[PARTITIONS:]} == {2, 3}
    row = await cluster.produce(seen_by, PARTITIONS)
    assert (row.error_code, row.base_offset) == (ErrorCode.none, 0)
    committed = cluster.objects()
    assert committed
    await asyncio.sleep(ORPHAN_AGE_S + 4 * SCAN_S)
    assert len(cluster.partitions(cluster.scanner, DISKLESS_METADATA_TOPIC)) == 2
    assert cluster.diskless(cluster.scanner).coordinators.is_active(0)
    gone = committed - cluster.objects()
    if gone:
        return [f"{sorted(gone)} are gone"]
    await cluster.fetch_first(cluster.others[1], PARTITIONS, len(BATCH))
    return []


async def clock_that_is_ahead(cluster: ScanningCluster) -> list[str]:
    """The clock of the scanning broker is an hour ahead, so it takes all objects for old. Another broker has
    uploaded an object, but cannot connect to the coordinators for a while. When it can connect again, the
    object must be there, and must not be closed."""
    await cluster.ready()
    cluster.world.host(f"node-{cluster.scanner}").clock.skew_ms = HOUR_MS
    await cluster.restart_scanner()
    metadata = cluster.nodes[cluster.scanner].metadata
    assert metadata is not None
    await cluster.until(lambda: metadata.clock.is_large)
    cluster.cut(*cluster.others)
    writer = cluster.others[0]
    producing = asyncio.ensure_future(cluster.produce(writer, 0))
    await cluster.until(lambda: bool(cluster.objects()))
    uploaded = cluster.objects()
    await asyncio.sleep(3 * SCAN_S)
    cluster.world.network.heal_all()
    await producing
    await asyncio.sleep(2 * SCAN_S)
    gone = uploaded - cluster.objects()
    if gone:
        return [f"{sorted(gone)} are gone"]
    await cluster.fetch_first(writer, 0, len(BATCH))
    return []


async def fenced_broker(cluster: ScanningCluster) -> list[str]:
    """The scanning broker rarely sends heartbeats, so it is fenced for most of the time, and knows it.

    A broker that knows this leads no coordinator, so its scan could delete nothing. It must not even begin.
    """
    begun: list[UnownedFileScan] = []
    run = UnownedFileScan.run

    async def noted(self: UnownedFileScan) -> int:
        begun.append(self)
        return await run(self)

    await cluster.ready()
    assert (await cluster.produce(cluster.others[0], 0)).error_code is ErrorCode.none
    committed = cluster.objects()
    times = {"broker.heartbeat.interval.ms": "30000", "broker.session.timeout.ms": "60000"}
    await cluster.restart_scanner(**times)
    await cluster.until(cluster.is_scanner_fenced)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnownedFileScan, "run", noted)
        await asyncio.sleep(4 * SCAN_S)
    assert cluster.is_scanner_fenced()
    assert all(cluster.diskless(broker).manager.unowned_files in begun for broker in cluster.others)
    gone = committed - cluster.objects()
    if gone:
        return [f"{sorted(gone)} are gone"]
    if cluster.diskless(cluster.scanner).manager.unowned_files in begun:
        return ["a fenced broker has begun a scan"]
    return []


Story = Callable[[ScanningCluster], Coroutine[Any, Any, list[str]]]


def play(story: Story) -> list[str]:
    """Play a story. Returns the errors."""
    with World(5) as world:
        return world.run(story(ScanningCluster(world)))


@pytest.mark.parametrize("story", [coordinator_that_is_not_known_yet, clock_that_is_ahead, fenced_broker])
def test_a_broker_that_may_be_wrong_about_the_cluster_deletes_no_object(story: Story) -> None:
    assert play(story) == []


# -- inserted defects -------------------------------------------------------------------------------------


async def at_once() -> None:
    """Return immediately, although the metadata may be old."""


DEFECTS = {
    "until_current": (at_once, coordinator_that_is_not_known_yet, "are gone"),
    "has_wrong_clock": (lambda: False, clock_that_is_ahead, "are gone"),
    "is_fenced": (lambda: False, fenced_broker, "a fenced broker has begun a scan"),
}
"""For each condition, a constant in its place, a story that detects the defect, and a part of the error."""


@pytest.mark.parametrize("condition", DEFECTS)
def test_a_broker_that_does_not_check_a_condition_is_caught(
    condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant, story, error = DEFECTS[condition]
    context = DisklessSubsystem._cluster_context

    def unchecked(self: DisklessSubsystem, *given: Any) -> ClusterContext:
        changed: dict[str, Any] = {condition: constant}
        return replace(context(self, *given), **changed)

    monkeypatch.setattr(DisklessSubsystem, "_cluster_context", unchecked)
    assert any(error in each for each in play(story))
