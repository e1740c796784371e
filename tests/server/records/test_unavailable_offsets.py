"""The errors of ListOffsets while a new leader does not know the committed end of its log yet (KIP-207), and
for a search that takes longer than the client waits (KIP-1075)."""

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
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.replication.partition_interface import FoundOffset, Partition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.handlers.records.offsets import OffsetHandlers
from moldau.server.topics.registry import PartitionRegistry
from moldau.simulation.world.world import World


class NewLeader:
    key, topic = PartitionKey(UUID(int=1), 0), "t"

    async def find_offset(self, timestamp_ms: int, **_: Any) -> FoundOffset:
        raise KafkaError(ErrorCode.offset_not_available)


@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)]
)
def test_clients_of_old_versions_get_an_error_that_they_know(version: int, error: ErrorCode) -> None:
    assert asyncio.run(ask(NewLeader(), version)) is error


async def ask(partition: "NewLeader | Slow", version: int, timeout_ms: int = 0) -> ErrorCode:
    registry = PartitionRegistry(MetadataImage)
    registry.add(cast(Partition, partition))
    row = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
    topics = [ListOffsetsTopic(name="t", partitions=[row])]
    request = ListOffsetsRequest(topics=topics, timeout_ms=timeout_ms)
    context = RequestContext(ApiKey.LIST_OFFSETS, version, 0, None, ConnectionContext("c", "PLAINTEXT"))
    response = await OffsetHandlers(registry, AllowEveryone()).list_offsets(context, request)
    error: ErrorCode = response.topics[0].partitions[0].error_code
    return error


class Slow(NewLeader):
    """A partition whose search ends when the test permits."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def find_offset(self, timestamp_ms: int, **_: Any) -> FoundOffset:
        await self.may_end.wait()
        return FoundOffset(3)


def test_a_search_ends_with_the_time_out_of_the_client() -> None:
    async def run() -> None:
        assert await ask(Slow(), 10, timeout_ms=1) is ErrorCode.request_timed_out
        # Older versions have no time-out, and 0 means that there is none.
        for version, timeout_ms in ((9, 1), (10, 0)):
            slow = Slow()
            asking = asyncio.create_task(ask(slow, version, timeout_ms))
            await asyncio.sleep(60)
            slow.may_end.set()
            assert await asking is ErrorCode.none

    with World(1) as world:  # in virtual time
        world.run(run())
