"""Asking the brokers of a cluster about the remote tier, by APIs that they do not advertise."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from moldau.cli.errors import CommandError
from moldau.client.cluster import Client, Endpoint
from moldau.protocol.own.tiered_describe_topics import (
    TieredDescribedPartition,
    TieredDescribeTopicsRequest,
)
from moldau.protocol.own.tiered_list_segments import TieredListSegmentsRequest, TieredSegment
from moldau.runtime.errors import ErrorCode, KafkaError

SEGMENTS_A_PAGE: Final = 1000


@dataclass(slots=True)
class TieredTopic:
    """A topic, as the leaders of its partitions see it."""

    name: str
    topic_id: UUID
    partitions: dict[int, TieredDescribedPartition] = field(default_factory=dict)


async def _ask(client: Client, broker: Endpoint, request: Any) -> Any:
    response = await client.ask(request, broker=broker, version=0)
    code: ErrorCode = response.error_code
    if code is not ErrorCode.none:
        raise KafkaError(code, response.error_message or code.name)
    return response


async def describe_topics(client: Client, names: list[str]) -> list[TieredTopic]:
    """The named topics or, without names, all that are tiered; a name that is none is an error."""

    async def ask_all() -> list[TieredTopic]:
        topics: dict[UUID, TieredTopic] = {}
        for broker in (await client.metadata([])).brokers:
            request = TieredDescribeTopicsRequest(topics=names or None)
            for found in (await _ask(client, Endpoint(broker.host, broker.port), request)).topics:
                topic = topics.setdefault(found.topic_id, TieredTopic(found.name, found.topic_id))
                topic.partitions.update({row.partition_index: row for row in found.partitions})
        return sorted(topics.values(), key=lambda topic: topic.name)

    topics = await client.retrying(ask_all)
    missing = set(names) - {topic.name for topic in topics}
    if missing:
        raise CommandError(f"no tiered topic is called {', '.join(sorted(missing))}")
    return topics


async def list_segments(
    client: Client, name: str, partition: int | None
) -> AsyncIterator[tuple[int, TieredSegment]]:
    """The remote segments of a topic, or of one partition of it, by start offset."""
    topic = await client.topic(name)
    if partition is not None and partition not in topic.leaders:
        raise CommandError(f"{name} has no partition {partition}")
    metadata = await client.metadata([])
    brokers = {row.node_id: Endpoint(row.host, row.port) for row in metadata.brokers}
    for index, leader in topic.leaders.items():
        if partition is not None and index != partition:
            continue
        skip = 0
        while True:
            request = TieredListSegmentsRequest(
                topic=name, partition_index=index, skip=skip, limit=SEGMENTS_A_PAGE
            )
            page = await _page(client, brokers[leader], request)
            for segment in page:
                yield index, segment
            if len(page) < SEGMENTS_A_PAGE:
                break
            skip += len(page)


async def _page(client: Client, broker: Endpoint, request: TieredListSegmentsRequest) -> list[TieredSegment]:
    async def ask() -> list[TieredSegment]:
        return list((await _ask(client, broker, request)).segments)

    return await client.retrying(ask)
