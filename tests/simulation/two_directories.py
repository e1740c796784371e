"""A small cluster whose brokers have two log directories each, for stories that a test plays step by step."""

from typing import Any
from uuid import UUID

from simulated_cluster import Cluster

from moldau.protocol.api import ApiKey
from moldau.protocol.partitions import TopicPartition
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.clients.client import Producer
from moldau.simulation.world.world import World

COUNT = 4
PROPERTIES = {
    "log.dirs": "/data/a,/data/b",
    "replica.lag.time.max.ms": "1500",
}


class House:
    """A controller, and two brokers with two directories each."""

    def __init__(self, world: World) -> None:
        self.world = world
        properties = {11: PROPERTIES, 12: PROPERTIES, 1: {"default.replication.factor": "2"}}
        self.cluster = Cluster(world, {1: "controller", 11: "broker", 12: "broker"}, properties)

    def rows(self) -> Any:
        """The partitions in the metadata."""
        metadata = self.cluster.nodes[12].metadata
        assert metadata is not None
        topic = metadata.publisher.image.topics.get("t")
        return () if topic is None else topic.partitions

    def topic_id(self) -> UUID:
        metadata = self.cluster.nodes[12].metadata
        assert metadata is not None
        topic = metadata.publisher.image.topics.get("t")
        assert topic is not None
        return topic.topic_id

    def hosted(self, broker: int) -> dict[int, Any]:
        found = self.cluster.nodes[broker].get(PartitionsSubsystem)
        return {i: each for i in range(COUNT) if (each := found.partition("t", i)) is not None}

    def directory_id(self, broker: int, path: str) -> UUID:
        metadata = self.cluster.nodes[broker].metadata
        assert metadata is not None
        return metadata.identity.directories[path]

    async def begin(self) -> None:
        cluster = self.cluster
        cluster.start(1, 11, 12)
        await cluster.until(lambda: len(cluster.nodes) == 3)
        await cluster.on("admin", cluster.client("admin", 11).create_topic("t", COUNT, {}))
        await cluster.until(lambda: bool(self.rows()) and all(self.is_assigned(row) for row in self.rows()))
        await self.in_sync()

    def is_assigned(self, row: Any) -> bool:
        return all(each.int > 100 for each in row.directories)

    async def in_sync(self) -> None:
        await self.cluster.until(lambda: all(len(row.isr) == 2 for row in self.rows()))

    async def create_again(self) -> None:
        """Delete the topic, and create a topic with the same name."""
        admin, former = self.cluster.client("admin", 12), self.topic_id()
        await self.cluster.on("admin", admin.delete_topic("t"))
        await self.cluster.on("admin", admin.create_topic("t", COUNT, {}))
        await self.cluster.until(lambda: bool(self.rows()) and self.topic_id() != former)

    async def ask(self, broker: int, api_key: ApiKey, version: int, request: Any) -> Any:
        client = self.cluster.client("asker", broker)
        return await self.cluster.on("asker", client.ask(api_key, version, request))

    async def produce(self, count: int, name: str) -> None:
        """Produce records to every partition. All in-sync replicas acknowledge each record."""
        for index in range(COUNT):
            client = self.cluster.client(f"{name}-{index}", 12)
            producer = Producer(
                client.name, client.bootstrap, self.cluster.history, client.chance, TopicPartition("t", index)
            )
            await self.cluster.on(producer.name, producer.run(count, pause_s=0.01))

    async def restart(self, broker: int) -> None:
        self.cluster.kill(broker)
        self.cluster.start(broker)
        await self.cluster.until(lambda: broker in self.cluster.nodes)

    def disk(self, broker: int) -> Any:
        return self.world.host(f"node-{broker}").disk
