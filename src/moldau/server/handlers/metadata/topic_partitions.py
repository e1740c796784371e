"""DescribeTopicPartitions (KIP-966) describes topics in pages. It is for clusters whose topics do not fit
into one response."""

from typing import Final

from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import MARKED_INTERNAL_TOPICS
from moldau.network.authorization import AclOperation, AclResourceType, Authorizer, authorized_operations
from moldau.network.context import RequestContext
from moldau.network.served import Handler
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from moldau.runtime.errors import ErrorCode
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.topics.topic_creation import TopicCreator

NO_CURSOR: Final = ("", 0)


class TopicPartitionHandlers:
    """Describes one page of partitions, in the order of topic names. The response also names the start of the
    next page."""

    def __init__(
        self, view: ClusterView, creator: TopicCreator, authorizer: Authorizer, partitions_max: int
    ) -> None:
        """``partitions_max`` is max.request.partition.size.limit."""
        self._view = view
        self._creator = creator
        self._authorizer = authorizer
        self._partitions_max = partitions_max

    def table(self) -> dict[int, Handler]:
        return {ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions}

    def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        start = NO_CURSOR
        if request.cursor is not None:
            start = (request.cursor.topic_name, request.cursor.partition_index)
            names = [topic.name for topic in request.topics]
            if start[1] < 0 or (names and start[0] not in names):
                # The response has no field for an error of the whole request. It has only fields for errors
                # of topics.
                return DescribeTopicPartitionsResponse(
                    topics=[_failed(name, ErrorCode.invalid_request) for name in names]
                )
        left = max(1, min(request.response_partition_limit, self._partitions_max))
        rows: list[DescribeTopicPartitionsResponseTopic] = []
        for name in self._names(context, request, rows):
            if name < start[0]:
                continue
            first = start[1] if name == start[0] else 0
            topic = self._view.image.topics.get(name)
            if topic is None:
                rows.append(_failed(name, ErrorCode.unknown_topic_or_partition))
                continue
            if not left:
                return _page(rows, name, 0)
            end = min(first + left, len(topic.partitions))
            rows.append(self._row(context, topic, first, end))
            left -= max(0, end - first)
            if end < len(topic.partitions):
                return _page(rows, name, end)
        return DescribeTopicPartitionsResponse(topics=rows)

    def _names(
        self,
        context: RequestContext,
        request: DescribeTopicPartitionsRequest,
        refused: list[DescribeTopicPartitionsResponseTopic],
    ) -> list[str]:
        """The topics that must be described, in order. If a topic cannot be described, a row with the error
        is added instead."""
        if not request.topics:
            names = [topic.name for topic in self._view.image.topics]
            return sorted(name for name in names if self._may_describe(context, name))
        found = []
        for name in sorted({topic.name for topic in request.topics}):
            if not self._may_describe(context, name):
                refused.append(_failed(name, ErrorCode.topic_authorization_failed))
            elif (error := self._creator.name_error(name)) is not None:
                refused.append(_failed(name, error))
            else:
                found.append(name)
        return found

    def _may_describe(self, context: RequestContext, name: str) -> bool:
        return self._authorizer.allows(context, AclOperation.DESCRIBE, AclResourceType.TOPIC, name)

    def _row(
        self, context: RequestContext, topic: Topic, first: int, end: int
    ) -> DescribeTopicPartitionsResponseTopic:
        alive = {broker.node_id for broker in self._view.brokers(context.listener_name)}
        leader_of = self._view.racks.shown_leaders(topic, context.client_id, alive)
        partitions = []
        for index, partition in enumerate(topic.partitions[first:end], start=first):
            leader = leader_of(index)
            partitions.append(
                DescribeTopicPartitionsResponsePartition(
                    error_code=ErrorCode.none if leader in alive else ErrorCode.leader_not_available,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=partition.replicas,
                    isr_nodes=partition.isr,
                    eligible_leader_replicas=partition.eligible_leader_replicas,
                    last_known_elr=partition.last_known_eligible_leader_replicas,
                    offline_replicas=self._view.offline_replicas(partition, alive),
                )
            )
        return DescribeTopicPartitionsResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in MARKED_INTERNAL_TOPICS,
            partitions=partitions,
            topic_authorized_operations=authorized_operations(
                self._authorizer, context, AclResourceType.TOPIC, topic.name
            ),
        )


def _failed(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=error, name=name)


def _page(
    rows: list[DescribeTopicPartitionsResponseTopic], name: str, partition: int
) -> DescribeTopicPartitionsResponse:
    cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=partition)
    return DescribeTopicPartitionsResponse(topics=rows, next_cursor=cursor)
