"""A classic partition with chunks loses all disks, and the cluster is restored from its object store.

The records of all chunks were on these disks. After the restore the metadata must not name the lost copies.
Otherwise readers would wait for brokers that do not exist or do not have the chunk. If the topic is tiered,
the chunks that were in the remote tier come back, and the partition continues after them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import pytest

from moldau.cluster.decisions.features import UpgradeType
from moldau.cluster.image.image import CHUNK_FEATURE, ResourceType
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksTopicPartition
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.special_timestamps import LATEST_TIERED_TIMESTAMP
from moldau.runtime import ErrorCode, Machine
from moldau.server.node import ServerNode
from moldau.simulation.clients.client import Consumer, Producer, RetryError, SimulatedClient
from moldau.simulation.history import History
from moldau.simulation.restore.cluster_story import PROPERTIES, REPLICATED
from moldau.simulation.restore.nodes import LifeOptions, LosableCluster, NodeSet
from moldau.simulation.seeds import stream
from moldau.simulation.world.object_storage import TIER_CLASS_NAME
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

EVENTS: Final = TopicPartition("events", 0)
RECORDS: Final = 30
FIRST: Final = NodeSet((1, 2, 3), (1, 2, 3))
TIER: Final = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "700",
}
OFFSETS_OF_TIERS_VERSION: Final = 9


class LastChoice(random.Random):
    """A random source whose ``choice`` always returns the last item."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


class Chunked:
    """The cluster and its clients."""

    def __init__(self, world: World, node_sets: Sequence[NodeSet], tier: Mapping[str, str]) -> None:
        self.world = world
        self.history = History(world.loop.elapsed_s)
        properties = {**PROPERTIES, "log.diskless.enable": "false", "backup.interval.ms": "1000", **tier}
        options = LifeOptions(properties=properties, node_sets=node_sets, replicated=REPLICATED)
        self.cluster = LosableCluster(world, options, LastChoice(1))

    async def on(self, name: str, work: Awaitable[Any]) -> Any:
        async def program(_machine: Machine) -> Any:
            return await work

        process = self.world.host(name).start(program)
        assert process.main is not None
        return await process.main

    def client(self, kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
        """A client that first connects to the node on the last host of the current cluster."""
        chance, host = stream(self.world.seed, name), self.cluster.hosts[-1].name
        bootstrap = next(each for each in self.cluster.addresses if each.host == host)
        return kind(name, bootstrap, self.history, chance, *arguments, **options)

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
        return await self.offset(name, -2)

    async def offset(self, name: str, timestamp: int) -> int:
        client = self.client(SimulatedClient, name)

        async def ask() -> int:
            while True:
                try:
                    return int(await client.list_offset(EVENTS, timestamp, OFFSETS_OF_TIERS_VERSION))
                except (OSError, RetryError):
                    client.disconnect()
                    await client.pause()

        found: int = await self.on(name, asyncio.wait_for(ask(), 30))
        return found

    async def until_copied(self, offset: int) -> None:
        """Wait until the last offset in the remote tier is at least ``offset``."""
        for number in count():
            if await self.offset(f"tiered-{number}", LATEST_TIERED_TIMESTAMP) >= offset:
                return
            await asyncio.sleep(1)

    async def configure(self, name: str, **config: str) -> None:
        rows = [
            AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
            for key, value in config.items()
        ]
        resource = AlterConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=EVENTS.topic, configs=rows
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        client = self.client(SimulatedClient, name)
        await self.on(name, client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request))

    async def read(self, name: str, limit: int) -> list[tuple[int, bytes]]:
        """The first ``limit`` records of the partition. The method waits until there are so many records."""
        reader = self.client(Consumer, name, EVENTS, observed=False)

        async def records() -> list[tuple[int, bytes]]:
            while len(reader.read) < limit:
                await reader.step()
            return list(reader.read)

        found: list[tuple[int, bytes]] = await self.on(name, asyncio.wait_for(records(), 60))
        return found

    async def raise_level(self) -> None:
        """Allow chunks in this cluster."""
        client = self.client(SimulatedClient, "upgrade")
        level = FeatureUpdateKey(feature=CHUNK_FEATURE, max_version_level=1, upgrade_type=UpgradeType.UPGRADE)
        raised = UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=[level])
        answer = await self.on("upgrade", client.ask(ApiKey.UPDATE_FEATURES, 2, raised))
        assert answer.error_code is ErrorCode.none

    async def create_chunk(self, *brokers: int) -> None:
        """Move the active chunk to other brokers."""
        client, known = self.client(SimulatedClient, f"tool for {brokers}"), len(self.partition().chunks)
        row = CreateChunksTopicPartition(topic_name=EVENTS.topic, partition_id=0, broker_ids=brokers)
        request = CreateChunksRequest(topic_partitions=[row], timeout_ms=6_000)

        async def story() -> None:
            while len(self.partition().chunks) == known:
                with suppress(OSError, RetryError):
                    await (await client.leader(EVENTS)).request(request.API_KEY, 0, request)
                client.disconnect()
                await client.pause()

        await self.on(client.name, asyncio.wait_for(story(), 120))


