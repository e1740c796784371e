"""The error of ListOffsets while a new leader does not know the committed end of its log yet (KIP-207)."""

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
