"""Two brokers with the same id, in virtual time. Only one of the brokers continues. The other broker reports
the reason and stops."""

from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

FIRST, SECOND = 11, 12
ID = {"node.id": "11"}
SOON = {"initial.broker.registration.timeout.ms": "5000"}


def end_of(cluster: Cluster, host: int) -> Any:
    process = cluster.world.host(f"node-{host}").process
    assert process is not None
    return process.main


def test_the_broker_that_starts_second_is_refused() -> None:
    with World(1) as world:
        cluster = Cluster(
            world, {1: "controller", FIRST: "broker", SECOND: "broker"}, {SECOND: {**ID, **SOON}}
        )

        async def story() -> None:
            cluster.start(1, FIRST)
            await cluster.until(lambda: len(cluster.nodes) == 2)
            cluster.start(SECOND)
            await cluster.until(lambda: end_of(cluster, SECOND).done())
            assert "node.id is used by two nodes" in str(end_of(cluster, SECOND).exception())
            assert not end_of(cluster, FIRST).done()

        world.run(story())


def test_a_broker_that_lost_its_registration_to_another_one_stops() -> None:
    with World(2) as world:
        properties = {FIRST: SOON, SECOND: ID}
        cluster = Cluster(world, {1: "controller", FIRST: "broker", SECOND: "broker"}, properties)

        async def story() -> None:
            cluster.start(1, FIRST)
            await cluster.until(lambda: len(cluster.nodes) == 2)
            for source, target in ((f"node-{FIRST}", "node-1"), ("node-1", f"node-{FIRST}")):
                world.network.cut(source, target)
            cluster.start(SECOND)
            # The second broker is accepted when the session of the first broker has ended.
            await cluster.until(lambda: SECOND in cluster.nodes)
            world.network.heal_all()
            await cluster.until(lambda: end_of(cluster, FIRST).done())
            assert "node.id is used by two nodes" in str(end_of(cluster, FIRST).exception())
            assert not end_of(cluster, SECOND).done()

        world.run(story())
