"""Diskless topics on six brokers in three racks, with clients that name their racks.

In the scenario without faults, no byte of a record is sent from one rack to another. Each rack sends at most
one GET for an object. In the scenarios with faults, clients must change brokers while producers have batches
in flight. In one of them, also replicas and coordinators are moved between the brokers, topics are deleted
and created again, and the store fails.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.partitions import TopicPartition
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.simulation.clients.client import Consumer, Producer, Sending, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.cluster.mover import Mover
from moldau.simulation.cluster.stories.diskless_cluster_stories import (
    COORDINATORS,
    PARTITIONS,
    ClusterLayout,
    DisklessClusterStory,
    scenario_of,
)
from moldau.simulation.nemesis import Fault
from moldau.simulation.scenario import Scenario
from moldau.simulation.world.world import World

RACKS: Final = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}
"""The rack of each node. Rack ``a`` has the nodes 1 and 4, and so on. Nodes 1 to 3 are controllers, too."""
NAMES: Final = ("a", "b", "c")
REPLICAS: Final = 5
"""Replication factor of the topic. With this number, one rack has two replicas of a partition, and one broker
has no replica of it."""
MOVED_REPLICAS_MIN: Final = 2
"""Minimum number of replicas after a move. It is the ``min.insync.replicas`` of the coordinators' topic."""

CALM: Final = {"broker.session.timeout.ms": "20000"}
"""Configuration of the scenario without faults. Syncs of the controller's disk may take seconds, and must not
fence brokers."""

CREATE_PARTITIONS_VERSION: Final = 3
_INTRODUCTION: Final = ApiVersionsRequest(client_software_name="simulated", client_software_version="1")


class _Introduced(SimulatedClient):
    """Sends ApiVersions first on each connection to a leader, as real clients do."""

    async def leader(self, partition: TopicPartition) -> RpcConnection:
        known = self._connection
        connection = await super().leader(partition)
        if connection is not known:
            await connection.request(ApiKey.API_VERSIONS, 3, _INTRODUCTION)
        return connection


class RackProducer(_Introduced, Producer):
    """A producer that uses its name as its client id."""


class RackConsumer(_Introduced, Consumer):
    """A consumer that uses its name as its client id."""


def diskless_racks() -> Scenario:
    """No fault is injected. The scenario counts GETs, and bytes that are sent from one rack to another."""
    scenario = scenario_of(())
    story = partial(RackStory, is_calm=True)
    return replace(scenario, story=story, fault_count=0, consumer_count=3, records_per_producer=60)


def diskless_racks_storm() -> Scenario:
    """Brokers are killed, stopped, paused and disconnected. Most of the time, their rack has another broker
    that works."""
    scenario = scenario_of((Fault.KILL, Fault.KILL, Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY))
    return replace(scenario, story=RackStory, consumer_count=3, records_per_producer=150)


def diskless_racks_changes() -> Scenario:
    """Partitions and coordinators are moved between brokers of all racks. A coordinator is added. A topic is
    deleted and created again under the same name. Meanwhile brokers and the store fail. At the end, every
    object must be referenced."""
    store = (Fault.STORE_DOWN, Fault.STORE_POOR, Fault.STORE_POOR)
    scenario = scenario_of((*store, Fault.KILL, Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY))
    story = partial(ChangedRackStory, checks_leaks=True)
    return replace(scenario, story=story, fault_count=4, consumer_count=3, records_per_producer=150)


