"""A broker that was away copies a large partition, in virtual time. Producers of other partitions do not wait
for this copy."""

import asyncio
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.fetching.catching_up import CHECK_S
from moldau.runtime.errors import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

LEADER, AWAY = 11, 12
RATE = 100_000
BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v" * 10_000, ())]))
BEHIND = 200
TOPICS = ("large", "small")
PROPERTIES = {
    "replica.fetch.max.bytes": "20000",
    "replica.catch.up.max.bytes.per.second": str(RATE),
    "default.replication.factor": "2",
}


def replica(cluster: Cluster, broker: int, topic: str) -> Any:
    return cluster.nodes[broker].get(PartitionsSubsystem).partition(topic, 0)


def end_of(cluster: Cluster, broker: int, topic: str) -> int:
    found = replica(cluster, broker, topic) if broker in cluster.nodes else None
    return -1 if found is None else int(found.log.log_end_offset)


def in_sync(cluster: Cluster, topic: str) -> int:
    return len(replica(cluster, LEADER, topic)._replica.leader.in_sync)


def append(cluster: Cluster, topic: str, acks: int) -> Any:
    return replica(cluster, LEADER, topic).append(BATCH, required_acks=acks, timeout_ms=60_000)


async def begin(cluster: Cluster) -> None:
    """Create two topics. The follower then misses many records of the topic "large"."""
    cluster.start(1, LEADER, AWAY)
    await cluster.until(lambda: len(cluster.nodes) == 3)
    admin = cluster.client("admin", LEADER)
    for topic in TOPICS:
        await cluster.on("admin", admin.create_topic(topic, 1, {}))
    replicas = [(broker, topic) for broker in (LEADER, AWAY) for topic in TOPICS]
    await cluster.until(lambda: all(end_of(cluster, *each) == 0 for each in replicas))
    cluster.kill(AWAY)
    await cluster.until(lambda: all(replica(cluster, LEADER, topic).is_leader for topic in TOPICS))
    for _ in range(BEHIND):
        append(cluster, "large", 1)
    cluster.start(AWAY)
    await cluster.until(lambda: end_of(cluster, AWAY, "large") > 0)


def cluster_of(world: World) -> Cluster:
    roles = {1: "controller", LEADER: "broker", AWAY: "broker"}
    return Cluster(world, roles, dict.fromkeys(roles, PROPERTIES))


def test_producers_of_other_partitions_do_not_wait_for_a_copy() -> None:
    with World(5) as world:
        cluster = cluster_of(world)

        async def story() -> None:
            await begin(cluster)
            begun_s = world.loop.time()
            await cluster.until(lambda: in_sync(cluster, "small") == 2)
            waits_s = []
            for _ in range(10):
                sent_s = world.loop.time()
                assert (await append(cluster, "small", -1)).error is ErrorCode.none
                waits_s.append(world.loop.time() - sent_s)
            assert end_of(cluster, AWAY, "large") < BEHIND / 2, "the copy goes on in the meantime"
            assert max(waits_s) < 0.02
            await cluster.until(lambda: end_of(cluster, AWAY, "large") == BEHIND)
            copied_s = world.loop.time() - begun_s
            assert BEHIND * len(BATCH) / copied_s == pytest.approx(RATE, rel=0.15)
            await cluster.until(lambda: in_sync(cluster, "large") == 2)

        world.run(story())


def test_a_copy_ends_although_producers_write_faster_than_its_pace() -> None:
    with World(6) as world:
        cluster = cluster_of(world)

        async def produce() -> None:
            while True:
                append(cluster, "large", 1)
                await asyncio.sleep(len(BATCH) / RATE / 2)

        async def story() -> None:
            await begin(cluster)
            producing = asyncio.create_task(produce())
            begun_s = world.loop.time()
            await cluster.until(lambda: in_sync(cluster, "large") == 2)
            assert CHECK_S < world.loop.time() - begun_s < 3 * CHECK_S
            producing.cancel()

        world.run(story())
