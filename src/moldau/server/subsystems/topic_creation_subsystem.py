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
        """Create an internal topic. If the controller refuses it, retry in the background."""
        try:
            await self.creator.ensure(topic)
        except KafkaError:
            self._background.run(self._ensure_later(topic))

    async def stop(self) -> None:
        await self._background.close()
        await self.creator.close()

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
        refused = self.creator.refusals.items()
        return next((f"{name} cannot be created yet: {reason}" for name, reason in refused), None)


def _name_error(name: str) -> ErrorCode | None:
    try:
        check_name(name)
    except KafkaError as error:
        return error.code
    return None
