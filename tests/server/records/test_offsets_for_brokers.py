"""Requests of other brokers for offsets. A broker needs no right on the topic, and may read the whole log."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.network.authorization import AclOperation, AclResourceType, AllowEveryone, Authorizer
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.replication.partition_interface import FoundOffset, Partition
from moldau.runtime.errors import ErrorCode
from moldau.server.handlers.records.offsets import OffsetHandlers
from moldau.server.topics.registry import PartitionRegistry

WATERMARK, END = 3, 5


class Led:
    key, topic = PartitionKey(UUID(int=1), 0), "t"

    async def find_offset(self, timestamp_ms: int, *, is_replica: bool, **_: Any) -> FoundOffset:
        return FoundOffset(END if is_replica else WATERMARK, -1, 0)

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        return leader_epoch, END


class Allows:
    """An authorizer that allows one operation."""

    def __init__(self, operation: AclOperation) -> None:
        self._operation = operation

    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return operation is self._operation


def handlers(authorizer: Authorizer) -> OffsetHandlers:
    registry = PartitionRegistry(MetadataImage)
    registry.add(cast(Partition, Led()))
    return OffsetHandlers(registry, authorizer)


def context(api_key: ApiKey, version: int) -> RequestContext:
    return RequestContext(api_key, version, 0, None, ConnectionContext("c", "PLAINTEXT"))


@pytest.mark.parametrize(("replica_id", "offset"), [(-1, WATERMARK), (-2, END), (0, END), (7, END)])
def test_the_log_ends_at_the_watermark_only_for_clients(replica_id: int, offset: int) -> None:
    row = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
    request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name="t", partitions=[row])])
    answer = handlers(AllowEveryone()).list_offsets(context(ApiKey.LIST_OFFSETS, 7), request)
    assert asyncio.run(answer).topics[0].partitions[0].offset == offset


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (AclOperation.CLUSTER_ACTION, ErrorCode.none),
        (AclOperation.DESCRIBE, ErrorCode.none),
        (AclOperation.READ, ErrorCode.topic_authorization_failed),
    ],
)
def test_the_end_of_an_epoch_is_for_brokers_and_for_those_who_may_describe_the_topic(
    operation: AclOperation, error: ErrorCode
) -> None:
    row = OffsetForLeaderPartition(partition=0, leader_epoch=2)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[row])])
    answer = handlers(Allows(operation)).offset_for_leader_epoch(
        context(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4), request
    )
    assert answer.topics[0].partitions[0].error_code is error
