"""A node of an older generation ends even if it saves no logs itself, in virtual time."""

import asyncio

import pytest
from simulated_cluster import Cluster

from moldau.backup.store_generations import begin_generation
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.simulation.world.object_storage import CLASS_NAME
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

NODE = 11
PROPERTIES = {
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": "1",
    "diskless.metadata.topic.replication.factor": "1",
    "diskless.storage.class.name": CLASS_NAME,
    "diskless.storage.url": "simulated:",
}
WAIT_S = 60


@pytest.mark.parametrize("saves", ["true", "false"])
def test_a_node_ends_after_a_restore(saves: str) -> None:
    """Another broker may have saved the state, or this node may have saved it before a restart."""
    with World(5) as world:
        properties = {**PROPERTIES, "backup.enable": saves}
        cluster = Cluster(world, {NODE: "broker,controller"}, {NODE: properties})

        async def story() -> None:
            cluster.start(NODE)
            await cluster.until(lambda: NODE in cluster.nodes)
            node = cluster.nodes[NODE]
            storage = node.get(DisklessSubsystem).manager.storage
            await begin_generation(storage, 1, "cluster")
            reason = await asyncio.wait_for(node.failed(), WAIT_S)
            assert "restored from its object store (generation 1), and this node is of generation 0" in reason

        world.run(story())
