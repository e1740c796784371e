"""A loss of power may take the whole metadata log of a broker, because the log is not synced. The broker then
gets the metadata from the controllers, and keeps its records."""

import random

import pytest
from simulated_cluster import BROKERS, Cluster, KeptSectors, separate

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Disk
from moldau.simulation.clients.client import Consumer, Producer
from moldau.simulation.world.process import Process
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

RECORDS = 20


def test_a_broker_that_has_lost_its_metadata_log_starts_and_keeps_its_records() -> None:
    with World(1) as world:
        # All records of topics are synced before they are acknowledged.
        properties = {"default.replication.factor": "1", "log.flush.interval.messages": "1"}
        cluster = Cluster(world, separate(), dict.fromkeys(separate(), properties))
        partitions = [TopicPartition("events", number) for number in range(2)]

        async def story() -> None:
            cluster.start(*cluster.roles)
            await cluster.until(lambda: len(cluster.nodes) == len(cluster.roles) and cluster.leader() != 0)
            await cluster.on("admin", cluster.client("admin", 11).create_topic("events", 2, {}))
            for partition in partitions:
                producer = Producer(
                    f"producer-{partition}",
                    cluster.bootstrap(11),
                    cluster.history,
                    random.Random(1),
                    partition,
                )
                await cluster.on(producer.name, producer.run(RECORDS, pause_s=0.01))
            for broker in BROKERS:
                host = world.host(f"node-{broker}")
                host.disk.chance = KeptSectors(keeps_all=False)
                host.lose_power()
                del cluster.nodes[broker]
                assert _metadata_end(host.disk.mount(Process("operator"))) == 0
            cluster.start(*BROKERS)
            await cluster.until(lambda: len(cluster.nodes) == len(cluster.roles))
            for partition in partitions:
                consumer = Consumer(
                    f"consumer-{partition}",
                    cluster.bootstrap(11),
                    cluster.history,
                    random.Random(1),
                    partition,
                )
                found = await cluster.on(consumer.name, consumer.read_to_end())
                assert len(found) == RECORDS

        world.run(story())
        assert not world.errors()


def _metadata_end(disk: Disk) -> int:
    """The size of the records in a metadata log."""
    folder = "/data/__cluster_metadata-0"
    names = [name for name in disk.list(folder) if name.endswith(".log")]
    return sum(len(disk.read(f"{folder}/{name}")) for name in names)
