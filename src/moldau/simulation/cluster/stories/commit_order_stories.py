"""Diskless topics on three nodes. A request and its response together take 2 ms on the network, and objects
are small. Every broker has several commits in progress at each coordinator, while the brokers of the
coordinators are killed and isolated.

A producer without sequences sends all its records to one broker. Its records stay in order, because the
coordinators decide the commits of a broker in the order of their numbers.
"""

import asyncio
import random
from dataclasses import replace
from typing import Final

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.simulation.clients.client import Producer, Sending
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.cluster.stories.diskless_cluster_stories import (
    BROKER_PORT,
    COORDINATORS,
    NODE_IDS,
    PARTITIONS,
    ClusterLayout,
    DisklessClusterStory,
    scenario_of,
)
from moldau.simulation.nemesis import Fault, Nemesis
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.network import NetworkOptions
from moldau.simulation.world.world import World

PAUSE_S: Final = 0.004
"""Mean pause of a producer between two batches. A commit takes longer than this pause."""
_PROPERTIES: Final = {
    # With these limits, nearly every batch is in an object of its own.
    "diskless.append.commit.interval.ms": "5",
    "diskless.append.buffer.max.bytes": "400",
    "diskless.append.early.close.puts.per.second": "1000",
    "diskless.metadata.max.new.records.between.snapshots": "300",
}


class PinnedProducer(Producer):
    """A producer that sends to only one broker, at a high rate."""

    broker = ("", 0)

    async def leader(self, partition: TopicPartition) -> RpcConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await RpcConnection.open(self.name, *self.broker)
        return self._connection

    async def run(self, record_count: int, *, pause_s: float) -> None:
        await super().run(record_count, pause_s=PAUSE_S)


def diskless_order() -> Scenario:
    """The brokers of coordinators are killed and isolated, and connections are reset."""
    scenario = scenario_of((Fault.KILL, Fault.RESET, Fault.RESET, Fault.CUT))
    return replace(
        scenario,
        story=CommitOrderStory,
        network=NetworkOptions(latency_s_min=0.001, latency_s_max=0.001),
        weather=replace(scenario.weather, between_s_max=1.0, pause_s_max=2.0),
        fault_count=6,
        producer_count=1,
        plain_producer_count=3,
        consumer_count=1,
        records_per_producer=800,
    )


class CommitOrderStory(DisklessClusterStory):
    """The scenario of :class:`DisklessClusterStory` with many commits in progress."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world, scenario, ClusterLayout(properties=_PROPERTIES))

    def _producer(self, number: int) -> Producer:
        if number < self._scenario.producer_count:
            return super()._producer(number)
        where = PARTITIONS[number % len(PARTITIONS)]
        producer: PinnedProducer = self._begin_at_any(
            PinnedProducer, f"producer-{number}", where, Sending(idempotent=False)
        )
        producer.broker = (f"node-{NODE_IDS[(number + 1) % len(NODE_IDS)]}", BROKER_PORT)
        return producer

    async def _storm(self, nemesis: Nemesis) -> None:
        chance = stream(self._world.seed, "order")
        for _ in range(self._scenario.fault_count):
            await asyncio.sleep(chance.uniform(0.3, 1.0))
            if chance.random() < 0.5:
                await self._kill_coordinator(nemesis, chance)
            else:
                await nemesis.storm(1)

    async def _kill_coordinator(self, nemesis: Nemesis, chance: random.Random) -> None:
        wanted = TopicPartition(DISKLESS_METADATA_TOPIC, chance.randrange(COORDINATORS))
        leader_id = next((id for id, each in self._replicas(wanted) if each.is_leader), None)
        if leader_id is not None:
            self.history.note(f"the broker of {wanted} is killed")
            await nemesis.restart(self._world.host(f"node-{leader_id}"), chance.uniform(0.1, 2.0))
