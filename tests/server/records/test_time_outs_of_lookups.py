"""The time-out in ListOffsets (KIP-1075)."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.network.authorization import AllowEveryone
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import FoundOffset, Partition
from moldau.server.handlers.records.offsets import OffsetHandlers
from moldau.server.topics.registry import PartitionRegistry


class Asked:
    """A partition that remembers the deadlines of its lookups."""

    topic = "t"

    def __init__(self, index: int) -> None:
        self.key = PartitionKey(UUID(int=1), index)
        self.deadlines_s: list[float | None] = []

    async def find_offset(self, timestamp_ms: int, *, deadline_s: float | None, **_: Any) -> FoundOffset:
        self.deadlines_s.append(deadline_s)
        return FoundOffset()


@pytest.mark.parametrize(("timeout_ms", "deadline_s"), [(0, None), (-5, None), (2_500, 102.5)])
def test_all_lookups_of_a_request_have_one_deadline(timeout_ms: int, deadline_s: float | None) -> None:
    """Without a time-out in the request, remote.list.offsets.request.timeout.ms counts."""
    registry, partitions = PartitionRegistry(MetadataImage), [Asked(0), Asked(1)]
    for each in partitions:
        registry.add(cast(Partition, each))
    rows = [ListOffsetsPartition(partition_index=index, timestamp=7) for index in (0, 1)]
    topics = [ListOffsetsTopic(name="t", partitions=[row]) for row in rows]
    request = ListOffsetsRequest(topics=topics, timeout_ms=timeout_ms)
    connection = ConnectionContext("c", "PLAINTEXT")
    context = RequestContext(ApiKey.LIST_OFFSETS, 10, 0, None, connection, received_at=100.0)
    asyncio.run(OffsetHandlers(registry, AllowEveryone()).list_offsets(context, request))
    assert [each.deadlines_s for each in partitions] == [[deadline_s], [deadline_s]]
