"""A broker that comes back with an old copy of its folder, and a broker whose disk is full. No acknowledged
record is lost, and a line of the log names the reason."""

import copy
import logging
from typing import Any

import pytest
from simulated_cluster import Cluster
from two_directories import COUNT, House

from moldau.simulation.world.world import World

pytestmark = pytest.mark.simulation

RESTORED, OTHER = 11, 12


async def end(cluster: Cluster, broker: int) -> None:
    """Stop a broker cleanly."""
    process = cluster.world.host(f"node-{broker}").process
    assert process is not None
    context = process.context()
    await context.run(cluster.world.loop.create_task, cluster.nodes[broker].stop(), context=context)
    cluster.kill(broker)


async def start(cluster: Cluster, broker: int) -> None:
    cluster.start(broker)
    await cluster.until(lambda: broker in cluster.nodes)


def ends(house: House, broker: int) -> list[int]:
    return [each.log.log_end_offset for each in house.hosted(broker).values()]


def image_rows(cluster: Cluster, broker: int) -> Any:
    metadata = cluster.nodes[broker].metadata
    assert metadata is not None
    topic = metadata.publisher.image.topics.get("t")
    assert topic is not None
    return topic.partitions


def place(house: House, folder: str) -> tuple[dict[str, Any], str]:
    """Return two values: the entries of the parent folder of ``folder``, and the name of ``folder`` in this
    parent folder."""
    *parents, name = folder.strip("/").split("/")
    node = house.disk(RESTORED).volume.root
    for each in parents:
        node = node.entries[each]
    return node.entries, name


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("folder", ["/data", "/data/b"])
def test_a_broker_with_an_old_copy_of_a_folder_must_follow(
    folder: str, is_killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with World(8) as world:
        house = House(world)
        cluster = house.cluster
        # With min.insync.replicas=2, a complete replica that leaves the in-sync set may still be elected. An
        # old copy must not be elected.
        for node_id, properties in cluster.properties.items():
            cluster.properties[node_id] = {**properties, "min.insync.replicas": "2"}

        async def story() -> None:
            await house.begin()
            await house.produce(5, "before")
            await end(cluster, RESTORED)
            entries, name = place(house, folder)
            old = copy.deepcopy(entries[name])
            await start(cluster, RESTORED)
            await house.in_sync()
            await house.produce(5, "after")
            # A killed broker is still in all in-sync sets when it starts again.
            if is_killed:
                cluster.kill(RESTORED)
            else:
                await end(cluster, RESTORED)
            entries, name = place(house, folder)
            entries[name] = old
            # The restored broker must not catch up before the other broker is killed.
            world.network.cut(f"node-{RESTORED}", f"node-{OTHER}")
            cluster.start(RESTORED)
            await cluster.until(lambda: "they are an older copy" in caplog.text)
            cluster.kill(OTHER)
            world.network.heal_all()
            await cluster.until(lambda: RESTORED in cluster.nodes)
            # The other broker has every record. Until it is back, the partitions have no leader.
            await cluster.until(lambda: all(row.leader == -1 for row in image_rows(cluster, RESTORED)))
            assert not any(RESTORED in row.isr for row in image_rows(cluster, RESTORED))
            await start(cluster, OTHER)
            await house.in_sync()
            assert ends(house, OTHER) == ends(house, RESTORED) == [10] * COUNT

        with caplog.at_level(logging.WARNING):
            world.run(story())
    assert f"broker {RESTORED} has folders that were closed in epoch" in caplog.text


def test_a_full_disk_of_a_replica_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with World(9) as world:
        house = House(world)
        cluster = house.cluster

        async def story() -> None:
            await house.begin()
            await house.produce(5, "before")
            disk = house.disk(RESTORED)
            disk.capacity_bytes = disk.volume.used_bytes()
            await house.produce(5, "during")
            await cluster.until(lambda: all(row.leader == OTHER for row in house.rows()))
            assert all(set(row.isr) == {OTHER} for row in house.rows())
            assert ends(house, OTHER) == [10] * COUNT
            disk.capacity_bytes = None
            await house.restart(RESTORED)
            await house.in_sync()
            assert ends(house, OTHER) == ends(house, RESTORED) == [10] * COUNT

        with caplog.at_level(logging.WARNING):
            world.run(story())
    assert "No space left on device" in caplog.text
