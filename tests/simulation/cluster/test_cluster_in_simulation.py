"""Controllers and brokers as separate nodes. Clients write to two brokers while nodes are killed."""

import asyncio
from typing import Any

import pytest
from simulated_cluster import BROKERS, CONTROLLERS, Cluster, combined, separate

from moldau.protocol.partitions import TopicPartition
from moldau.simulation.checks.log_checks import check
from moldau.simulation.clients.client import Consumer, Producer
from moldau.simulation.seeds import stream
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

PARTITIONS = tuple(TopicPartition("events", index) for index in range(4))


@pytest.mark.parametrize("roles", [separate(), combined()], ids=["separate", "combined"])
def test_clients_write_and_read_over_two_brokers_while_the_controller_moves(roles: dict[int, str]) -> None:
    with World(1) as world:
        cluster = Cluster(world, roles)
        history = cluster.history

        async def story() -> list[str]:
            cluster.start(*roles)
            await cluster.until(lambda: len(cluster.nodes) == len(roles) and cluster.leader() != 0)
            admin = cluster.client("admin", 11)
            await cluster.on("admin", admin.create_topic("events", len(PARTITIONS), {}))
            producers = [
                Producer(
                    f"producer-{number}",
                    cluster.bootstrap(BROKERS[number % 2]),
                    history,
                    stream(world.seed, "producer", number),
                    partition,
                )
                for number, partition in enumerate(PARTITIONS)
            ]
            writing = [cluster.on(each.name, each.run(60, pause_s=0.1)) for each in producers]
            await asyncio.sleep(2)
            first = cluster.leader()
            cluster.kill(first)
            await cluster.until(lambda: cluster.leader() not in (0, first))
            cluster.start(first)
            # The broker that still runs forwards the request, and the new active controller decides on it.
            await cluster.on("admin", cluster.client("admin", 12).create_topic("later", 2, {}))
            await asyncio.gather(*writing)
            logs = {}
            for number, partition in enumerate(PARTITIONS):
                name = f"judge-{number}"
                consumer = Consumer(
                    name, cluster.bootstrap(BROKERS[number % 2]), history, stream(1, name), partition
                )
                logs[partition] = await cluster.on(name, consumer.read_to_end())
            metadata: Any = cluster.nodes[12].metadata
            topic = metadata.publisher.image.topics.get("events")
            assert {partition.leader for partition in topic.partitions} == set(BROKERS)
            assert sum(map(len, logs.values())) > 0
            return check(history, logs)

        assert not world.run(story())


def test_a_killed_broker_is_fenced_and_comes_back() -> None:
    with World(2) as world:
        cluster = Cluster(world, separate())

        def leaders() -> list[int]:
            metadata: Any = cluster.nodes[11].metadata
            topic = metadata.publisher.image.topics.get("events")
            return [partition.leader for partition in topic.partitions]

        def brokers() -> list[int]:
            metadata: Any = cluster.nodes[11].metadata
            found = metadata.publisher.image.brokers.values()
            return [broker.broker_id for broker in found if not broker.fenced]

        async def story() -> None:
            cluster.start(*CONTROLLERS, *BROKERS)
            await cluster.until(lambda: len(cluster.nodes) == 5 and brokers() == [11, 12])
            await cluster.on("admin", cluster.client("admin", 11).create_topic("events", 4, {}))
            await cluster.until(lambda: sorted(leaders()) == [11, 11, 12, 12])
            # The client uses version 5 of DeleteTopics, whose requests have a list of topic names. The broker
            # sends the request to the controller in version 6, in which this list does not exist.
            await cluster.on("other", cluster.client("other", 11).create_topic("passing", 1, {}))
            await cluster.on("deleter", cluster.client("deleter", 12).delete_topic("passing"))
            metadata: Any = cluster.nodes[12].metadata
            assert metadata.publisher.image.topics.get("passing") is None
            cluster.kill(12)
            await cluster.until(lambda: brokers() == [11] and sorted(leaders()) == [-1, -1, 11, 11])
            cluster.start(12)
            await cluster.until(lambda: brokers() == [11, 12] and sorted(leaders()) == [11, 11, 12, 12])

        world.run(story())


def test_a_broker_joins_a_node_whose_diskless_records_leave_the_wal() -> None:
    with World(4) as world:
        properties = {
            "diskless.system.enable": "true",
            "diskless.storage.url": "file:///data/objects",
            "remote.log.storage.system.enable": "true",
            "rsm.config.url": "file:///data/objects",
        }
        cluster = Cluster(world, {1: "broker,controller", 11: "broker"}, {1: properties, 11: properties})

        async def story() -> None:
            cluster.start(1)
            await cluster.until(lambda: 1 in cluster.nodes)
            metadata: Any = cluster.nodes[1].metadata
            assert sorted(metadata.publisher.image.brokers) == [1]
            cluster.start(11)
            await cluster.until(lambda: sorted(metadata.publisher.image.brokers) == [1, 11])

        world.run(story())
