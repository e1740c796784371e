"""Creation of topics for requests and subsystems that need them."""

import asyncio
import contextlib
from typing import Final

from moldau.cluster.decisions.topic_names import check_name
from moldau.cluster.internal_topics import InternalTopic
from moldau.runtime.background import Background
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.context import BrokerContext
from moldau.server.extensions import Extensions
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.topics.topic_creation import TopicCreator

TOPIC_RETRY_S: Final = 5.0


class TopicsSubsystem(Subsystem):
    """Creates auto-created topics and the internal topics that the subsystems contribute."""

    def __init__(
        self, context: BrokerContext, extensions: Extensions, partitions: PartitionsSubsystem
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._background = Background()
        self._waiting: dict[str, InternalTopic] = {}
        """Internal topics that wait for more active brokers."""
        self.creator = TopicCreator(
            context.view,
            context.channel,
            self._until_served,
            _name_error,
            auto_create=context.config.flag("auto.create.topics.enable"),
            internal=extensions.internal_topics,
        )

    def contribution(self) -> Contribution:
        return Contribution(checks={"topics": self._problem})

    async def ensure(self, topic: InternalTopic) -> None:
        """Create an internal topic if it does not exist, and wait until it exists. Raises
        ``KafkaError(coordinator_not_available)`` if the topic cannot be created."""
        await self.creator.ensure(topic)

    async def ensure_soon(self, topic: InternalTopic) -> None:
        """Create an internal topic. If the controller refuses it, retry in the background.

        If fewer brokers are active than the topic needs replicas, the background waits for more brokers, for
        at most :data:`TOPIC_RETRY_S`. The preferred leaders of a new topic are active brokers. So without the
        wait, the first broker of a new cluster could become the preferred leader of all partitions.
        """
        if self._lacks_brokers_for(topic):
            self._background.run(self._ensure_with_more_brokers(topic))
            return
        try:
            await self.creator.ensure(topic)
        except KafkaError:
            self._background.run(self._ensure_later(topic))

    def _lacks_brokers_for(self, topic: InternalTopic) -> bool:
        if self._context.view.image.topics.get(topic.name) is not None:
            return False
        return self._active_count() < topic.replication_factor

    def _active_count(self) -> int:
        return sum(1 for _ in self._context.view.image.active_brokers())

    async def stop(self) -> None:
        await self._background.close()
        await self.creator.close()

    async def _ensure_with_more_brokers(self, topic: InternalTopic) -> None:
        publisher = self._context.metadata.publisher
        self._waiting[topic.name] = topic
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOPIC_RETRY_S):
                await publisher.until(lambda: not self._lacks_brokers_for(topic))
        del self._waiting[topic.name]
        try:
            await self.creator.ensure(topic)
        except KafkaError:
            await self._ensure_later(topic)

    async def _ensure_later(self, topic: InternalTopic) -> None:
        while True:
            await asyncio.sleep(TOPIC_RETRY_S)
            with contextlib.suppress(KafkaError):
                await self.creator.ensure(topic)
                return

    async def _until_served(self, topic: str) -> None:
        view = self._context.view
        await self._context.metadata.publisher.until(lambda: view.image.topics.get(topic) is not None)
        await self._partitions.settled()

    def _problem(self) -> str | None:
        """Return a sentence about an internal topic that was needed but could not be created; None if there
        is no such topic."""
        reasons = dict(self.creator.refusals)
        for name, topic in self._waiting.items():
            factor = topic.replication_factor
            reasons[name] = (
                f"{self._active_count()} of {factor} brokers are active ({topic.factor_key}={factor})"
            )
        return next((f"{name} cannot be created yet: {reason}" for name, reason in reasons.items()), None)


def _name_error(name: str) -> ErrorCode | None:
    try:
        check_name(name)
    except KafkaError as error:
        return error.code
    return None
