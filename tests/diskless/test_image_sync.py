"""Coordinators detect the deletion of topics even without a notification."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from writer_fakes import run_in_virtual_time

from moldau.cluster.image.topics_image import PartitionRegistration, Topic
from moldau.coordinators.diskless.calls import PartitionsToCreate, TopicResult
from moldau.diskless.image_sync import ImageSync
from moldau.runtime import ErrorCode, KafkaError, Machine


class OneCoordinator:
    """Coordinator 0 and the list of existing topics. Another broker led this coordinator before."""

    def __init__(self, *topic_ids: UUID) -> None:
        self.coordinator_ids = [0]
        self.topics = set(topic_ids)
        self.created: list[UUID] = []
        self.calls: list[Sequence[PartitionsToCreate]] = []
        self.is_loaded = True

    def is_active(self, coordinator_id: int) -> bool:
        return self.is_loaded

    async def create_partitions(
        self, coordinator_id: int, topics: Sequence[PartitionsToCreate]
    ) -> Sequence[TopicResult]:
        self.calls.append(topics)
        self.created += [topic.topic_id for topic in topics]
        self.topics.update(topic.topic_id for topic in topics)
        return []

    async def delete_topics(self, coordinator_id: int, topic_ids: Sequence[UUID]) -> Sequence[TopicResult]:
        self.topics.difference_update(topic_ids)
        return []

    async def topic_ids(self, coordinator_id: int) -> frozenset[UUID]:
        return frozenset(self.topics)


async def nothing_new() -> None:
    """Return immediately, because the broker's metadata contain all committed changes."""


def topic(number: int) -> Topic:
    partition = PartitionRegistration(
        replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0, owner=0
    )
    return Topic(f"topic-{number}", UUID(int=number), (partition,))


def test_a_topic_whose_deletion_is_not_notified_is_deleted_and_never_created_again() -> None:
    async def story(machine: Machine) -> None:
        kept, deleted = topic(1), topic(2)
        coordinator = OneCoordinator(kept.topic_id, deleted.topic_id)
        sync = ImageSync(coordinator, lambda: [kept], nothing_new)
        await sync.run_once()
        # This broker's metadata may be older than the topic. So the coordinator keeps a topic that is not in
        # the broker's metadata until a later check.
        assert coordinator.topics == {kept.topic_id, deleted.topic_id}
        await asyncio.sleep(60)
        await sync.run_once()
        assert coordinator.topics == {kept.topic_id}
        assert set(coordinator.created) == {kept.topic_id}

    run_in_virtual_time(story)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 2_500), (3, 700), (250, 1)])
def test_many_partitions_are_created_in_several_calls(topics: int, partitions: int) -> None:
    """A single call with all topics would block the event loop."""

    async def story(machine: Machine) -> None:
        known = [
            Topic(f"topic-{number}", UUID(int=number), topic(1).partitions * partitions)
            for number in range(1, topics + 1)
        ]
        coordinator = OneCoordinator()
        await ImageSync(coordinator, lambda: known, nothing_new).run_once()
        for call in coordinator.calls:
            assert len(call) <= 100
            assert sum(len(each.partition_indexes) for each in call) <= 1_000
        created = [
            (each.topic_id.int, index)
            for call in coordinator.calls
            for each in call
            for index in each.partition_indexes
        ]
        assert created == [(n, index) for n in range(1, topics + 1) for index in range(partitions)]

    run_in_virtual_time(story)


def test_a_topic_that_the_metadata_learns_of_later_is_kept() -> None:
    async def story(machine: Machine) -> None:
        topics = [topic(1)]
        coordinator = OneCoordinator(topic(1).topic_id, topic(2).topic_id)
        sync = ImageSync(coordinator, lambda: topics, nothing_new)
        await sync.run_once()
        topics.append(topic(2))
        for _ in range(3):
            await asyncio.sleep(60)
            await sync.run_once()
        assert coordinator.topics == {topic(1).topic_id, topic(2).topic_id}

    run_in_virtual_time(story)


def test_a_topic_is_not_deleted_because_the_metadata_of_this_broker_are_late() -> None:
    async def story(machine: Machine) -> None:
        topics = [topic(1)]
        coordinator = OneCoordinator(topic(1).topic_id, topic(2).topic_id)

        async def catch_up() -> None:
            topics.append(topic(2))

        sync = ImageSync(coordinator, lambda: topics, catch_up)
        for _ in range(3):
            await sync.run_once()
            await asyncio.sleep(60)
        assert coordinator.topics == {topic(1).topic_id, topic(2).topic_id}

    run_in_virtual_time(story)


def test_no_topic_is_deleted_while_the_committed_metadata_are_unknown() -> None:
    async def story(machine: Machine) -> None:
        coordinator = OneCoordinator(topic(2).topic_id)

        async def no_quorum() -> None:
            raise KafkaError(ErrorCode.not_controller)

        sync = ImageSync(coordinator, list, no_quorum)
        await sync.run_once()
        for _ in range(3):
            await asyncio.sleep(60)
            with pytest.raises(KafkaError):
                await sync.run_once()
        assert coordinator.topics == {topic(2).topic_id}

    run_in_virtual_time(story)


def test_no_topic_is_deleted_for_lack_of_metadata_while_deletions_are_held() -> None:
    async def story(machine: Machine) -> None:
        kept, unknown = topic(1), topic(2)
        coordinator = OneCoordinator(kept.topic_id, unknown.topic_id)
        held = [True]
        sync = ImageSync(coordinator, lambda: [kept], nothing_new, lambda: held[0])
        for _ in range(3):
            await sync.run_once()
            await asyncio.sleep(60)
        assert coordinator.topics == {kept.topic_id, unknown.topic_id}
        held[0] = False
        for _ in range(2):
            await sync.run_once()
            await asyncio.sleep(60)
        assert coordinator.topics == {kept.topic_id}

    run_in_virtual_time(story)


def test_changes_reach_a_coordinator_that_is_loaded_again_within_its_term() -> None:
    async def story(machine: Machine) -> None:
        kept, deleted, new = topic(1), topic(2), topic(3)
        topics = [kept, deleted]
        coordinator = OneCoordinator()
        sync = ImageSync(coordinator, lambda: topics, nothing_new)
        await sync.run_once()
        # An append failed, so the coordinator's shard is loaded from its log again. The leader epoch does not
        # change.
        coordinator.is_loaded = False
        topics[:] = [kept, new]
        sync.topics_changed([new], [deleted])
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                await sync.run_once()
            assert refused.value.code is ErrorCode.coordinator_load_in_progress
        coordinator.is_loaded = True
        await sync.run_once()
        assert coordinator.topics == {kept.topic_id, new.topic_id}

    run_in_virtual_time(story)
