"""Followers that sync their copies, in virtual time. An acknowledgement for one topic does not wait for other
topics."""

from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ACKS_ALL
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BROKERS = (11, 12)
BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))
COUNT = 20
FETCH_WAIT_S = 0.5
"""Kafka's default of replica.fetch.wait.max.ms. A follower's fetch waits for this time if there are no new
records."""


def partitions_of(cluster: Cluster, topic: str) -> list[Any]:
    """Replicas of the only partition of a topic."""
    found = (cluster.nodes[broker].get(PartitionsSubsystem).partition(topic, 0) for broker in BROKERS)
    return [partition for partition in found if partition is not None]


def leader_of(cluster: Cluster, topic: str) -> int:
    """The id of the broker that leads the partition, if the other broker already follows it. Otherwise 0."""
    replicas = partitions_of(cluster, topic)
    if len(replicas) < 2 or not any(each.leader_to_follow for each in replicas):
        return 0
    return next((id for id, each in zip(BROKERS, replicas, strict=True) if each.is_leader), 0)


def test_a_synced_copy_is_acknowledged_while_other_topics_of_the_leader_are_idle() -> None:
    properties = {"default.replication.factor": "2", "min.insync.replicas": "2"}
    with World(3) as world:
        cluster = Cluster(
            world,
            {1: "controller"} | dict.fromkeys(BROKERS, "broker"),
            dict.fromkeys((1, *BROKERS), properties),
        )

        async def story() -> None:
            cluster.start(1, *BROKERS)
            await cluster.until(lambda: len(cluster.nodes) == 3)
            admin = cluster.client("admin", BROKERS[0])
            idle = [f"idle-{number}" for number in range(6)]
            await cluster.on("admin", admin.create_topic("synced", 1, {"flush.messages": "1"}))
            for topic in idle:
                await cluster.on("admin", admin.create_topic(topic, 1, {}))
            topics = ["synced", *idle]
            await cluster.until(lambda: all(leader_of(cluster, topic) for topic in topics))
            assert leader_of(cluster, "synced") in {leader_of(cluster, topic) for topic in idle}
            leader = next(each for each in partitions_of(cluster, "synced") if each.is_leader)
            began_s = world.loop.time()
            for _ in range(COUNT):
                answer = leader.append(BATCH, required_acks=ACKS_ALL, timeout_ms=30_000)
                assert (await answer).error is ErrorCode.none
            assert world.loop.time() - began_s < COUNT * FETCH_WAIT_S / 2

        world.run(story())
