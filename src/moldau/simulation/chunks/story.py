"""Replicated partitions on three nodes. Their chunks are created, moved and deleted while nodes fail.

Every partition has two of the three nodes as replicas. Each new chunk has another pair of replicas, and the
replicas of active chunks change too. Chunks are also created automatically. Some consumers are sent to the
brokers of chunks. Meanwhile the first records of the last partition are deleted. At the end every record is
read from offset 0 on through all chunks. The chunks must have no gaps, and their replicas must be equal byte
for byte. Then the topic is deleted, and no chunk may be left.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from moldau.cluster.decisions.features import UpgradeType
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.image import CHUNK_FEATURE, MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.own.chunks.alter_chunk_assignments import (
    AlterChunkAssignment,
    AlterChunkAssignmentsRequest,
)
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksTopicPartition
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.runtime import ErrorCode
from moldau.simulation.chunks.checks import check_borders, check_contents, chunk_folders, chunk_problem
from moldau.simulation.chunks.readers import ChunkReader, ShortenedReader
from moldau.simulation.clients.client import (
    CREATE_TOPICS_VERSION,
    Consumer,
    RetryError,
    SimulatedClient,
)
from moldau.simulation.cluster.stories.replication_stories import (
    NODE_IDS,
    PARTITIONS,
    TOPIC,
    ReplicationStory,
    replica_content,
    replication,
)
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.world.host import Host
from moldau.simulation.world.world import World

REPLICAS: Final = 2
SHORTENED: Final = PARTITIONS[-1]
"""The partition whose first records are deleted."""
FOLDER: Final = "/data"
UPDATE_FEATURES_VERSION: Final = 2
_ASK_S: Final = 8.0
"""Time limit of an operator's request."""
CHUNK_PROPERTIES: Final = {
    "min.insync.replicas": "1",
    "log.retention.check.interval.ms": "1000",
    "chunk.redirect.min.bytes": "0",
    # Consumers must not create the topic again after its deletion.
    "auto.create.topics.enable": "false",
}
ROLLING: Final = {"chunk.roll.ms": "3000"}
SYNCED: Final = {"log.flush.interval.messages": "1"}


def chunks() -> Scenario:
    """Processes of nodes are killed, paused or cleanly restarted, and links break."""
    faults = (*(Fault.KILL,) * 3, *(Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY) * 2, Fault.RESET)
    return _scenario({}, faults)


def chunks_power() -> Scenario:
    """Nodes lose power, are killed or paused, and links break. Logs are synced before records are
    acknowledged."""
    return _scenario(SYNCED, (*(Fault.POWER_LOSS,) * 3, Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY))


def _scenario(properties: dict[str, str], faults: tuple[Fault, ...]) -> Scenario:
    return replace(
        replication(),
        story=partial(ChunkStory, properties={**CHUNK_PROPERTIES, **properties}),
        weather=Weather(faults, pause_s_max=4.0, between_s_max=2.5),
        fault_count=8,
        records_per_producer=400,
    )


