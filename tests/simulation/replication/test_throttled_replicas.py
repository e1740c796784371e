"""Brokers with throttles on replication, in virtual time. A replica that was offline copies records at the
configured rate."""

import asyncio
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

LEADER, AWAY = 11, 12
RATE = 50_000
BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v" * 10_000, ())]))
COUNT = 200
DYNAMIC = {
    "replica.fetch.max.bytes": "20000",
    "default.replication.factor": "2",
    "replica.fetch.wait.max.ms": "100",
}


def partition_of(cluster: Cluster, broker: int) -> Any:
    return cluster.nodes[broker].get(PartitionsSubsystem).partition("events", 0)


def end_of(cluster: Cluster, broker: int) -> int:
    found = partition_of(cluster, broker) if broker in cluster.nodes else None
    return -1 if found is None else int(found.log.log_end_offset)


def meter(cluster: Cluster, broker: int, name: str) -> float:
    """The value of a meter in the broker's metrics."""
    context = cluster.nodes[broker].get(PartitionsSubsystem)._context
    lines = context.meters.registry.render().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"kafka_server_{name} ")))


def set_rate(rate: int, side: str) -> IncrementalAlterConfigsRequest:
    row = AlterableConfig(name=f"{side}.replication.throttled.rate", config_operation=0, value=str(rate))
    return IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=4, resource_name="", configs=[row])]
    )


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_replica_that_was_offline_copies_at_the_current_rate(side: str) -> None:
    throttled_broker = LEADER if side == "leader" else AWAY
    with World(5) as world:
        cluster = Cluster(
            world,
            {1: "controller", LEADER: "broker", AWAY: "broker"},
            {LEADER: DYNAMIC, AWAY: DYNAMIC, 1: DYNAMIC},
        )

        async def story() -> None:
            cluster.start(1, LEADER, AWAY)
            await cluster.until(lambda: len(cluster.nodes) == 3)
            admin = cluster.client("admin", LEADER)
            await cluster.on("admin", admin.create_topic("events", 1, {}))
            await cluster.until(lambda: min(end_of(cluster, LEADER), end_of(cluster, AWAY)) == 0)
            throttle = {f"{side}.replication.throttled.replicas": f"0:{throttled_broker}"}
            await cluster.on("admin", admin.alter_topic("events", throttle))
            await cluster.on("admin", admin.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, set_rate(RATE, side)))
            cluster.kill(AWAY)
            await cluster.until(lambda: partition_of(cluster, LEADER).is_leader)
            appended_s = world.loop.time()
            for _ in range(COUNT):
                partition_of(cluster, LEADER).append(BATCH, required_acks=1, timeout_ms=1000)
            cluster.start(AWAY)
            await cluster.until(lambda: end_of(cluster, AWAY) > 0)
            await asyncio.sleep(12)
            # The configured rate limits an average. Therefore a replica that was offline may first copy all
            # bytes that the rate allowed while the replica was offline.
            elapsed_s = world.loop.time() - appended_s
            copied_bytes = end_of(cluster, AWAY) * len(BATCH)
            assert 0.5 * RATE < copied_bytes / elapsed_s < 1.2 * RATE
            scope = "LeaderReplication" if side == "leader" else "FollowerReplication"
            assert 0.5 * RATE < meter(cluster, throttled_broker, f"{scope}_byte_rate") < 1.2 * RATE
            assert meter(cluster, AWAY, "BrokerTopicMetrics_ReplicationBytesInPerSec_total") == copied_bytes
            sent_bytes = meter(cluster, LEADER, "BrokerTopicMetrics_ReplicationBytesOutPerSec_total")
            assert 0 <= sent_bytes - copied_bytes <= 2 * len(BATCH)
            assert meter(cluster, LEADER, "ReplicaManager_UnderReplicatedPartitions") == 1
            assert meter(cluster, LEADER, "ReplicaManager_AtMinIsrPartitionCount") == 1
            assert meter(cluster, LEADER, "ReplicaManager_IsrExpandsPerSec_total") == 0
            await cluster.on(
                "admin", admin.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, set_rate(10 * RATE, side))
            )
            await asyncio.sleep(5)
            assert end_of(cluster, AWAY) == COUNT
            assert meter(cluster, LEADER, "ReplicaManager_UnderReplicatedPartitions") == 0
            assert meter(cluster, LEADER, "ReplicaManager_IsrExpandsPerSec_total") == 1

        world.run(story())
