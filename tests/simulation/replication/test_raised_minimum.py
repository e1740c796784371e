"""A leader learns of two changes at the same time: ``min.insync.replicas`` was raised, and its follower has
left the in-sync set."""

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
from moldau.replication.classic_partition import ACKS_ALL
from moldau.runtime import ErrorCode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))
PROPERTIES = {
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "auto.leader.rebalance.enable": "false",
}
RAISED = IncrementalAlterConfigsRequest(
    resources=[
        AlterConfigsResource(
            resource_type=2,
            resource_name="t",
            configs=[AlterableConfig(name="min.insync.replicas", config_operation=0, value="2")],
        )
    ]
)


def test_the_follower_that_has_left_is_eligible_and_lacks_no_acknowledged_record() -> None:
    with World(8) as world:
        cluster = Cluster(
            world, {1: "controller", 11: "broker", 12: "broker"}, dict.fromkeys((1, 11, 12), PROPERTIES)
        )

        def row(broker: int) -> Any:
            metadata = cluster.nodes[broker].metadata
            topic = metadata and metadata.publisher.image.topics.get("t")
            return topic and topic.partitions[0]

        def replica(broker: int) -> Any:
            return cluster.nodes[broker].get(PartitionsSubsystem).partition("t", 0)

        async def stop(broker: int) -> None:
            process = world.host(f"node-{broker}").process
            assert process is not None
            context = process.context()
            await context.run(world.loop.create_task, cluster.nodes[broker].stop(), context=context)
            cluster.kill(broker)

        async def story() -> None:
            cluster.start(1, 11, 12)
            await cluster.until(lambda: len(cluster.nodes) == 3)
            await cluster.on("admin", cluster.client("admin", 11).create_topic("t", 1, {}))
            await cluster.until(lambda: all(row(each) and len(row(each).isr) == 2 for each in (11, 12)))
            leader = row(11).leader
            follower = 23 - leader
            await cluster.until(lambda: replica(leader) is not None and replica(leader).is_leader)
            # The leader gets no metadata for a while, so it gets both changes together.
            links = [("node-1", f"node-{leader}"), (f"node-{leader}", "node-1")]
            for link in links:
                world.network.cut(*link)
            client = cluster.client("operator", follower)
            changed = await cluster.on("operator", client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, RAISED))
            assert changed.responses[0].error_code is ErrorCode.none
            await stop(follower)
            await cluster.until(lambda: row(1).isr == (leader,))
            assert row(1).eligible_leader_replicas == (follower,)
            answer = replica(leader).append(BATCH, required_acks=ACKS_ALL, timeout_ms=600_000)
            assert isinstance(answer, asyncio.Future)
            for link in links:
                world.network.heal(*link)
            await cluster.until(lambda: row(leader).isr == (leader,))
            await asyncio.sleep(1)
            assert replica(leader).high_watermark == 0
            assert not answer.done()
            cluster.start(follower)
            assert (await answer).error is ErrorCode.none
            assert replica(follower).log.log_end_offset == 1

        world.run(story())
