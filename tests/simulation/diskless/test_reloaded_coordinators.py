"""Topics are created while a diskless coordinator is loaded again in the same leader epoch, in
virtual time."""

import asyncio

import pytest
from simulated_cluster import Cluster

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ACKS_ALL
from moldau.runtime import ErrorCode
from moldau.server.node import ServerNode
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.object_storage import CLASS_NAME
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

NODE = 11
BATCH = memoryview(build_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())]))
PROPERTIES = {
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": "1",
    "diskless.metadata.topic.replication.factor": "1",
    "diskless.storage.class.name": CLASS_NAME,
    "backup.enable": "false",
    "diskless.storage.url": "simulated:",
}


class Reloads:
    """Unloads the coordinator for each new topic and loads it again, as the runtime does after a failed
    append."""

    def __init__(self, node: ServerNode) -> None:
        self._runtime = node.get(DisklessSubsystem).coordinators.runtime
        self.count = 0

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        host = self._runtime.led(0)
        if host is not None and any(topic.name.startswith("new") for topic in delta.topics.changed.values()):
            self._runtime.reload(0, host.term.epoch)
            self.count += 1


def test_a_topic_that_is_created_during_a_reload_takes_records() -> None:
    with World(5) as world:
        cluster = Cluster(world, {NODE: "broker,controller"}, {NODE: PROPERTIES})

        async def story() -> None:
            cluster.start(NODE)
            await cluster.until(lambda: NODE in cluster.nodes)
            node = cluster.nodes[NODE]
            assert node.metadata is not None
            reloads = Reloads(node)
            node.metadata.publisher.subscribe(reloads)
            admin, diskless = cluster.client("admin", NODE), {"diskless.enable": "true"}
            for number in range(3):
                await cluster.on("admin", admin.create_topic(f"new-{number}", 1, diskless))
            assert reloads.count == 3
            await asyncio.sleep(60)
            for number in range(3):
                partition = node.get(PartitionsSubsystem).partition(f"new-{number}", 0)
                assert partition is not None
                answer = partition.append(BATCH, required_acks=ACKS_ALL, timeout_ms=10_000)
                assert isinstance(answer, asyncio.Future)
                assert (await answer).error is ErrorCode.none

        world.run(story())
