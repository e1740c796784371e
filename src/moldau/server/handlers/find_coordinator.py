"""FindCoordinator: finds the broker that leads the partition to which a key belongs."""

from collections.abc import Callable, Mapping
from typing import Final

from moldau.cluster.internal_topics import InternalTopic
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from moldau.protocol.rows import Cut
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.coordinators.entry import KeyLookup
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.topics.topic_creation import TopicCreator

_BATCHED_VERSION: Final = 4


class CoordinatorHandlers:
    """The FindCoordinator API. It creates the coordinators' topic at the first request."""

    def __init__(
        self,
        view: ClusterView,
        creator: TopicCreator,
        lookups: Callable[[], Mapping[int, tuple[InternalTopic, KeyLookup]]],
    ) -> None:
        """``lookups`` returns the topic and the :class:`KeyLookup` of each key type. It is called for each
        key of a request."""
        self._view = view
        self._creator = creator
        self._lookups = lookups

    def table(self) -> dict[int, Handler]:
        cut = Cut(("coordinator_keys",), ("coordinators",))
        return {ApiKey.FIND_COORDINATOR: Served(self.find_coordinator, cuts=(cut,))}

    async def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        if context.api_version >= _BATCHED_VERSION:
            found = [await self._find(context, request.key_type, key) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = await self._find(context, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _find(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        try:
            return await self._locate(context, key_type, key)
        except KafkaError as error:
            return Coordinator(
                key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
            )

    async def _locate(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        found = self._lookups().get(key_type)
        if found is None:
            raise KafkaError(
                ErrorCode.invalid_request, f"coordinator type {key_type} is not supported by this broker"
            )
        topic, lookup = found
        lookup.check(context)
        await self._creator.ensure(topic)
        # The actual number of the topic's partitions is used. The configured number applies only when the
        # topic is created.
        created = self._view.image.topics.get(topic.name)
        count = topic.partition_count if created is None else len(created.partitions)
        leader = self._view.leader_of(topic.name, lookup.partition_of(key, count))
        broker = None if leader is None else self._view.broker(leader, context.listener_name)
        if broker is None:
            raise KafkaError(ErrorCode.coordinator_not_available)
        return Coordinator(
            key=key, node_id=broker.node_id, host=broker.host, port=broker.port, error_message=None
        )
