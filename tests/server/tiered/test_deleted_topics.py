"""A topic counts as deleted only if the committed metadata still do not contain it after a grace period."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.server.subsystems.tiered.deleted_topics import DeletedTopics
from moldau.simulation.world.world import World

OLD, NEW = UUID(int=1), UUID(int=2)
GRACE_S = 4.0


class Broker:
    """The image of a broker, and committed metadata that are not in the image yet."""

    def __init__(self) -> None:
        self.image = self.committed = MetadataImage()
        self.asked = self.woken = 0
        self.has_quorum = True
        self.deleted = DeletedTopics(lambda: self.image, self.until_current, GRACE_S, self.wake)

    def wake(self) -> None:
        self.woken += 1

    async def until_current(self) -> None:
        self.asked += 1
        if not self.has_quorum:
            raise KafkaError(ErrorCode.not_controller)
        self.image = self.committed


def with_topic(topic_id: UUID) -> MetadataImage:
    return MetadataImage(topics=TopicsImage().updated([Topic("t", topic_id, ())], []))


def play(story: Callable[[Broker], Awaitable[None]]) -> None:
    async def told(machine: Machine) -> None:
        await story(Broker())

    with World(1) as world:
        process = world.host("broker").start(told)
        assert process.main is not None
        world.run(process.main)
        assert not world.errors()


def test_a_topic_in_the_image_is_not_looked_up_in_the_committed_metadata() -> None:
    async def story(broker: Broker) -> None:
        broker.image = with_topic(OLD)
        await asyncio.sleep(2 * GRACE_S)
        assert await broker.deleted.among({OLD}) == set()
        assert (broker.asked, broker.woken) == (0, 0)

    play(story)


def test_a_deleted_topic_counts_as_deleted_after_the_grace() -> None:
    async def story(broker: Broker) -> None:
        assert await broker.deleted.among({OLD}) == set()
        assert broker.asked == 0
        await asyncio.sleep(GRACE_S)
        assert broker.woken == 1
        assert await broker.deleted.among({OLD}) == {OLD}

    play(story)


def test_a_topic_that_a_late_image_does_not_have_yet_is_kept() -> None:
    async def story(broker: Broker) -> None:
        broker.committed = with_topic(NEW)
        await broker.deleted.among({OLD, NEW})
        await asyncio.sleep(100)
        assert await broker.deleted.among({OLD, NEW}) == {OLD}

    play(story)


def test_the_grace_period_begins_again_for_a_topic_that_was_seen_meanwhile() -> None:
    async def story(broker: Broker) -> None:
        await broker.deleted.among({OLD})
        broker.image = with_topic(OLD)
        await broker.deleted.among({OLD})
        broker.image = MetadataImage()
        await asyncio.sleep(2 * GRACE_S)
        assert await broker.deleted.among({OLD}) == set()

    play(story)


def test_nothing_is_deleted_without_a_quorum() -> None:
    async def story(broker: Broker) -> None:
        broker.has_quorum = False
        await broker.deleted.among({OLD})
        await asyncio.sleep(2 * GRACE_S)
        with pytest.raises(KafkaError):
            await broker.deleted.among({OLD})

    play(story)
