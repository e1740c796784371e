"""A follower begins to copy a new partition immediately, although its current fetch is waiting for records of
idle partitions."""

import asyncio

import pytest
from simulated_cluster import Cluster

from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.partition_interface import AppendOutcome, Partition
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))
POLL_S = 5.0
PROPERTIES = {
    "default.replication.factor": "2",
    "min.insync.replicas": "2",
    "replica.fetch.wait.max.ms": str(int(POLL_S * 1000)),
    "replica.lag.time.max.ms": "60000",
}


def replicas_of(cluster: Cluster, number: int) -> list[Partition]:
    """The open replicas of a new topic."""
    found = [
        cluster.nodes[broker].get(PartitionsSubsystem).partition(f"new-{number}", index)
        for broker in (11, 12)
        for index in range(2)
    ]
    return [each for each in found if each is not None]


def test_a_new_partition_does_not_wait_for_the_end_of_a_long_poll() -> None:
    with World(6) as world:
        cluster = Cluster(
            world,
            {1: "controller", 11: "broker", 12: "broker"},
            dict.fromkeys((1, 11, 12), PROPERTIES),
        )

        async def story() -> None:
            cluster.start(1, 11, 12)
            await cluster.until(lambda: len(cluster.nodes) == 3)
            admin = cluster.client("admin", 11)
            await cluster.on("admin", admin.create_topic("idle", 2, {}))
            await asyncio.sleep(2 * POLL_S + 1)
            for number in range(3):
                await cluster.on("admin", admin.create_topic(f"new-{number}", 2, {}))
                began_s = world.loop.time()
                await cluster.until(lambda: len(replicas_of(cluster, number)) == 4)  # noqa: B023
                for partition in replicas_of(cluster, number):
                    if not partition.is_leader:
                        continue
                    answer = partition.append(BATCH, required_acks=-1, timeout_ms=60_000)
                    outcome = answer if isinstance(answer, AppendOutcome) else await answer
                    assert outcome.error is ErrorCode.none
                assert world.loop.time() - began_s < POLL_S / 5
                await asyncio.sleep(POLL_S / 4)

        world.run(story())
