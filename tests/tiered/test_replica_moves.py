"""The replicas of a partition move between brokers. The remote part of the partition is deleted only with its
topic."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from remote_house import CONFIG, PARTITION, House

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration as PartitionMetadata
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.core.divergence import UNDEFINED
from moldau.replication.partition_interface import StopReason
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.partitions.classic_kind import ClassicKind, ReplicaHost
from moldau.server.subsystems.partitions.hosting import PartitionHosting
from moldau.server.subsystems.tiered.kind import TieredKind, Tiering
from moldau.server.topics.registry import PartitionRegistry
from moldau.storage.log_manager import LogManager
from moldau.tiered.metadata.lifecycle import RemotePartitionDeleteState
from moldau.tiered.metadata.manager import MetadataPosition
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.remote_log_manager import RemoteLogManager, RemoteLogManagerSettings
from moldau.tiered.removal.remover import RemotePartitionRemover

LOCAL, OTHER = 1, 2


async def none_of(partitions: Collection[TopicIdPartition]) -> list[TopicIdPartition]:
    """Return no deleted partitions, because no topic was deleted while this broker was offline."""
    return []


class TieredBroker:
    """Broker 1 with its partitions and the tasks of the remote log manager. It uses the store and the log of
    a :class:`House`."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.image = MetadataImage()
        self.registry = PartitionRegistry(lambda: self.image)
        self.logs = LogManager(house.machine, [str(folder)])
        self.manager = RemoteLogManager(house.context, RemoteLogManagerSettings())
        self.config = CONFIG
        self.committed: Callable[[], None] = lambda: None
        """Applies committed metadata that this broker's image does not contain yet. It may raise."""
        self.owned = True
        tiering = Tiering(self.registry, self.manager, house.reader, self.until_current)
        self.remover = RemotePartitionRemover(self.manager, none_of, tiering, lambda _: self.owned)
        classic = ClassicKind(
            ReplicaHost(
                machine=house.machine,
                logs=self.logs,
                local_id=LOCAL,
                arrivals=WaitingRoom(),
                meters=BrokerTopicMeters(Meters()),
            ),
            lambda _: self.config,
            lambda _: 1,
        )
        self.kind = TieredKind(classic, self.manager, self.remover, tiering)
        self.told: list[tuple[str, int]] = []
        """The changes of leadership that coordinators were notified of, with epochs."""
        self.hosting = PartitionHosting(LOCAL, self.registry, lambda _: self.kind, self, self.logs)

    def leads(self, partition: ClassicPartition, epoch: int) -> None:
        self.told.append(("leads", epoch))
        assert partition.is_leader

    def no_longer_leads(self, topic: str, topic_id: UUID, index: int, epoch: int) -> None:
        self.told.append(("leads no more", epoch))

    @contextlib.asynccontextmanager
    async def cut(self) -> AsyncIterator[ClassicPartition]:
        """Begin a truncation of the partition's log. The truncation ends only after the end of the ``async
        with`` block."""
        partition = self.registry.get("t", 0)
        assert isinstance(partition, ClassicPartition)
        log, gate = partition.log, asyncio.Event()
        truncate = log.truncate_to

        async def slow(offset: int) -> None:
            await gate.wait()
            if log in list(self.logs):
                await truncate(offset)

        log.truncate_to = slow  # type: ignore[method-assign]
        end = log.log_end_offset
        cut = asyncio.create_task(partition.following.truncate(partition.leader_epoch, UNDEFINED, end))
        await asyncio.sleep(0)
        try:
            yield partition
        finally:
            gate.set()
            await cut

    def show(self, *replicas: int, epoch: int) -> None:
        """Apply an image in which the brokers ``replicas`` have the partition. The first of them is the
        leader."""
        partition = PartitionMetadata(
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

    def tier(self, *, enable: bool) -> None:
        """Set the topic's remote.storage.enable to ``enable``, and configure the partition again."""
        self.config = replace(CONFIG, remote_storage_enable=enable)
        partition = self.registry.get("t", 0)
        if partition is not None:
            self.kind.reconfigure(partition)

    async def until_current(self) -> None:
        self.committed()

    def delete_topic(self) -> None:
        topic = self.image.topics.get("t")
        assert topic is not None
        self.image = MetadataImage()
        self.hosting.apply(self.image, [], [topic])

    async def objects_at_the_end(self) -> int:
        """The objects in the store after all removals are done."""
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


def test_the_remote_part_stays_with_the_leader_of_a_topic_that_is_deleted_when_another_broker_owns_it(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    """This broker leads the partition, but does not own the remote data of the deleted topic. So it deletes
    no objects. The owner deletes them."""

    async def story(broker: TieredBroker) -> None:
        broker.owned = False
        broker.delete_topic()
        assert await broker.objects_at_the_end() == 12
        assert not broker.house.metadata.deletions

    play(story)


def test_an_owner_that_is_replaced_stops_the_removal_of_a_topic(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        faults = broker.house.faults
        faults.fail_at = faults.count + 2
        broker.manager.settings = RemoteLogManagerSettings(retry_backoff_ms=1)
        tell = broker.house.metadata.put_remote_partition_delete_metadata

        async def tell_once(event: RemotePartitionDeleteMetadata) -> MetadataPosition:
            position = await tell(event)
            broker.owned = False
            return position

        broker.house.metadata.put_remote_partition_delete_metadata = tell_once  # type: ignore[method-assign]
        broker.delete_topic()
        assert await broker.objects_at_the_end() == 12
        (deletion,) = broker.house.metadata.remote_partition_deletions()
        assert deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED

    play(story)


def test_the_remote_part_goes_when_the_topic_ceases_to_be_tiered(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        broker.tier(enable=False)
        assert await broker.objects_at_the_end() == 0

    play(story)


def test_a_late_broker_removes_nothing_of_a_partition_that_is_led_and_tiered_elsewhere(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        broker.committed = lambda: broker.show(OTHER, epoch=1)
        broker.tier(enable=False)
        assert await broker.objects_at_the_end() == 12

    play(story)


def test_nothing_is_removed_of_a_topic_that_is_tiered_again(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        broker.committed = lambda: broker.tier(enable=True)
        broker.tier(enable=False)
        assert await broker.objects_at_the_end() == 12
        assert broker.manager.partitions == [PARTITION]

    play(story)


def test_a_leader_that_learns_of_its_successor_removes_nothing_more(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        delete = broker.house.storage.delete_log_segment_data

        async def delete_one(metadata: RemoteLogSegmentMetadata) -> None:
            await delete(metadata)
            broker.show(OTHER, epoch=1)

        broker.house.storage.delete_log_segment_data = delete_one  # type: ignore[method-assign]
        broker.tier(enable=False)
        assert await broker.objects_at_the_end() == 10

    play(story)


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.not_controller), TimeoutError()])
def test_removals_of_untiered_topics_wait_for_the_quorum(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(broker: TieredBroker) -> None:
        asked = asyncio.Event()

        def unknown() -> None:
            asked.set()
            raise error

        broker.manager.settings = RemoteLogManagerSettings(retry_backoff_ms=1)
        broker.committed = unknown
        broker.tier(enable=False)
        await asked.wait()
        assert len(await broker.house.storage.keys()) == 12
        broker.committed = lambda: None
        assert await broker.objects_at_the_end() == 0
        assert not [record for record in caplog.records if record.exc_info]

    play(story)


def test_an_election_during_a_cut_takes_effect_for_all_after_the_cut(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(broker: TieredBroker) -> None:
        tasks: list[str] = []
        monkeypatch.setattr(broker.manager, "lead", lambda *_, **__: tasks.append("lead"))
        monkeypatch.setattr(broker.manager, "follow", lambda *_: tasks.append("follow"))
        broker.show(OTHER, LOCAL, epoch=1)
        await broker.hosting.settled()
        assert tasks == ["follow"]
        broker.told.clear()
        async with broker.cut() as partition:
            broker.show(LOCAL, OTHER, epoch=2)
            await broker.hosting.settled()
            assert not partition.is_leader
            assert broker.told == []
        assert partition.is_leader
        assert broker.told == [("leads", 2)]
        assert tasks == ["follow", "lead"]

    play(story)


def test_of_two_elections_during_a_cut_the_later_one_counts(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        broker.show(OTHER, LOCAL, epoch=1)
        await broker.hosting.settled()
        broker.told.clear()
        async with broker.cut() as partition:
            broker.show(LOCAL, OTHER, epoch=2)
            broker.show(OTHER, LOCAL, epoch=3)
            await broker.hosting.settled()
        assert partition.leader_to_follow == OTHER
        assert partition.leader_epoch == 3
        assert broker.told == [("leads no more", 3)]

    play(story)


def test_a_replica_that_is_removed_during_a_cut_takes_no_role_after_it(
    play: Callable[[Callable[[TieredBroker], Awaitable[None]]], None],
) -> None:
    async def story(broker: TieredBroker) -> None:
        broker.show(OTHER, LOCAL, epoch=1)
        await broker.hosting.settled()
        async with broker.cut() as partition:
            broker.show(LOCAL, OTHER, epoch=2)
            broker.show(OTHER, epoch=3)
            assert partition.leader_to_follow is None, "its fetcher leaves it before its log goes"
            broker.told.clear()
        assert not partition.is_leader
        assert broker.told == []

    play(story)
