"""Two brokers with one object store. If the metadata of a broker are not up to date, the broker must not
delete data that other brokers still need.

Each story also runs with the defect that it must detect.
"""

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest
from simulated_cluster import BROKERS, CONTROLLERS, Cluster, separate

from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.special_timestamps import EARLIEST_PENDING_UPLOAD_TIMESTAMP, LATEST_TIERED_TIMESTAMP
from moldau.replication.lookups.list_offsets import OffsetLookup
from moldau.replication.partition_interface import FoundOffset, StopReason
from moldau.runtime import KafkaError
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.tiered.deleted_topics import DeletedTopics
from moldau.server.subsystems.tiered.kind import TieredKind
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.simulation.checks.log_checks import check
from moldau.simulation.clients.client import CREATE_TOPICS_VERSION, Consumer, Producer
from moldau.simulation.cluster.mover import Mover
from moldau.simulation.seeds import stream
from moldau.simulation.world.object_storage import TIER_CLASS_NAME
from moldau.simulation.world.world import World
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.storage.object_layout import parse_segment_key

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

FIRST, SECOND = BROKERS
GRACE_S = 30.0
"""A time that is longer than the time after which a missing topic may count as deleted."""
PROPERTIES = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.manager.task.interval.ms": "300",
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.metadata.topic.replication.factor": "2",
    "log.roll.ms": "400",
    "log.retention.check.interval.ms": "700",
    "broker.session.timeout.ms": "60000",
}
OFFSETS_OF_TIERS_VERSION = 11
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "retention.ms": "-1"}


class Brokers:
    """Three controllers and two brokers, and the topics of a story. Each topic has one partition on one
    broker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = Cluster(world, separate(), dict.fromkeys((*CONTROLLERS, *BROKERS), PROPERTIES))

    async def start(self) -> None:
        cluster = self.cluster
        cluster.start(*CONTROLLERS, *BROKERS)
        await cluster.until(lambda: len(cluster.nodes) == 5 and cluster.leader() != 0)

    async def create(self, name: str, broker: int) -> None:
        """Create a tiered topic on a broker, with a request to that broker."""
        client = self.cluster.client(f"creator of {name}", broker)
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[broker])
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in TIERED.items()],
        )

        async def create() -> None:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
            while True:
                response = await client.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request)
                if response.topics[0].error_code.name in ("none", "topic_already_exists"):
                    return
                await client.pause()

        await self.cluster.on(client.name, create())

    async def fill(self, name: str, broker: int) -> None:
        """Produce a few segments, and wait until one of them is in the object store."""
        producer = Producer(
            f"producer of {name}",
            self.cluster.bootstrap(broker),
            self.cluster.history,
            stream(self.world.seed, name),
            TopicPartition(name, 0),
        )
        await self.cluster.on(producer.name, producer.run(150, pause_s=0.4))
        topic_id = self.topic(broker, name).topic_id
        await self.cluster.until(lambda: len(self.objects(topic_id)) >= 2)

    async def owner_and_other(self) -> tuple[int, int]:
        """Return the broker that owns the remote data of all topics, and the other broker."""
        await self.create("first", FIRST)
        await self.fill("first", FIRST)
        owner = self.topic(FIRST, REMOTE_LOG_METADATA_TOPIC).partitions[0].leader
        return (FIRST, SECOND) if owner == FIRST else (SECOND, FIRST)

    async def read(self, name: str, broker: int) -> list[str]:
        """Read a topic from its first to its last offset, and check its records."""
        partition = TopicPartition(name, 0)
        reader = Consumer(
            f"judge of {name}",
            self.cluster.bootstrap(broker),
            self.cluster.history,
            stream(self.world.seed, "judge"),
            partition,
        )
        return check(
            self.cluster.history, {partition: await self.cluster.on(reader.name, reader.read_to_end())}
        )

    async def not_uploaded(self, name: str, broker: int) -> list[str]:
        """Ask the leader for the first offset that is not in the store yet, and check the response.

        A new leader may respond that this offset is unknown (-1). The response must never name an offset that
        the previous leader has copied.
        """
        client, partition = self.cluster.client("asker", broker), TopicPartition(name, 0)

        async def ask(timestamp: int) -> int:
            return await client.list_offset(partition, timestamp, OFFSETS_OF_TIERS_VERSION)

        async def ask_all() -> list[str]:
            before = await ask(LATEST_TIERED_TIMESTAMP)
            pending = await ask(EARLIEST_PENDING_UPLOAD_TIMESTAMP)
            after = await ask(LATEST_TIERED_TIMESTAMP)
            if pending == before == -1 or before < pending <= after + 1:
                return []
            return [f"{pending} is the first to upload, and {before} to {after} the last uploaded"]

        found: list[str] = await self.cluster.on(client.name, ask_all())
        return found

    def topic(self, broker: int, name: str) -> Topic:
        found = self.image_topic(broker, name)
        assert found is not None
        return found

    def image_topic(self, broker: int, name: str) -> Topic | None:
        metadata: Any = self.cluster.nodes[broker].metadata
        topic: Topic | None = metadata.publisher.image.topics.get(name)
        return topic

    def objects(self, topic_id: UUID) -> set[str]:
        """Keys of a topic's segments in the store."""
        parsed = {key: parse_segment_key(key) for key in self.world.object_store.objects}
        return {key for key, each in parsed.items() if each is not None and each.id.topic_id == topic_id}

    def cut(self, broker: int) -> None:
        """Disconnect a broker from the controllers."""
        for controller in CONTROLLERS:
            self.world.network.cut(f"node-{broker}", f"node-{controller}")
            self.world.network.cut(f"node-{controller}", f"node-{broker}")