class ChunkStory(ReplicationStory):
    """The story of partitions with chunks. A seed decides the run."""

    topic_configs: Mapping[str, str] = MappingProxyType(ROLLING)
    deletion_limit_s = 60
    """Time in seconds in which all data of a deleted topic must be deleted."""

    def __init__(self, world: World, scenario: Scenario, *, properties: dict[str, str]) -> None:
        super().__init__(world, scenario, properties=properties)
        self.created = 0
        """Number of creations that were acknowledged."""
        self._deleted_before = 0
        """The highest offset in a request to delete the records of the last partition before that offset.
        Even if the request was not acknowledged, some of the brokers may have deleted these records."""
        self.moved = 0
        """Number of moves that were accepted."""
        self.sent = 0
        """Number of times that consumers were sent to another broker."""

    # The clients of a run

    def _consumer(self, name: str, number: int, *, observed: bool = True) -> Consumer:
        where = PARTITIONS[number % len(PARTITIONS)]
        consumer: ChunkReader
        if where != SHORTENED:
            consumer = self._begin_at_any(ChunkReader, name, where, observed=observed)
        else:
            shortened: ShortenedReader = self._begin_at_any(
                ShortenedReader, name, where, observed=observed, shortened=True
            )
            shortened.deleted_before = lambda: self._deleted_before
            consumer = shortened
        if observed and consumer.chance.random() < 0.7:
            # Only observed consumers name a rack, so that they can be sent to the brokers of chunks. The
            # final readers compare their offset with the high watermark, and only replicas of the active
            # chunk know it.
            consumer.rack = "a"
            consumer.on_sent = self._note_sent
        return consumer

    def _note_sent(self) -> None:
        self.sent += 1

    async def _create_topic(self, client: SimulatedClient) -> None:
        topic = CreatableTopic(
            name=TOPIC,
            num_partitions=len(PARTITIONS),
            replication_factor=REPLICAS,
            configs=[
                CreatableTopicConfig(name=name, value=value) for name, value in self.topic_configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        update = FeatureUpdateKey(
            feature=CHUNK_FEATURE, max_version_level=1, upgrade_type=UpgradeType.UPGRADE
        )
        raised = UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=[update])
        while True:
            try:
                found = await client.ask(ApiKey.UPDATE_FEATURES, UPDATE_FEATURES_VERSION, raised)
                if found.error_code is ErrorCode.none:
                    answer = await client.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
                    code = answer.topics[0].error_code
                    if code in (ErrorCode.none, ErrorCode.topic_already_exists):
                        return
            except OSError:
                pass
            await client.pause()

    # Actions of the operator

    async def _storm(self, nemesis: Nemesis) -> None:
        storm = asyncio.create_task(super()._storm(nemesis))
        client: SimulatedClient = self._begin_at_any(SimulatedClient, "operator")
        await self._on("operator", self._operate(client, storm))
        await storm

    async def _operate(self, client: SimulatedClient, storm: "asyncio.Task[None]") -> None:
        chance = client.chance
        while not storm.done():
            await asyncio.sleep(chance.uniform(0.05, 0.8))
            partition, draw = chance.choice(PARTITIONS), chance.random()
            try:
                async with asyncio.timeout(_ASK_S):
                    if draw < 0.4:
                        await self._create(client, partition)
                    elif draw < 0.75:
                        await self._move(client, partition)
                    elif draw < 0.9:
                        await self._reassign(client, partition)
                    else:
                        await self._delete(client)
            except (OSError, RetryError):
                pass
            client.disconnect()

    async def _delete(self, client: SimulatedClient) -> None:
        offset = client.chance.randint(0, await client.list_offset(SHORTENED, LATEST_TIMESTAMP))
        self._deleted_before = max(self._deleted_before, offset)
        await client.delete_records(SHORTENED, offset)

    async def _create(self, client: SimulatedClient, partition: TopicPartition) -> None:
        brokers = client.chance.sample(NODE_IDS, REPLICAS)
        row = CreateChunksTopicPartition(
            topic_name=partition.topic, partition_id=partition.partition, broker_ids=brokers
        )
        request = CreateChunksRequest(topic_partitions=[row], timeout_ms=6_000)
        answer = await (await client.leader(partition)).request(request.API_KEY, 0, request)
        result = answer.results[0]
        outcome = f"{result.error_code.name} {result.start_offset} {result.error_message or ''}"
        self.history.note(f"chunk of {partition} on {brokers}: {outcome}")
        self.created += result.error_code is ErrorCode.none

    async def _move(self, client: SimulatedClient, partition: TopicPartition) -> None:
        found = self._partition(partition)
        if found is None or not found.chunks:
            return
        chunk = client.chance.choice(found.chunks)
        is_cancelled = client.chance.random() < 0.2
        brokers = None if is_cancelled else client.chance.sample(NODE_IDS, REPLICAS)
        row = AlterChunkAssignment(
            topic_name=partition.topic,
            partition_id=partition.partition,
            start_offset=chunk.start_offset,
            broker_ids=brokers,
        )
        request = AlterChunkAssignmentsRequest(chunks=[row], timeout_ms=5_000)
        answer = await client.ask(request.API_KEY, 0, request)  # type: ignore[arg-type]
        code = answer.error_code if answer.error_code.value else answer.results[0].error_code
        self.history.note(f"chunk {chunk.start_offset} of {partition} to {brokers}: {code.name}")
        self.moved += code is ErrorCode.none

    async def _reassign(self, client: SimulatedClient, partition: TopicPartition) -> None:
        """Move the active chunk to other brokers, or cancel its move."""
        is_cancelled = client.chance.random() < 0.3
        brokers = None if is_cancelled else client.chance.sample(NODE_IDS, REPLICAS)
        row = ReassignablePartition(partition_index=partition.partition, replicas=brokers)
        topic = ReassignableTopic(name=partition.topic, partitions=[row])
        request = AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=5_000)
        answer = await client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        self.history.note(f"the active chunk of {partition} to {brokers}: {answer.error_code.name}")

    # The end of a run

    async def run(self) -> list[str]:
        """Run the scenario, and delete the topic at the end. Returns the violations."""
        violations = await super().run() or await self._check_survivors()
        if violations:
            return violations
        deleter: SimulatedClient = self._begin_at_any(SimulatedClient, "deleter")
        await self._on("deleter", deleter.delete_topic(TOPIC))
        for _ in range(self.deletion_limit_s):
            if not self._remains():
                return []
            await asyncio.sleep(1.0)
        return [f"data of a deleted topic are left: {self._remains()}"]

    async def _check_survivors(self) -> list[str]:
        """Check the cluster after all records were read, and before the topic is deleted. Returns the
        violations."""
        return []

    def _remains(self) -> list[str]:
        """The remaining data of the topic after its deletion: the folders of chunks on all nodes."""
        return [
            f"{name} on node {node_id}"
            for node_id in NODE_IDS
            for name, _ in chunk_folders(self._world.host(f"node-{node_id}"), FOLDER)
        ]

    def _image(self) -> MetadataImage | None:
        for node_id in NODE_IDS:
            node = self.nodes.get(node_id)
            if node is not None and self._is_up(node_id) and node.metadata is not None:
                return node.metadata.publisher.image
        return None

    def _partition(self, name: TopicPartition) -> PartitionRegistration | None:
        image = self._image()
        topic = None if image is None else image.topics.get(name.topic)
        return None if topic is None else topic.partitions[name.partition]

    def _problem(self) -> str | None:
        for node_id in NODE_IDS:
            if not self._is_up(node_id):
                return f"node {node_id} is down"
        expected: dict[int, int] = dict.fromkeys(NODE_IDS, 0)
        for each in PARTITIONS:
            metadata = self._partition(each)
            if metadata is None:
                return f"{each} is missing"
            if set(metadata.isr) != set(metadata.replicas):
                return f"{each}: {metadata}"
            if (problem := chunk_problem(metadata)) is not None:
                return f"{each}: {problem}"
            for chunk in metadata.chunks:
                for broker_id in chunk.replicas:
                    expected[broker_id] += 1
            replicas = dict(self._replicas_by_node(each))
            if set(replicas) != set(metadata.replicas):
                return f"{each} is hosted on {sorted(replicas)}, its replicas are {metadata.replicas}"
            ends = {n: (one.high_watermark, one.log.log_end_offset) for n, one in replicas.items()}
            if len(set(ends.values())) > 1:
                return f"{each}: {ends}"
        for node_id, count in expected.items():
            folders = chunk_folders(self._world.host(f"node-{node_id}"), FOLDER)
            if len(folders) != count:
                return f"node {node_id} has the chunk folders {sorted(folders)}, and {count} are expected"
        return None

    def _differences(self) -> Iterator[str]:
        hosts = {node_id: self._world.host(f"node-{node_id}") for node_id in NODE_IDS}
        for each in PARTITIONS:
            # Perhaps a deletion of records that was not acknowledged has reached only one of the replicas.
            from_offset = max(one.log.local_log_start_offset for one in self._replicas(each))
            if len({replica_content(one, from_offset) for one in self._replicas(each)}) > 1:
                yield f"the replicas of {each} are not equal"
            metadata = self._partition(each)
            if metadata is None:
                continue
            yield from check_borders(each, metadata)
            first_offset = max(one.log.log_start_offset for one in self._replicas(each))
            first_offset = max(first_offset, self._deleted_before if each == SHORTENED else 0)
            for chunk in metadata.chunks:
                if chunk.end_offset >= first_offset:
                    yield from self._chunk_differences(each, chunk, hosts, first_offset)

    def _chunk_differences(
        self, name: TopicPartition, chunk: ChunkRegistration, hosts: dict[int, Host], first_offset: int
    ) -> Iterator[str]:
        yield from check_contents(name, chunk, hosts, FOLDER, first_offset)
