"""A classic partition with chunks loses all disks, and the cluster is restored from its object store.

The records of all chunks were on these disks. After the restore the metadata must not name the lost copies,
because readers would wait for brokers that have no such chunk or do not exist.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import pytest

from moldau.cluster.decisions.features import UpgradeType
from moldau.cluster.image.image import CHUNK_FEATURE
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksTopicPartition
from moldau.runtime import ErrorCode, Machine
from moldau.server.node import ServerNode
from moldau.simulation.clients.client import Producer, RetryError, SimulatedClient
from moldau.simulation.history import History, PartitionName
from moldau.simulation.restore.cluster_story import PROPERTIES, REPLICATED
from moldau.simulation.restore.nodes import LifeOptions, LosableCluster, NodeSet
from moldau.simulation.seeds import stream
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

EVENTS: Final = PartitionName("events", 0)
RECORDS: Final = 30
FIRST: Final = NodeSet((1, 2, 3), (1, 2, 3))


class LastChoice(random.Random):
    """A random source whose ``choice`` always returns the last item."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


class Chunked:
    """The cluster and its clients."""

    def __init__(self, world: World, node_sets: Sequence[NodeSet]) -> None:
        self.world = world
        self.history = History(world.loop.elapsed_s)
        properties = {**PROPERTIES, "log.diskless.enable": "false", "backup.interval.ms": "1000"}
        options = LifeOptions(properties=properties, node_sets=node_sets, replicated=REPLICATED)
        self.cluster = LosableCluster(world, options, LastChoice(1))

    async def on(self, name: str, work: Awaitable[Any]) -> Any:
        async def program(_machine: Machine) -> Any:
            return await work

        process = self.world.host(name).start(program)
        assert process.main is not None
        return await process.main

    def client(self, kind: Any, name: str, *arguments: Any) -> Any:
        """A client whose first connection is to the node on the last host of the current cluster."""
        chance, host = stream(self.world.seed, name), self.cluster.hosts[-1].name
        bootstrap = next(each for each in self.cluster.addresses if each.host == host)
        return kind(name, bootstrap, self.history, chance, *arguments)

    def partition(self) -> PartitionRegistration:
        process = self.cluster.hosts[-1].process
        assert process is not None
        node = process.exhibit
        assert isinstance(node, ServerNode)
        assert node.metadata is not None
        topic = node.metadata.publisher.image.topics.get(EVENTS.topic)
        assert topic is not None
        return topic.partitions[0]

    async def produce(self, name: str) -> None:
        producer = self.client(Producer, name, EVENTS)
        await self.on(name, asyncio.wait_for(producer.run(RECORDS, pause_s=0.01), 60))

    async def first_offset(self, name: str) -> int:
        client = self.client(SimulatedClient, name)

        async def ask() -> int:
            while True:
                try:
                    return int(await client.list_offset(EVENTS, -2))
                except (OSError, RetryError):
                    client.disconnect()
                    await client.pause()

        found: int = await self.on(name, asyncio.wait_for(ask(), 30))
        return found

    async def create_chunks(self) -> None:
        """Move the active chunk to the brokers 1 and 2, and then to the brokers 2 and 3."""
        client = self.client(SimulatedClient, "tool")
        level = FeatureUpdateKey(feature=CHUNK_FEATURE, max_version_level=1, upgrade_type=UpgradeType.UPGRADE)
        raised = UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=[level])

        async def create(*brokers: int) -> ErrorCode:
            row = CreateChunksTopicPartition(topic_name=EVENTS.topic, partition_id=0, broker_ids=brokers)
            request = CreateChunksRequest(topic_partitions=[row], timeout_ms=6_000)
            try:
                answer = await (await client.leader(EVENTS)).request(request.API_KEY, 0, request)
                code: ErrorCode = answer.results[0].error_code
            except (OSError, RetryError):
                code = ErrorCode.network_exception
            client.disconnect()
            await client.pause()
            return code

        async def story() -> None:
            assert (await client.ask(ApiKey.UPDATE_FEATURES, 2, raised)).error_code is ErrorCode.none
            for count, brokers in enumerate([(1, 2), (2, 3)], start=1):
                while len(self.partition().chunks) < count:
                    await create(*brokers)
                await self.produce(f"producer-{count}")

        await self.on("tool", asyncio.wait_for(story(), 120))


def play(node_sets: Sequence[NodeSet], story: Callable[[Chunked], Awaitable[None]]) -> None:
    with World(1) as world:
        chunked = Chunked(world, node_sets)
        world.run(asyncio.wait_for(story(chunked), 400))
        assert chunked.history.violations == []


@pytest.mark.parametrize(
    "restored", [FIRST, NodeSet((2, 5), (2,))], ids=["as the same nodes", "as other nodes"]
)
def test_the_partition_continues_after_its_lost_chunks(restored: NodeSet) -> None:
    async def story(chunked: Chunked) -> None:
        chunked.cluster.start()
        admin = chunked.client(SimulatedClient, "admin")
        await chunked.on("admin", admin.create_topic(EVENTS.topic, 1, {}))
        await chunked.produce("producer-0")
        await chunked.create_chunks()
        before = chunked.partition()
        assert [each.start_offset for each in before.chunks] == [0, RECORDS]
        assert await chunked.first_offset("reader-0") == 0
        await asyncio.sleep(5)  # a cut contains the chunks
        await chunked.cluster.lose_and_restore()
        assert chunked.cluster.report is not None
        border = 2 * RECORDS
        # Without the chunks, no consumer is sent to a lost copy, and no new record gets the offset of a lost
        # record of a chunk.
        assert await chunked.first_offset("reader-1") == border
        await chunked.produce("producer-3")
        found = chunked.partition()
        assert found.chunks == ()
        assert found.start_offset == border
        assert set(found.replicas) <= set(restored.node_ids)
        assert await chunked.first_offset("reader-2") == border

    play([FIRST, restored], story)
