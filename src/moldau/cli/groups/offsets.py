"""Committed offsets of a group."""

from typing import NamedTuple

from moldau.client.cluster import MAX_OFFSET_VERSION, Client
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from moldau.runtime.errors import ErrorCode, KafkaError


class CommittedPosition(NamedTuple):
    """A group's next offset in a partition, and the metadata of the commit."""

    offset: int
    metadata: str


async def committed_offsets(client: Client, group: str) -> dict[str, dict[int, CommittedPosition]]:
    """Committed offsets by topic and partition. The result is empty for a group that has never committed."""

    async def attempt() -> dict[str, dict[int, CommittedPosition]]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
        coordinator = await client.coordinator(group)
        response = await client.ask(request, broker=coordinator, version_max=MAX_OFFSET_VERSION)
        (answer,) = response.groups
        if answer.error_code is not ErrorCode.none:
            raise KafkaError(answer.error_code, f"group {group}: {answer.error_code.name.upper()}")
        return {
            topic.name: {
                row.partition_index: CommittedPosition(row.committed_offset, row.metadata or "")
                for row in sorted(topic.partitions, key=lambda row: row.partition_index)
                if row.committed_offset >= 0
            }
            for topic in sorted(answer.topics, key=lambda topic: topic.name)
        }

    return await client.retrying(attempt)