class RackStory(DisklessClusterStory):
    """The scenario of :class:`DisklessClusterStory` with racks."""

    def __init__(
        self, world: World, scenario: Scenario, *, is_calm: bool = False, checks_leaks: bool = False
    ) -> None:
        layout = ClusterLayout(RACKS, REPLICAS, CALM if is_calm else {})
        super().__init__(world, scenario, layout, checks_leaks=checks_leaks)
        self._is_calm = is_calm
        if is_calm:
            world.object_store.weather.slow_chance = 0.0

    def _producer(self, number: int) -> Producer:
        sending = Sending(idempotent=number < self._scenario.producer_count)
        where, rack = PARTITIONS[number % len(PARTITIONS)], NAMES[(number + 1) % len(NAMES)]
        producer: RackProducer = self._begin_at_any(
            RackProducer, f"producer-{number},rack={rack}", where, sending
        )
        return producer

    def _consumer(self, name: str, number: int, *, observed: bool = True) -> Consumer:
        where, rack = PARTITIONS[number % len(PARTITIONS)], NAMES[number % len(NAMES)]
        consumer: RackConsumer = self._begin_at_any(
            RackConsumer, f"{name},rack={rack}", where, observed=observed
        )
        return consumer

    async def _check(self) -> None:
        await super()._check()
        if self._is_calm:
            await asyncio.sleep(1)
            self._check_bytes()
            self._check_gets()

    def _check_bytes(self) -> None:
        for node_id, node in self.nodes.items():
            traffic = node.get(DisklessSubsystem).manager.rack_traffic
            crossed = traffic.bytes_in.value, traffic.bytes_out.value
            if any(crossed):
                self.history.violate(f"bytes crossed racks at node {node_id}: {crossed}")

    def _check_gets(self) -> None:
        gets: Counter[tuple[str, str]] = Counter()
        for (host, key), count in self._world.object_store.counts.gets_of.items():
            gets[RACKS[int(host.removeprefix("node-"))], key] += count
        for (rack, key), count in gets.items():
            if count > 1:
                self.history.violate(f"rack {rack} read {key} {count} times")
        objects = [node.get(DisklessSubsystem).manager.rack_objects for node in self.nodes.values()]
        if not gets or not any(each.meters.served.value for each in objects):
            self.history.violate("no broker has read an object for its rack: the story proves nothing")


class ChangedRackStory(RackStory):
    """The scenario of :class:`RackStory` with an administrator who adds a coordinator and moves replicas, and
    another one who deletes topics."""

    def _begin_other_work(self, goes_on: Callable[[], bool]) -> "Sequence[asyncio.Task[Any]]":
        self._passing = self._passing_topic()
        meddler: SimulatedClient = self._begin_at_any(SimulatedClient, "meddler")
        client: SimulatedClient = self._begin_at_any(SimulatedClient, "mover")
        coordinators = [TopicPartition(DISKLESS_METADATA_TOPIC, index) for index in range(COORDINATORS)]
        mover = Mover(client, (*PARTITIONS, *coordinators), tuple(RACKS), MOVED_REPLICAS_MIN)
        return [
            self._on("meddler", self._passing.play(meddler)),
            self._on("mover", self._grow_and_move(client, mover, goes_on)),
        ]

    async def _grow_and_move(
        self, client: SimulatedClient, mover: Mover, goes_on: Callable[[], bool]
    ) -> None:
        # A new coordinator gets as many replicas as coordinator 0 has. A move may change their number.
        await self._grow(client)
        await self._move(mover, goes_on)

    async def _grow(self, client: SimulatedClient) -> None:
        """Add a coordinator. Partitions that are created later may get it."""
        await asyncio.sleep(client.chance.uniform(0.0, 2.0))
        count = COORDINATORS + 1
        wanted = CreatePartitionsTopic(name=DISKLESS_METADATA_TOPIC, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=5_000)
        while self._count_coordinators() < count:
            with contextlib.suppress(OSError):
                await client.ask(ApiKey.CREATE_PARTITIONS, CREATE_PARTITIONS_VERSION, request)
            await client.pause()
        self._coordinator_count = count

    def _count_coordinators(self) -> int:
        topic = self._image.topics.get(DISKLESS_METADATA_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    async def _move(self, mover: Mover, goes_on: Callable[[], bool]) -> None:
        await mover.run(goes_on)
        await mover.settle()
        if not mover.move_count:
            self.history.violate("no replica was moved: the story proves nothing")