def play(
    node_sets: Sequence[NodeSet],
    story: Callable[[Chunked], Awaitable[None]],
    tier: Mapping[str, str] = MappingProxyType({}),
) -> None:
    with World(1) as world:
        chunked = Chunked(world, node_sets, tier)
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
        await chunked.raise_level()
        for number, brokers in enumerate([(1, 2), (2, 3)], start=1):
            await chunked.create_chunk(*brokers)
            await chunked.produce(f"producer-{number}")
        before = chunked.partition()
        assert [each.start_offset for each in before.chunks] == [0, RECORDS]
        assert await chunked.first_offset("reader-0") == 0
        await asyncio.sleep(5)  # a cut contains the chunks
        await chunked.cluster.lose_and_restore()
        assert chunked.cluster.report is not None
        border = 2 * RECORDS
        # The metadata do not contain the chunks any more, so no consumer is sent to a lost copy. New records
        # get offsets after the lost records of the chunks.
        assert await chunked.first_offset("reader-1") == border
        await chunked.produce("producer-3")
        found = chunked.partition()
        assert found.chunks == ()
        assert found.start_offset == border
        assert set(found.replicas) <= set(restored.node_ids)
        assert await chunked.first_offset("reader-2") == border

    play([FIRST, restored], story)


def test_a_tiered_partition_continues_after_the_chunks_that_were_in_the_tier() -> None:
    """Chunk 0 was copied to the tier, and chunk 30 was not."""

    async def story(chunked: Chunked) -> None:
        chunked.cluster.start()
        admin = chunked.client(SimulatedClient, "admin")
        configs = {"remote.storage.enable": "true", "retention.ms": "-1"}
        await chunked.on("admin", admin.create_topic(EVENTS.topic, 1, configs))
        await chunked.raise_level()
        await chunked.produce("producer-0")
        await chunked.create_chunk(1, 2)
        await chunked.until_copied(RECORDS - 1)
        await chunked.configure("no copies", remote_log_copy_disable="true")
        await asyncio.sleep(5)
        await chunked.produce("producer-1")
        await chunked.create_chunk(2, 3)
        await chunked.produce("producer-2")
        before = (await chunked.read("reader-0", RECORDS))[:RECORDS]
        assert [each.start_offset for each in chunked.partition().chunks] == [0, RECORDS]
        await asyncio.sleep(5)  # a cut contains the chunks
        await chunked.cluster.lose_and_restore()
        assert await chunked.first_offset("reader-1") == 0
        assert await chunked.read("reader-2", RECORDS) == before
        await chunked.produce("producer-3")
        after = await chunked.read("reader-3", 2 * RECORDS)
        assert [offset for offset, _ in after] == list(range(2 * RECORDS))
        assert after[:RECORDS] == before
        assert chunked.partition().chunks == ()

    play([FIRST, FIRST], story, TIER)
