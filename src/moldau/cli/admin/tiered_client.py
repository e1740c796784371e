"""Requests to the brokers of a cluster about the remote tier. They use APIs that brokers do not advertise."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from moldau.cli.errors import CommandError
from moldau.client.cluster import Client
from moldau.network.client.node_connection import NodeAddress
from moldau.protocol.own.tiered.describe_topics import TieredDescribedPartition
from moldau.protocol.own.tiered.list_segments import TieredSegment
from moldau.tiered.calls import ListSegmentsCall, NetworkTieredCalls

SEGMENTS_A_PAGE: Final = 1000


@dataclass(slots=True)
class TieredTopic:
    """A topic as the leaders of its partitions describe it."""

    name: str
    topic_id: UUID
    partitions: dict[int, TieredDescribedPartition] = field(default_factory=dict)


async def describe_topics(client: Client, names: list[str]) -> list[TieredTopic]:
    """The named topics, or all tiered topics if no name is given. A name that does not belong to a tiered
    topic is an error."""

    async def ask_all() -> list[TieredTopic]:
        topics: dict[UUID, TieredTopic] = {}
        for broker in (await client.metadata([])).brokers:
            tier = NetworkTieredCalls(client.channel(NodeAddress(broker.host, broker.port)))
            for found in await tier.describe_topics(names or None):
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
    """The remote segments of a topic, or of one partition of the topic, by start offset."""
    topic = await client.topic(name)
    if partition is not None and partition not in topic.leaders:
        raise CommandError(f"{name} has no partition {partition}")
    metadata = await client.metadata([])
    brokers = {row.node_id: NodeAddress(row.host, row.port) for row in metadata.brokers}
    for index, leader in topic.leaders.items():
        if partition is not None and index != partition:
            continue
        skip = 0
        while True:
            call = ListSegmentsCall(name, index, skip, SEGMENTS_A_PAGE)
            page = await _page(client, brokers[leader], call)
            for segment in page:
                yield index, segment
            if len(page) < SEGMENTS_A_PAGE:
                break
            skip += len(page)


async def _page(client: Client, broker: NodeAddress, call: ListSegmentsCall) -> list[TieredSegment]:
    async def ask() -> list[TieredSegment]:
        return (await NetworkTieredCalls(client.channel(broker)).list_segments(call)).segments

    return await client.retrying(ask)
