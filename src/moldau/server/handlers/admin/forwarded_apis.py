"""Requests that the active controller decides. The broker forwards them to the controller, and responds when
it has applied the result.

For example, a client that has just created a topic may use the topic on the same broker next. The broker
therefore responds only when it has the new image, and has applied the image to its partitions. Otherwise the
client would get errors such as "unknown topic" or "not leader".
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final

from moldau.cluster.controller.channel import Caller, ControllerChannel
from moldau.network.context import RequestContext
from moldau.network.served import Handler
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.requests.forwarding import decided_by, forward

VISIBLE_TIMEOUT_S: Final = 5.0

COORDINATORS_TIMEOUT_S: Final = 10.0
"""The longest wait of CreateTopics for the internal topic of the coordinators. A new cluster creates this
topic when enough brokers are active."""

_PAUSE_S: Final = 0.1
_SHARE: Final = 0.8
"""Share of the timeout of a request during which it is repeated. The client may measure the timeout, too."""
_NOT_DECIDED: Final = frozenset({ErrorCode.not_controller, ErrorCode.request_timed_out})
"""Errors of a controller that has not decided about a topic."""


class ForwardedHandlers:
    """Admin requests that change cluster metadata."""

    def __init__(
        self,
        controller: ControllerChannel,
        apis: Collection[ApiKey],
        until_image: "Callable[[Callable[[], bool]], asyncio.Future[None]]",
        settled: Callable[[], Awaitable[None]],
        partition_count: Callable[[str], int],
    ) -> None:
        """``apis`` are the APIs that are forwarded. If a request changes topics, its response waits until
        this broker's image shows the result.

        ``settled`` waits until this broker serves the partitions of its image. ``partition_count`` returns
        the number of partitions of a topic in the image. It is 0 when the topic does not exist.
        """
        self._controller = controller
        self._apis = apis
        self._until_image = until_image
        self._settled = settled
        self._partition_count = partition_count

    def table(self) -> dict[int, Handler]:
        handlers: dict[ApiKey, Handler] = dict.fromkeys(self._apis, self.forward)
        handlers[ApiKey.CREATE_TOPICS] = self.create_topics
        handlers[ApiKey.DELETE_TOPICS] = self.delete_topics
        handlers[ApiKey.CREATE_PARTITIONS] = self.create_partitions
        return {api: decided_by(handler, api) for api, handler in handlers.items()}

    async def forward(self, context: RequestContext, request: Message) -> Message:
        response: Message = await forward(self._controller, context, request)
        return response

    async def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> Message:
        response = await self._create_topics(context, request)
        created = [topic.name for topic in response.topics if topic.error_code is ErrorCode.none]
        if created and not request.validate_only:
            await self._visible(request.timeout_ms, lambda: all(map(self._partition_count, created)))
        return response

    async def _create_topics(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> CreateTopicsResponse:
        """Forward the request. If topics need coordinators that do not exist yet, their part of the request
        is repeated until shortly before its timeout, because librdkafka does not repeat it."""
        loop = asyncio.get_running_loop()
        until_s = context.received_at + min(_SHARE * request.timeout_ms / 1000, COORDINATORS_TIMEOUT_S)
        response: CreateTopicsResponse = await forward(self._controller, context, request)
        while loop.time() + _PAUSE_S < until_s:
            early = {
                row.name for row in response.topics if row.error_code is ErrorCode.coordinator_not_available
            }
            if not early:
                break
            await asyncio.sleep(_PAUSE_S)
            rest = replace(request, topics=[topic for topic in request.topics if topic.name in early])
            try:
                later = await self._controller.send(rest, Caller.of(context), until_s)
            except KafkaError:
                break  # The other topics are perhaps created, so their part of the response counts.
            rows = {row.name: row for row in later.topics if row.error_code not in _NOT_DECIDED}
            response = replace(response, topics=[rows.get(row.name, row) for row in response.topics])
        return response

    async def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> Message:
        if request.topic_names:
            # Requests before version 6 have the field ``topic_names``. The broker sends version 6 to the
            # controller, and this version has only the field ``topics``.
            topics = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
            request = DeleteTopicsRequest(topics=topics, timeout_ms=request.timeout_ms)
        response: DeleteTopicsResponse = await forward(self._controller, context, request)
        gone = [row.name for row in response.responses if row.error_code is ErrorCode.none and row.name]
        if gone:
            await self._visible(request.timeout_ms, lambda: not any(map(self._partition_count, gone)))
        return response

    async def create_partitions(self, context: RequestContext, request: CreatePartitionsRequest) -> Message:
        response: CreatePartitionsResponse = await forward(self._controller, context, request)
        done = {row.name for row in response.results if row.error_code is ErrorCode.none}
        if done and not request.validate_only:
            grown = [(topic.name, topic.count) for topic in request.topics if topic.name in done]
            await self._visible(
                request.timeout_ms,
                lambda: all(self._partition_count(name) >= count for name, count in grown),
            )
        return response

    async def _visible(self, timeout_ms: int, condition: Callable[[], bool]) -> None:
        async def visible() -> None:
            await self._until_image(condition)
            await self._settled()

        try:
            await asyncio.wait_for(visible(), max(VISIBLE_TIMEOUT_S, timeout_ms / 1000))
        except TimeoutError:
            # The change is committed, but this broker's image does not contain it yet.
            return
