"""A partition whose replicas move between brokers: its remote part goes with its topic, and only then."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from uuid import UUID

import pytest
from remote_house import CONFIG, PARTITION, House

from moldau.cluster.image import MetadataImage
from moldau.cluster.partition import Partition
from moldau.cluster.topics_image import Topic, TopicsImage
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.replication.partition import StopReason
from moldau.replication.waiters import WaitingRoom
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.server.registry import PartitionRegistry
from moldau.server.subsystems.partitions.classic_kind import ClassicKind, ReplicaHost
from moldau.server.subsystems.partitions.hosting import PartitionHosting
from moldau.server.subsystems.tiered.kind import TieredKind, Tiering
from moldau.storage.log_manager import LogManager
from moldau.tiered.log_manager import RemoteLogManager, RemoteLogManagerSettings
from moldau.tiered.remover import RemotePartitionRemover
from moldau.tiered.segments import TopicIdPartition

LOCAL, OTHER = 1, 2


async def none_of(partitions: Collection[TopicIdPartition]) -> list[TopicIdPartition]:
    """No topic was deleted while this broker was away."""
    return []


class TieredBroker:
    """Broker 1: what it hosts, and the remote log manager's tasks, over the house's store and log."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.image = MetadataImage()
        self.registry = PartitionRegistry(lambda: self.image)
        self.logs = LogManager(house.machine, [str(folder)])
        self.manager = RemoteLogManager(house.around, RemoteLogManagerSettings())
        tiering = Tiering(self.registry, self.manager, house.reader)
        self.remover = RemotePartitionRemover(self.manager, none_of, tiering)
        classic = ClassicKind(
            ReplicaHost(
                machine=house.machine,
                logs=self.logs,
                local_id=LOCAL,
                arrivals=WaitingRoom(),
                meters=BrokerTopicMeters(Meters()),
            ),
            lambda _: CONFIG,
            lambda _: 1,
        )
        self.kind = TieredKind(classic, self.manager, self.remover, tiering)
        self.hosting = PartitionHosting(
            LOCAL, self.registry, lambda _: self.kind, CoordinatorRegistry([]), self.logs
        )

    def show(self, *replicas: int, epoch: int) -> None:
        """The next image: these brokers have the partition, and the first of them leads it."""
        partition = Partition(
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            leader_epoch=epoch,
            partition_epoch=epoch,
            directories=tuple(UUID(int=100 + each) for each in replicas),
        )
        topic = Topic("t", PARTITION.topic_id, (partition,))
        self.image = MetadataImage(topics=TopicsImage().updated([topic], []))
        self.hosting.apply(self.image, ["t"], [])

    def delete_topic(self) -> None:
        topic = self.image.topics.get("t")
        assert topic is not None
        self.image = MetadataImage()
        self.hosting.apply(self.image, [], [topic])

    async def objects_at_the_end(self) -> int:
        """Objects in the store when nothing is being removed any more."""
        if self.remover.jobs:
            await asyncio.wait(self.remover.jobs, timeout=100)
        return len(await self.house.storage.keys())


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[TieredBroker], Awaitable[None]]], None]:
    async def told(story: Callable[[TieredBroker], Awaitable[None]]) -> None:
        house = House(tmp_path / "logs")
        house.fill(6)
        await house.copying.run()
        house.log.close()
        broker = TieredBroker(house, tmp_path / "logs")
        await broker.logs.start(lambda _: CONFIG)
        broker.show(LOCAL, epoch=0)
        await broker.hosting.settled()
        assert await broker.objects_at_the_end() == 12
        await story(broker)
        await broker.remover.close()
        await broker.manager.close()
        await broker.logs.stop()

    return lambda story: asyncio.run(told(story))


def test_the_remote_part_stays_when_the_leader_moves_to_another_broker(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None], tmp_path: Path
) -> None:
    async def story(broker: TieredBroker) -> None:
        broker.show(OTHER, epoch=1)
        assert broker.registry.get("t", 0) is None
        await broker.hosting.settled()
        assert not (tmp_path / "logs" / "t-0").exists(), "the replica's own data go"
        assert await broker.objects_at_the_end() == 12

    play(story)


def test_the_remote_part_goes_with_the_topic(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        broker.delete_topic()
        assert await broker.objects_at_the_end() == 0

    play(story)


def test_a_replica_that_is_stopped_and_kept_keeps_all_its_data(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None], tmp_path: Path
) -> None:
    async def story(broker: TieredBroker) -> None:
        partition = broker.registry.get("t", 0)
        assert partition is not None
        broker.kind.close(partition, StopReason.KEPT)
        assert (tmp_path / "logs" / "t-0").exists()
        assert not partition.is_leader
        assert await broker.objects_at_the_end() == 12

    play(story)
