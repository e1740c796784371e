"""Fetch checks the rights of its principal by the name of the topic, for every form of the request."""

import asyncio
from typing import cast
from uuid import UUID

import pytest

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic, TopicsImage
from moldau.network.authorization import AclOperation, AclResourceType
from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import Partition, ReadAnswer, ReadOutcome, ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.errors import ErrorCode
from moldau.server.handlers.records.fetch import FetchHandlers
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.requests.fetch_sessions import FetchSessions
from moldau.server.topics.registry import PartitionRegistry

OPEN, SECRET, GONE = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES = {OPEN: "open", SECRET: "secret"}


class Readable:
    def __init__(self, topic_id: UUID, index: int) -> None:
        self.key, self.topic = PartitionKey(topic_id, index), NAMES[topic_id]

    def read(self, request: ReadRequest) -> ReadAnswer:
        return ReadOutcome(views=(b"bytes",), size_bytes=5)


class RecordingAuthorizer:
    """An authorizer that forbids access to one name, which is a topic or the cluster."""

    def __init__(self, forbidden: str) -> None:
        self.forbidden = forbidden
        self.asked: list[tuple[AclOperation, str]] = []

    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        self.asked.append((operation, name))
        return name != self.forbidden


def fetch(
    authorizer: RecordingAuthorizer, version: int, topics: list[UUID], replica_id: int = -1
) -> list[list[ErrorCode]]:
    """The error code in the response for each topic and partition."""

    async def ask() -> FetchResponse:
        image = MetadataImage(topics=TopicsImage().updated([Topic(n, i, ()) for i, n in NAMES.items()], []))
        registry = PartitionRegistry(lambda: image)
        for topic_id in NAMES:
            for index in range(2):
                registry.add(cast(Partition, Readable(topic_id, index)))
        rows = [FetchPartition(partition=index, partition_max_bytes=100) for index in range(2)]
        named = [
            FetchTopic(topic_id=topic_id, partitions=rows)
            if version >= 13
            else FetchTopic(topic=NAMES[topic_id], partitions=rows)
            for topic_id in topics
        ]
        request = FetchRequest(
            replica_id=replica_id,
            replica_state=ReplicaState(replica_id=replica_id),
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=1000,
            session_epoch=-1,
            topics=named,
        )
        handlers = FetchHandlers(
            FetchServices(registry, WaitingRoom(), FetchSessions(0, lambda: 1), authorizer, 1 << 20)
        )
        answer = handlers.fetch(RequestContext(1, version, 0, None, ConnectionContext("c", "P")), request)
        assert isinstance(answer, FetchResponse)
        return answer

    answer = asyncio.run(ask())
    return [[row.error_code for row in topic.partitions] for topic in answer.responses]


NONE, FORBIDDEN = ErrorCode.none, ErrorCode.topic_authorization_failed


@pytest.mark.parametrize("version", [12, 13, 18])
def test_a_consumer_reads_only_the_topics_that_it_may_read(version: int) -> None:
    authorizer = RecordingAuthorizer("secret")
    assert fetch(authorizer, version, [OPEN, SECRET]) == [[NONE, NONE], [FORBIDDEN, FORBIDDEN]]
    assert authorizer.asked == [(AclOperation.READ, "open"), (AclOperation.READ, "secret")]


def test_an_id_without_a_topic_is_unknown_without_a_check_of_rights() -> None:
    authorizer = RecordingAuthorizer("secret")
    assert fetch(authorizer, 13, [GONE]) == [[ErrorCode.unknown_topic_id] * 2]
    assert authorizer.asked == []


@pytest.mark.parametrize("version", [12, 13, 18])
def test_a_follower_may_read_all_or_nothing(version: int) -> None:
    authorizer = RecordingAuthorizer("kafka-cluster")
    assert fetch(authorizer, version, [OPEN], replica_id=2) == [[FORBIDDEN, FORBIDDEN]]
    assert authorizer.asked == [(AclOperation.CLUSTER_ACTION, "kafka-cluster")]
    assert fetch(RecordingAuthorizer("open"), version, [OPEN], replica_id=2) == [[NONE, NONE]]
