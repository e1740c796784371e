"""The calls about remote segments (APIs 11660 and 11661). The interface is the same for a broker in this
process and for a broker that is called over the network."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from moldau.network.own_calls import BrokerCall, BrokerChannel
from moldau.protocol.own.rights import Right
from moldau.protocol.own.tiered import describe_topics as topics_wire
from moldau.protocol.own.tiered import list_segments as segments_wire
from moldau.protocol.own.tiered.describe_topics import TieredDescribedTopic
from moldau.protocol.own.tiered.list_segments import TieredSegment

__all__ = ["CALLS", "ListSegmentsCall", "ListedSegments", "NetworkTieredCalls", "TieredCalls"]


class ListSegmentsCall(NamedTuple):
    """List a page of the remote segments of a partition."""

    topic: str
    partition_index: int
    skip: int = 0
    """Number of segments to skip. They are counted in the order of start offsets."""
    limit: int = 1000


class ListedSegments(NamedTuple):
    """A page of remote segments in any state."""

    topic_id: UUID
    segments: list[TieredSegment]


class TieredCalls(Protocol):
    """A broker's remote tier, as tools use it. If a call fails as a whole, it raises ``KafkaError``.

    UNSUPPORTED_VERSION means that the broker has no remote tier.
    """

    async def describe_topics(self, names: Collection[str] | None) -> list[TieredDescribedTopic]:
        """Offsets and sizes of both tiers, for partitions that the broker leads. ``None`` means all
        partitions that the broker leads."""
        ...

    async def list_segments(self, call: ListSegmentsCall) -> ListedSegments: ...


async def _serve_topics(tier: TieredCalls, names: Collection[str] | None) -> list[TieredDescribedTopic]:
    return await tier.describe_topics(names)


DESCRIBE_TOPICS: Final[BrokerCall[TieredCalls, Collection[str] | None, list[TieredDescribedTopic]]] = (
    BrokerCall(
        request=topics_wire.REQUEST,
        response=topics_wire.RESPONSE,
        right=Right.CLUSTER_ACTION,
        serve=_serve_topics,
        request_fields=lambda names, version: {"topics": None if names is None else list(names)},
        arguments=lambda request: request.topics,
        response_fields=lambda topics, version: {"topics": topics},
        result=lambda response: list(response.topics),
    )
)


async def _serve_segments(tier: TieredCalls, call: ListSegmentsCall) -> ListedSegments:
    return await tier.list_segments(call)


LIST_SEGMENTS: Final[BrokerCall[TieredCalls, ListSegmentsCall, ListedSegments]] = BrokerCall(
    request=segments_wire.REQUEST,
    response=segments_wire.RESPONSE,
    right=Right.READ_TOPIC,
    topics=lambda request: (request.topic,),
    serve=_serve_segments,
    request_fields=lambda call, version: call._asdict(),
    arguments=lambda request: ListSegmentsCall(
        request.topic, request.partition_index, request.skip, request.limit
    ),
    response_fields=lambda listed, version: listed._asdict(),
    result=lambda response: ListedSegments(response.topic_id, list(response.segments)),
)

CALLS: Final[Mapping[int, BrokerCall[TieredCalls, Any, Any]]] = MappingProxyType(
    {call.api_key: call for call in (DESCRIBE_TOPICS, LIST_SEGMENTS)}
)


class NetworkTieredCalls:
    """Sends the calls of tools to a broker over the network. Implements :class:`TieredCalls`."""

    def __init__(self, channel: BrokerChannel) -> None:
        self._channel = channel

    async def describe_topics(self, names: Collection[str] | None) -> list[TieredDescribedTopic]:
        return await self._channel.call(DESCRIBE_TOPICS, names)

    async def list_segments(self, call: ListSegmentsCall) -> ListedSegments:
        return await self._channel.call(LIST_SEGMENTS, call)