def move_the_leader() -> list[str]:
    """Move a topic from one broker to the other. Returns the errors."""
    with World(1) as world:
        brokers = Brokers(world)

        async def story() -> list[str]:
            await brokers.start()
            source, target = await brokers.owner_and_other()
            await brokers.create("moving", source)
            await brokers.fill("moving", source)
            before = brokers.objects(brokers.topic(source, "moving").topic_id)
            mover = Mover(brokers.cluster.client("mover", source), (), BROKERS, 1)
            await brokers.cluster.on("mover", mover.move(TopicPartition("moving", 0), (target,)))

            def has_moved() -> bool:
                hosted = [brokers.cluster.nodes[each].get(PartitionsSubsystem) for each in (source, target)]
                here, there = (each.partition("moving", 0) for each in hosted)
                return here is None and there is not None and there.is_leader

            await brokers.cluster.until(has_moved)
            at_once = await brokers.not_uploaded("moving", target)
            await asyncio.sleep(GRACE_S)
            mistakes = [*at_once, *await brokers.not_uploaded("moving", target)]
            if mistakes:
                return mistakes
            gone = before - set(world.object_store.objects)
            if gone:
                return [f"{sorted(gone)} are gone"]
            return await brokers.read("moving", target)

        return world.run(story())


def reconcile_deletions_with_old_metadata() -> list[str]:
    """The owner of remote data looks for orphans before its metadata contain a new topic. Returns
    the errors."""
    with World(2) as world:
        brokers = Brokers(world)

        async def story() -> list[str]:
            await brokers.start()
            owner, other = await brokers.owner_and_other()
            brokers.cut(owner)
            await brokers.create("new", other)
            await brokers.fill("new", other)
            topic_id = brokers.topic(other, "new").topic_id
            before = brokers.objects(topic_id)
            assert brokers.image_topic(owner, "new") is None
            await look(owner, topic_id)
            world.network.heal_all()
            await brokers.cluster.until(lambda: brokers.image_topic(owner, "new") is not None)
            await asyncio.sleep(GRACE_S)
            gone = before - set(world.object_store.objects)
            if gone:
                return [f"{sorted(gone)} are gone"]
            return await brokers.read("new", other)

        async def look(owner: int, topic_id: UUID) -> None:
            process = world.host(f"node-{owner}").process
            assert process is not None
            tiered = brokers.cluster.nodes[owner].get(TieredSubsystem)

            async def look_often() -> None:
                known = await tiered.metadata.remote_log_partitions()
                assert topic_id in {each.topic_id for each in known}, (
                    "the events have come, the metadata have not"
                )
                for _ in range(10):
                    with contextlib.suppress(KafkaError, TimeoutError):  # the owner cannot reach the quorum
                        await tiered.remover.reconcile_deletions()
                    await asyncio.sleep(1.0)

            context = process.context()
            await context.run(world.loop.create_task, look_often(), context=context)

        return world.run(story())


def test_the_segments_of_a_topic_stay_when_its_leader_moves() -> None:
    assert move_the_leader() == []


def test_segments_of_a_topic_that_is_unknown_to_their_owner_are_kept() -> None:
    assert reconcile_deletions_with_old_metadata() == []


def test_a_broker_that_treats_a_removed_replica_as_a_deleted_topic_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = TieredKind.close

    def close_as_deleted(self: TieredKind, partition: Any, reason: StopReason) -> None:
        close(self, partition, reason)
        if reason is StopReason.REPLICA_REMOVED:
            name = TopicIdPartition(partition.key.topic_id, partition.topic, partition.key.partition)
            self._remover.delete_partition(name)

    monkeypatch.setattr(TieredKind, "close", close_as_deleted)
    assert move_the_leader()


def test_a_leader_that_names_the_start_of_its_log_as_not_uploaded_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(self: OffsetLookup) -> FoundOffset:
        return FoundOffset(self._log.log_start_offset)

    monkeypatch.setattr(OffsetLookup, "_find_pending_upload", start)
    assert any("is the first to upload" in line for line in move_the_leader())


def test_deletions_by_old_metadata_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing(self: DeletedTopics, topic_ids: Collection[UUID]) -> set[UUID]:
        return self._missing(topic_ids)

    monkeypatch.setattr(DeletedTopics, "among", missing)
    assert reconcile_deletions_with_old_metadata()
