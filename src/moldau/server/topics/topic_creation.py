"""Creation of topics when a request needs them: auto-created topics and internal topics."""

import asyncio
import logging
from collections import ChainMap
from collections.abc import Awaitable, Callable

from moldau.cluster.controller.channel import Caller, ControllerChannel
from moldau.cluster.internal_topics import InternalTopic
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.gathered_lines import GatheredLines
from moldau.server.metadata.cluster_view import ClusterView

logger = logging.getLogger(__name__)


class TopicCreator:
    """Requests topics from the controller. Each topic is requested once, even when many requests need it."""

    def __init__(
        self,
        view: ClusterView,
        controller: ControllerChannel,
        until_seen: Callable[[str], Awaitable[None]],
        name_error: Callable[[str], ErrorCode | None],
        *,
        auto_create: bool,
        internal: dict[str, InternalTopic] | None = None,
        timeout_ms: int = 30_000,
    ) -> None:
        """``internal`` topics get their own properties, even if a client's request creates them. More
        internal topics may be added later."""
        self._internal: ChainMap[str, InternalTopic] = ChainMap({}, {} if internal is None else internal)
        self._view = view
        self._controller = controller
        self._until_seen = until_seen
        self._name_error = name_error
        self._timeout_ms = timeout_ms
        self.auto_create = auto_create
        self._under_way: dict[str, asyncio.Task[ErrorCode]] = {}
        self._refused_lines = GatheredLines(
            logger, logging.WARNING, "%d topics were not created automatically: %s (%s)"
        )
        self.refusals: dict[str, str] = {}
        """Internal topics whose last creation failed, with the reason."""

    def name_error(self, name: str) -> ErrorCode | None:
        """The error of an invalid topic name; None for a valid name."""
        return self._name_error(name)

    async def create_automatically(self, names: list[str], caller: Caller) -> dict[str, ErrorCode]:
        """Create topics with the broker's defaults, for a client. Returns the failures by name."""
        refused = {name: error for name in names if (error := self._name_error(name)) is not None}
        names = [name for name in names if name not in refused]
        topics = [self._wanted(name) for name in names]
        errors = await asyncio.gather(*(self._once(topic, caller) for topic in topics))
        return refused | {
            name: error for name, error in zip(names, errors, strict=True) if error is not ErrorCode.none
        }

    def _wanted(self, name: str) -> CreatableTopic:
        internal = self._internal.get(name)
        if internal is None:
            return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        return self._internal_topic(internal)

    def _internal_topic(self, topic: InternalTopic) -> CreatableTopic:
        # The configured replication factor is used even if there are too few brokers now. If the topic was
        # created with fewer replicas, it would keep this number of replicas later.
        return CreatableTopic(
            name=topic.name,
            num_partitions=topic.partition_count,
            replication_factor=topic.replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
        )

    async def ensure(self, topic: InternalTopic) -> None:
        """Create an internal topic if it does not exist, and wait until it exists. Raises
        ``KafkaError(coordinator_not_available)`` if the topic cannot be created."""
        if self._view.image.topics.get(topic.name) is not None:
            return
        self._internal[topic.name] = topic
        error = await self._once(self._internal_topic(topic))
        if error is not ErrorCode.none:
            reason = self.refusals.get(topic.name, error.name)
            raise KafkaError(ErrorCode.coordinator_not_available, f"{topic.name} cannot be created: {reason}")

    async def _once(self, topic: CreatableTopic, caller: Caller | None = None) -> ErrorCode:
        task = self._under_way.get(topic.name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(topic, caller))
            self._under_way[topic.name] = task
            task.add_done_callback(lambda _: self._under_way.pop(topic.name, None))
        return await asyncio.shield(task)

    async def _create(self, topic: CreatableTopic, caller: Caller | None) -> ErrorCode:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self._timeout_ms, validate_only=False)
        try:
            response = await self._controller.send(request, caller)
        except KafkaError as error:
            return error.code
        result = response.topics[0]
        error_code: ErrorCode = result.error_code
        if error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
            self.refusals.pop(topic.name, None)
            await self._until_seen(topic.name)
            return ErrorCode.none
        if topic.name in self._internal:
            self._note_refusal(self._internal[topic.name], error_code, result.error_message)
        else:
            self._refused_lines.add(topic.name, result.error_message or error_code.name)
        return error_code

    def _note_refusal(self, topic: InternalTopic, error: ErrorCode, message: str | None) -> None:
        reason = message or error.name
        if error is ErrorCode.invalid_replication_factor:
            reason = f"{reason} ({topic.factor_key}={topic.replication_factor})"
        if self.refusals.get(topic.name) != reason:
            self.refusals[topic.name] = reason
            logger.warning("%s cannot be created yet: %s", topic.name, reason)

    async def close(self) -> None:
        """Cancel the requests in progress."""
        tasks = list(self._under_way.values())
        self._refused_lines.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
