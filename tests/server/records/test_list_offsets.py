"""ListOffsets requests: the time-out (KIP-1075), and the error while a new leader does not know the committed
end of its log yet (KIP-207)."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.network.authorization import AllowEveryone
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.replication.partition_interface import FoundOffset, Partition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.offsets import OffsetHandlers
from moldau.server.topics.registry import PartitionRegistry


class NewLeader:
    key, topic = PartitionKey(UUID(int=1), 0), "t"

    async def find_offset(self, timestamp_ms: int, **_: Any) -> FoundOffset:
        raise KafkaError(ErrorCode.offset_not_available)


@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)]
)
def test_clients_of_old_versions_get_an_error_that_they_know(version: int, error: ErrorCode) -> None:
    registry = PartitionRegistry(MetadataImage)
    registry.add(cast(Partition, NewLeader()))
    row = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[row])])
    context = RequestContext(ApiKey.LIST_OFFSETS, version, 0, None, ConnectionContext("c", "PLAINTEXT"))
    response = asyncio.run(OffsetHandlers(registry, AllowEveryone()).list_offsets(context, request))
    assert response.topics[0].partitions[0].error_code is error


class Asked:
    """A partition that remembers the deadlines of its lookups."""

    def __init__(self, index: int) -> None:
        self.topic = "t"
        self.key = PartitionKey(UUID(int=1), index)
        self.deadlines_s: list[float | None] = []

    async def find_offset(self, timestamp_ms: int, *, deadline_s: float | None, **_: Any) -> FoundOffset:
        self.deadlines_s.append(deadline_s)
        return FoundOffset(timestamp_ms)


class Together(Asked):
    """A partition whose lookup ends when the lookups of all partitions have begun."""

    def __init__(self, index: int, all_begun: asyncio.Barrier) -> None:
        super().__init__(index)
        self.topic = f"t{index}"
        self._all_begun = all_begun

    async def find_offset(self, timestamp_ms: int, **options: Any) -> FoundOffset:
        await self._all_begun.wait()
        return await super().find_offset(timestamp_ms, **options)


async def list_all(partitions: list[Asked], timeout_ms: int) -> ListOffsetsResponse:
    """Look up a timestamp in each partition. The timestamp is the index of the partition."""
    registry = PartitionRegistry(MetadataImage)
    for each in partitions:
        registry.add(cast(Partition, each))
    topics = [
        ListOffsetsTopic(
            name=each.topic,
            partitions=[
                ListOffsetsPartition(partition_index=each.key.partition, timestamp=each.key.partition)
            ],
        )
        for each in partitions
    ]
    request = ListOffsetsRequest(topics=topics, timeout_ms=timeout_ms)
    connection = ConnectionContext("c", "PLAINTEXT")
    context = RequestContext(ApiKey.LIST_OFFSETS, 10, 0, None, connection, received_at=100.0)
    return await OffsetHandlers(registry, AllowEveryone()).list_offsets(context, request)


@pytest.mark.parametrize(("timeout_ms", "deadline_s"), [(0, None), (-5, None), (2_500, 102.5)])
def test_all_lookups_of_a_request_have_one_deadline(timeout_ms: int, deadline_s: float | None) -> None:
    """Without a time-out in the request, remote.list.offsets.request.timeout.ms counts."""
    partitions = [Asked(0), Asked(1)]
    asyncio.run(list_all(partitions, timeout_ms))
    assert [each.deadlines_s for each in partitions] == [[deadline_s], [deadline_s]]


def test_lookups_of_different_topics_do_not_wait_for_each_other() -> None:
    async def story() -> ListOffsetsResponse:
        all_begun = asyncio.Barrier(3)
        async with asyncio.timeout(60):
            return await list_all([Together(index, all_begun) for index in range(3)], 2_500)

    response = asyncio.run(story())
    assert [(each.name, each.partitions[0].offset) for each in response.topics] == [
        ("t0", 0),
        ("t1", 1),
        ("t2", 2),
    ]
