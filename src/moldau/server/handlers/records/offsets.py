"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: offsets of a partition."""

import asyncio
from collections import Counter
from itertools import islice
from typing import Final

from moldau.cluster.internal_topics import INTERNAL_TOPICS
from moldau.network.authorization import AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import acts_for_cluster
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import delete_records as deletion
from moldau.protocol.messages import list_offsets as listing
from moldau.protocol.messages import offset_for_leader_epoch as epochs
from moldau.protocol.rows import PARTITIONS
from moldau.protocol.schema import ZERO_UUID
from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.topics.registry import PartitionRegistry

READ_COMMITTED: Final = 1
_CLIENT_ID: Final = -1
"""The replica id of clients. Kafka treats requests with any other id as requests of replicas."""
_FIRST_VERSIONS: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""For each special timestamp, the first version of ListOffsets that defines it."""

_NOT_AVAILABLE_SINCE: Final = 5
"""First version of ListOffsets with OFFSET_NOT_AVAILABLE (KIP-207). The error of older versions is
LEADER_NOT_AVAILABLE."""


class OffsetHandlers:
    """Handlers of requests that look up offsets, or that delete the records before an offset."""

    def __init__(self, partitions: PartitionRegistry, authorizer: Authorizer) -> None:
        self._partitions = partitions
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {
            # Each entry of the request is handled by a separate task.
            ApiKey.LIST_OFFSETS: Served(self.list_offsets, cuts=(PARTITIONS._replace(rows=128),)),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(self.offset_for_leader_epoch, cuts=(PARTITIONS,)),
            ApiKey.DELETE_RECORDS: Served(self.delete_records, cuts=(PARTITIONS,)),
        }

    async def list_offsets(
        self, context: RequestContext, request: listing.ListOffsetsRequest
    ) -> listing.ListOffsetsResponse:
        read_committed = request.isolation_level == READ_COMMITTED
        is_replica = request.replica_id != _CLIENT_ID
        deadline_s = context.received_at + request.timeout_ms / 1000 if request.timeout_ms > 0 else None
        counts = Counter(
            (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        )
        searches = []
        for topic in request.topics:
            allowed = self._authorizer.allows(
                context, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.name
            )
            rows = []
            for part in topic.partitions:
                if not allowed:
                    refusal = ErrorCode.topic_authorization_failed
                elif counts[topic.name, part.partition_index] > 1:
                    refusal = ErrorCode.invalid_request
                elif context.api_version < _FIRST_VERSIONS.get(part.timestamp, 0):
                    refusal = ErrorCode.unsupported_version
                else:
                    rows.append(
                        self._list_one(context, topic.name, part, read_committed, is_replica, deadline_s)
                    )
                    continue
                rows.append(_refused(part.partition_index, refusal))
            searches.append(asyncio.gather(*rows))
        # All searches of the request run at the same time, because they have the same deadline.
        found = await asyncio.gather(*searches)
        return listing.ListOffsetsResponse(
            topics=[
                listing.ListOffsetsTopicResponse(name=topic.name, partitions=rows)
                for topic, rows in zip(request.topics, found, strict=True)
            ]
        )

    async def _list_one(
        self,
        context: RequestContext,
        topic: str,
        part: listing.ListOffsetsPartition,
        read_committed: bool,
        is_replica: bool,
        deadline_s: float | None,
    ) -> listing.ListOffsetsPartitionResponse:
        try:
            partition = self._partitions.find(topic, ZERO_UUID, part.partition_index)
            found = await partition.find_offset(
                part.timestamp,
                read_committed=read_committed,
                current_leader_epoch=part.current_leader_epoch,
                client=context.connection,
                is_replica=is_replica,
                deadline_s=deadline_s,
            )
        except KafkaError as error:
            code = error.code
            if code is ErrorCode.offset_not_available and context.api_version < _NOT_AVAILABLE_SINCE:
                code = ErrorCode.leader_not_available
            return listing.ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code)
        return listing.ListOffsetsPartitionResponse(
            partition_index=part.partition_index,
            offset=found.offset,
            timestamp=found.timestamp_ms,
            leader_epoch=found.leader_epoch,
        )

    def offset_for_leader_epoch(
        self, context: RequestContext, request: epochs.OffsetForLeaderEpochRequest
    ) -> epochs.OffsetForLeaderEpochResponse:
        topics = []
        # Brokers need no right on topics. Consumers need the right to describe the topic (KIP-320).
        is_broker = acts_for_cluster(self._authorizer, context)
        for topic in request.topics:
            allowed = is_broker or self._authorizer.allows(
                context, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.topic
            )
            rows = [self._epoch_end(topic.topic, part, allowed) for part in topic.partitions]
            topics.append(epochs.OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        return epochs.OffsetForLeaderEpochResponse(topics=topics)

    def _epoch_end(
        self, topic: str, part: epochs.OffsetForLeaderPartition, allowed: bool
    ) -> epochs.EpochEndOffset:
        if not allowed:
            return epochs.EpochEndOffset(
                partition=part.partition, error_code=ErrorCode.topic_authorization_failed
            )
        try:
            partition = self._partitions.find(topic, ZERO_UUID, part.partition)
            epoch, end = partition.end_offset_for_epoch(part.leader_epoch, part.current_leader_epoch)
        except KafkaError as error:
            return epochs.EpochEndOffset(partition=part.partition, error_code=error.code)
        return epochs.EpochEndOffset(partition=part.partition, leader_epoch=epoch, end_offset=end)

    async def delete_records(
        self, context: RequestContext, request: deletion.DeleteRecordsRequest
    ) -> deletion.DeleteRecordsResponse:
        # The deletions of all partitions run at the same time. One write to the disk, or to a coordinator's
        # log, can then contain the deletions of many partitions.
        rows = iter(
            await asyncio.gather(
                *(
                    self._delete_one(topic.name, part, allowed, request.timeout_ms)
                    for topic in request.topics
                    for allowed in [self._may_delete(context, topic.name)]
                    for part in topic.partitions
                )
            )
        )
        topics = [
            deletion.DeleteRecordsTopicResult(
                name=topic.name, partitions=list(islice(rows, len(topic.partitions)))
            )
            for topic in request.topics
        ]
        return deletion.DeleteRecordsResponse(topics=topics)

    def _may_delete(self, context: RequestContext, topic: str) -> bool:
        return self._authorizer.allows(context, AclOperation.DELETE, AclResourceType.TOPIC, topic)

    async def _delete_one(
        self, topic: str, part: deletion.DeleteRecordsPartition, allowed: bool, timeout_ms: int
    ) -> deletion.DeleteRecordsPartitionResult:
        try:
            if not allowed:
                raise KafkaError(ErrorCode.topic_authorization_failed)
            if topic in INTERNAL_TOPICS:
                raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic} is an internal topic")
            partition = self._partitions.find(topic, ZERO_UUID, part.partition_index)
            low_watermark = await partition.delete_records(part.offset, max(timeout_ms, 0) / 1000)
        except KafkaError as error:
            return deletion.DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1, error_code=error.code
            )
        return deletion.DeleteRecordsPartitionResult(
            partition_index=part.partition_index, low_watermark=low_watermark
        )


async def _refused(index: int, error: ErrorCode) -> listing.ListOffsetsPartitionResponse:
    return listing.ListOffsetsPartitionResponse(partition_index=index, error_code=error)
