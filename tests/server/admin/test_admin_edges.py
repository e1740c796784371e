"""Requests of admin clients at the limits of Kafka, each with Kafka's error code."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from wire import ask

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.protocol.messages import create_topics as creation
from moldau.protocol.messages import delete_records as deletion
from moldau.protocol.messages import delete_topics as removal
from moldau.protocol.messages import describe_cluster as cluster
from moldau.protocol.messages import describe_producers as producers
from moldau.protocol.messages import describe_topic_partitions as pages
from moldau.protocol.messages import elect_leaders as election
from moldau.protocol.messages import metadata
from moldau.protocol.messages import produce as producing
from moldau.records import Record, build_batch
from moldau.runtime import ErrorCode
from moldau.testing import Node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as running:
        yield running


def create(node: Node, name: str, partitions: int = 1, **configs: str) -> UUID:
    rows = [
        creation.CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    topic = creation.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=rows)
    (made,) = ask(node, creation.CreateTopicsRequest(topics=[topic], timeout_ms=60_000)).topics
    assert made.error_code is ErrorCode.none, made
    found: UUID = made.topic_id
    return found


def deleted_records(node: Node, topic: str, offset: int) -> Any:
    row = deletion.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [deletion.DeleteRecordsTopic(name=topic, partitions=[row])]
    return ask(node, deletion.DeleteRecordsRequest(topics=topics, timeout_ms=60_000)).topics[0].partitions[0]


def test_a_topic_that_is_named_twice_is_not_deleted(node: Node) -> None:
    topic_id = create(node, "twice")
    states = [removal.DeleteTopicState(name="twice"), removal.DeleteTopicState(topic_id=topic_id, name=None)]
    for entries in (states, [states[0]] * 2, [states[1]] * 2):
        (row,) = ask(node, removal.DeleteTopicsRequest(topics=entries, timeout_ms=60_000)).responses
        assert row.error_code is ErrorCode.invalid_request
    (row,) = ask(node, removal.DeleteTopicsRequest(topics=[states[1]], timeout_ms=60_000)).responses
    assert (row.error_code, row.name) == (ErrorCode.none, "twice")


def test_records_of_a_compacted_topic_are_not_deleted(node: Node) -> None:
    for name, policy, code in (
        ("kept-by-key", "compact", ErrorCode.policy_violation),
        ("kept-by-both", "compact,delete", ErrorCode.none),
        ("said-twice", "delete,delete", ErrorCode.none),
    ):
        create(node, name, cleanup_policy=policy)
        data = producing.PartitionProduceData(index=0, records=build_batch([Record(0, 1, b"k", b"v")] * 3))
        topics = [producing.TopicProduceData(name=name, partition_data=[data])]
        ask(node, producing.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics), 12)
        assert deleted_records(node, name, 2).error_code is code
    assert deleted_records(node, CONSUMER_OFFSETS_TOPIC, 0).error_code is ErrorCode.invalid_topic_exception


def test_a_cursor_without_a_partition(node: Node) -> None:
    create(node, "paged", 3)

    def answered(*names: str, cursor: tuple[str, int], limit: int = 10) -> list[tuple[int, str, list[int]]]:
        request = pages.DescribeTopicPartitionsRequest(
            topics=[pages.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=pages.DescribeTopicPartitionsRequestCursor(
                topic_name=cursor[0], partition_index=cursor[1]
            ),
        )
        return [
            (row.error_code, row.name, [each.partition_index for each in row.partitions])
            for row in ask(node, request).topics
        ]

    refused = ErrorCode.invalid_request
    assert answered("paged", cursor=("paged", 1)) == [(ErrorCode.none, "paged", [1, 2])]
    assert answered("paged", cursor=("paged", 9)) == [(ErrorCode.none, "paged", [])]
    assert answered("paged", cursor=("paged", -5)) == [(refused, "paged", [])]
    assert answered("paged", "absent", cursor=("other", 0)) == [
        (refused, "paged", []),
        (refused, "absent", []),
    ]
    assert answered("paged", "absent", cursor=("absent", 0)) == [
        (ErrorCode.unknown_topic_or_partition, "absent", []),
        (ErrorCode.none, "paged", [0, 1, 2]),
    ]


def test_metadata_names_a_topic_once(node: Node) -> None:
    create(node, "wanted-twice")
    wanted = [metadata.MetadataRequestTopic(name=name) for name in ("wanted-twice", "absent", "wanted-twice")]
    answer = ask(node, metadata.MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
    assert [topic.name for topic in answer.topics] == ["wanted-twice", "absent"]


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (9, ErrorCode.unsupported_endpoint_type)],
)
def test_endpoints_that_a_broker_does_not_know(node: Node, endpoint_type: int, code: ErrorCode) -> None:
    answer = ask(node, cluster.DescribeClusterRequest(endpoint_type=endpoint_type))
    assert answer.error_code is code


def test_producers_of_a_topic_with_an_invalid_name(node: Node) -> None:
    topics = [producers.TopicRequest(name=name, partition_indexes=[0]) for name in ("a b", "absent")]
    answer = ask(node, producers.DescribeProducersRequest(topics=topics))
    assert [topic.partitions[0].error_code for topic in answer.topics] == [
        ErrorCode.invalid_topic_exception,
        ErrorCode.unknown_topic_or_partition,
    ]


def test_an_election_of_an_unknown_kind(node: Node) -> None:
    create(node, "elected")
    wanted = [election.TopicPartitions(topic="elected", partitions=[0])]
    request = election.ElectLeadersRequest(election_type=5, topic_partitions=wanted, timeout_ms=60_000)
    answer = ask(node, request)
    assert answer.error_code is ErrorCode.invalid_request
    (row,) = answer.replica_election_results[0].partition_result
    assert row.error_code is ErrorCode.invalid_request
