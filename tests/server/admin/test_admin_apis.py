"""Requests of admin clients through the whole server."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from wire import ask

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.protocol.messages import alter_configs as alteration
from moldau.protocol.messages import alter_partition_reassignments as reassignment
from moldau.protocol.messages import alter_replica_log_dirs as moves
from moldau.protocol.messages import create_partitions as growth
from moldau.protocol.messages import create_topics as creation
from moldau.protocol.messages import describe_configs as described
from moldau.protocol.messages import describe_log_dirs as dirs
from moldau.protocol.messages import describe_producers as producers
from moldau.protocol.messages import describe_quorum as quorum
from moldau.protocol.messages import describe_topic_partitions as pages
from moldau.protocol.messages import elect_leaders as election
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.messages import list_config_resources as resources
from moldau.protocol.messages import list_partition_reassignments as reassignments
from moldau.protocol.messages import metadata
from moldau.protocol.messages import offset_delete as forgetting
from moldau.protocol.messages import produce as producing
from moldau.protocol.messages import update_features as features
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode, SystemClock
from moldau.testing import Node

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as running:
        yield running


def create(node: Node, name: str, partitions: int = 1, **configs: str) -> ErrorCode:
    topic = creation.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            creation.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    answer = ask(node, creation.CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    code: ErrorCode = answer.topics[0].error_code
    return code


def alter(node: Node, kind: int, name: str, key: str, value: str | None, operation: int = SET) -> Any:
    config = incremental.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return ask(node, incremental.IncrementalAlterConfigsRequest(resources=[resource])).responses[0]


def config(node: Node, kind: int, name: str, key: str) -> Any:
    resource = described.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=[key]
    )
    answer = ask(node, described.DescribeConfigsRequest(resources=[resource], include_synonyms=True))
    return answer.results[0].configs[0]


def produce(node: Node, topic: str, key: bytes | None = b"k", size: int = 10, partition: int = 0) -> Any:
    batch = build_batch([Record(0, SystemClock().now_ms(), key, b"v" * size)])
    data = producing.PartitionProduceData(index=partition, records=batch)
    request = producing.ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=[producing.TopicProduceData(name=topic, partition_data=[data])],
    )
    return ask(node, request, 9).responses[0].partition_responses[0]


def test_new_partitions_exist_when_the_response_arrives(node: Node) -> None:
    assert create(node, "grows", 2) is ErrorCode.none

    def grow(count: int, **more: Any) -> ErrorCode:
        topic = growth.CreatePartitionsTopic(name="grows", count=count, assignments=None)
        request = growth.CreatePartitionsRequest(topics=[topic], timeout_ms=60_000, **more)
        code: ErrorCode = ask(node, request).results[0].error_code
        return code

    assert grow(5, validate_only=True) is ErrorCode.none
    assert produce(node, "grows", partition=4).error_code is ErrorCode.unknown_topic_or_partition
    assert grow(5) is ErrorCode.none
    assert produce(node, "grows", partition=4).error_code is ErrorCode.none
    assert grow(5) is ErrorCode.invalid_partitions
    assert grow(4) is ErrorCode.invalid_partitions


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ({"name": "", "num_partitions": 1, "replication_factor": 1}, ErrorCode.invalid_topic_exception),
        ({"name": "a/b", "num_partitions": 1, "replication_factor": 1}, ErrorCode.invalid_topic_exception),
        ({"name": "..", "num_partitions": 1, "replication_factor": 1}, ErrorCode.invalid_topic_exception),
        (
            {"name": "x" * 250, "num_partitions": 1, "replication_factor": 1},
            ErrorCode.invalid_topic_exception,
        ),
        ({"name": "n", "num_partitions": 0, "replication_factor": 1}, ErrorCode.invalid_partitions),
        ({"name": "n", "num_partitions": 1, "replication_factor": 0}, ErrorCode.invalid_replication_factor),
        ({"name": "n", "num_partitions": 1, "replication_factor": 2}, ErrorCode.invalid_replication_factor),
        ({"name": "there", "num_partitions": 1, "replication_factor": 1}, ErrorCode.topic_already_exists),
        ({"name": "the.re", "num_partitions": 1, "replication_factor": 1}, ErrorCode.none),
        ({"name": "the_re", "num_partitions": 1, "replication_factor": 1}, ErrorCode.invalid_topic_exception),
        (
            {
                "name": "n",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [creation.CreatableReplicaAssignment(partition_index=1, broker_ids=[1])],
            },
            ErrorCode.invalid_replica_assignment,
        ),
        (
            {
                "name": "n",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [creation.CreatableReplicaAssignment(partition_index=0, broker_ids=[9])],
            },
            ErrorCode.invalid_replica_assignment,
        ),
        (
            {
                "name": "n",
                "num_partitions": 1,
                "replication_factor": -1,
                "assignments": [creation.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            },
            ErrorCode.invalid_request,
        ),
        (
            {
                "name": "n",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [creation.CreatableTopicConfig(name="retention.ms", value="soon")],
            },
            ErrorCode.invalid_config,
        ),
        (
            {
                "name": "n",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [creation.CreatableTopicConfig(name="no.such.key", value="1")],
            },
            ErrorCode.invalid_config,
        ),
    ],
)
def test_topics_are_refused_for_kafkas_reasons(topic: dict[str, Any], code: ErrorCode) -> None:
    with Node() as node:
        create(node, "there")
        create(node, "the.re") if topic["name"] == "the_re" else None
        for validate_only in (True, False):
            request = creation.CreateTopicsRequest(
                topics=[creation.CreatableTopic(**topic)], timeout_ms=60_000, validate_only=validate_only
            )
            result = ask(node, request).topics[0]
            assert result.error_code is code, result.error_message


def test_a_topic_named_twice_is_refused_and_the_others_are_made(node: Node) -> None:
    topics = [
        creation.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("twice", "once", "twice")
    ]
    answer = ask(node, creation.CreateTopicsRequest(topics=topics, timeout_ms=60_000))
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes == {"twice": ErrorCode.invalid_request, "once": ErrorCode.none}


def lookup(node: Node, *names: str, auto: bool = True) -> dict[str, ErrorCode]:
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=auto
    )
    return {topic.name: topic.error_code for topic in ask(node, request).topics}


def test_topics_are_created_automatically_where_this_is_allowed(node: Node) -> None:
    assert lookup(node, "wished", "in valid", auto=False) == {
        "wished": ErrorCode.unknown_topic_or_partition,
        "in valid": ErrorCode.invalid_topic_exception,
    }
    assert lookup(node, "wished", "in valid") == {
        "wished": ErrorCode.none,
        "in valid": ErrorCode.invalid_topic_exception,
    }
    with Node(properties={"auto.create.topics.enable": "false"}) as strict:
        assert lookup(strict, "wished") == {"wished": ErrorCode.unknown_topic_or_partition}


def test_an_internal_topic_that_is_looked_up_gets_its_own_configs() -> None:
    with Node() as node:
        assert lookup(node, CONSUMER_OFFSETS_TOPIC) == {CONSUMER_OFFSETS_TOPIC: ErrorCode.none}
        assert config(node, TOPIC, CONSUMER_OFFSETS_TOPIC, "cleanup.policy").value == "compact"


def test_authorized_operations_are_returned_on_request(node: Node) -> None:
    create(node, "told")
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name="told")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = ask(node, request, 10)
    # Kafka's answer without an authorizer.
    assert (answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations) == (
        3576,
        8096,
    )


def test_a_topics_config_takes_effect_immediately(node: Node) -> None:
    create(node, "small")
    assert produce(node, "small", size=500).error_code is ErrorCode.none
    assert alter(node, TOPIC, "small", "max.message.bytes", "200").error_code is ErrorCode.none
    assert produce(node, "small", size=500).error_code is ErrorCode.message_too_large
    assert alter(node, TOPIC, "small", "max.message.bytes", None, DELETE).error_code is ErrorCode.none
    assert produce(node, "small", size=500).error_code is ErrorCode.none
    assert alter(node, TOPIC, "small", "max.message.bytes", "-4").error_code is ErrorCode.invalid_config
    assert alter(node, TOPIC, "none", "max.message.bytes", "4").error_code in (
        ErrorCode.unknown_topic_or_partition,
    )


def test_alter_configs_replaces_all_configs_of_a_resource(node: Node) -> None:
    create(node, "replaced", retention_ms="5")
    resource = alteration.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="replaced",
        configs=[alteration.AlterableConfig(name="flush.ms", value="7")],
    )
    answer = ask(node, alteration.AlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code is ErrorCode.none
    assert config(node, TOPIC, "replaced", "retention.ms").value == "604800000"
    assert config(node, TOPIC, "replaced", "flush.ms").value == "7"


def test_a_brokers_config_takes_effect_immediately() -> None:
    with Node() as node:
        create(node, "t")
        assert alter(node, BROKER, "", "message.max.bytes", "200").error_code is ErrorCode.none
        assert produce(node, "t", size=500).error_code is ErrorCode.message_too_large
        assert alter(node, BROKER, "1", "message.max.bytes", "2000").error_code is ErrorCode.none
        assert produce(node, "t", size=500).error_code is ErrorCode.none
        row = config(node, TOPIC, "t", "max.message.bytes")
        assert row.value == "2000"
        assert {one.name for one in row.synonyms} == {"message.max.bytes"}
        assert [(one.value, one.source) for one in row.synonyms] == [("2000", 2), ("200", 3), ("1048588", 5)]
        alter(node, BROKER, "", "log.retention.ms", "1234")
        assert config(node, TOPIC, "t", "retention.ms").value == "1234"
        read_only = alter(node, BROKER, "1", "log.dirs", "/elsewhere")
        assert read_only.error_code in (ErrorCode.invalid_request, ErrorCode.invalid_config)
        nobody_in = alter(node, BROKER, "", "max.connections", "0")
        assert nobody_in.error_code is ErrorCode.invalid_request


def test_lists_are_changed_item_by_item(node: Node) -> None:
    create(node, "listed")
    assert alter(node, TOPIC, "listed", "cleanup.policy", "compact", APPEND).error_code is ErrorCode.none
    assert config(node, TOPIC, "listed", "cleanup.policy").value == "delete,compact"
    refused = alter(node, TOPIC, "listed", "retention.ms", "1", APPEND)
    assert refused.error_code in (ErrorCode.invalid_config, ErrorCode.invalid_request)


def test_a_compacted_topic_wants_keys(node: Node) -> None:
    create(node, "keyed", cleanup_policy="compact")
    refused = produce(node, "keyed", key=None)
    assert refused.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in refused.record_errors] == [0]
    assert produce(node, "keyed").error_code is ErrorCode.none


def test_log_dirs_shows_the_replicas_of_each_folder(node: Node) -> None:
    create(node, "lies", 2)
    produce(node, "lies", size=1000)
    every = ask(node, dirs.DescribeLogDirsRequest(topics=None)).results
    assert [result.log_dir for result in every] == [node.data]
    sizes = {
        (topic.name, row.partition_index): row.partition_size
        for topic in every[0].topics
        for row in topic.partitions
    }
    assert sizes["lies", 0] > 1000
    assert sizes["lies", 1] == 0
    (folder,) = every
    space = shutil.disk_usage(node.data)
    assert folder.total_bytes == space.total
    assert 0 < folder.usable_bytes <= space.total
    some = dirs.DescribableLogDirTopic(topic="lies", partitions=[1, 7])
    for version in (1, 2, 3, 4):
        answer = ask(node, dirs.DescribeLogDirsRequest(topics=[some]), version)
        found = [(t.name, [r.partition_index for r in t.partitions]) for t in answer.results[0].topics]
        assert found == [("lies", [1])]


def test_replicas_do_not_move_between_folders(node: Node) -> None:
    create(node, "stays")

    def move(path: str, name: str) -> ErrorCode:
        topic = moves.AlterReplicaLogDirTopic(name=name, partitions=[0])
        request = moves.AlterReplicaLogDirsRequest(dirs=[moves.AlterReplicaLogDir(path=path, topics=[topic])])
        code: ErrorCode = ask(node, request).results[0].partitions[0].error_code
        return code

    assert move(node.data, "stays") is ErrorCode.none
    assert move("/nowhere", "stays") is ErrorCode.log_dir_not_found
    assert move(node.data, "gone") is ErrorCode.replica_not_available


def test_partitions_are_described_page_by_page() -> None:
    with Node() as node:
        counts = {"a": 3, "b": 1, "c": 4}
        for name, count in counts.items():
            create(node, name, count)
        found: list[tuple[str, int]] = []
        cursor = None
        for _ in range(10):
            request = pages.DescribeTopicPartitionsRequest(response_partition_limit=3, cursor=cursor)
            answer = ask(node, request)
            rows = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
            assert len(rows) <= 3
            found += rows
            if answer.next_cursor is None:
                break
            cursor = pages.DescribeTopicPartitionsRequestCursor(
                topic_name=answer.next_cursor.topic_name,
                partition_index=answer.next_cursor.partition_index,
            )
        assert found == [(name, index) for name, count in counts.items() for index in range(count)]
        wanted = [pages.TopicRequest(name=name) for name in ("b", "none", "no/name", "b")]
        answer = ask(node, pages.DescribeTopicPartitionsRequest(topics=wanted))
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "b": ErrorCode.none,
            "none": ErrorCode.unknown_topic_or_partition,
            "no/name": ErrorCode.invalid_topic_exception,
        }


def test_config_resources_are_listed(node: Node) -> None:
    create(node, "resource")
    every = ask(node, resources.ListConfigResourcesRequest())
    rows = {(row.resource_type, row.resource_name) for row in every.config_resources}
    assert {(TOPIC, "resource"), (BROKER, "1")} <= rows
    some = ask(node, resources.ListConfigResourcesRequest(resource_types=[BROKER]))
    assert [row.resource_name for row in some.config_resources] == ["1"]
    assert not ask(node, resources.ListConfigResourcesRequest(), 0).config_resources
    unknown = ask(node, resources.ListConfigResourcesRequest(resource_types=[99]))
    assert unknown.error_code is ErrorCode.unsupported_version


def test_the_quorum_is_described(node: Node) -> None:
    def describe(topic: str, version: int) -> Any:
        part = quorum.DescribeQuorumRequestPartitionData(partition_index=0)
        data = quorum.DescribeQuorumRequestTopicData(topic_name=topic, partitions=[part])
        return ask(node, quorum.DescribeQuorumRequest(topics=[data]), version)

    for version in range(3):
        row = describe(CLUSTER_METADATA_TOPIC, version).topics[0].partitions[0]
        assert (row.error_code, row.leader_id) == (ErrorCode.none, 1)
        assert [voter.replica_id for voter in row.current_voters] == [1]
        assert row.high_watermark > 0
    assert [found.node_id for found in describe(CLUSTER_METADATA_TOPIC, 2).nodes] == [1]
    other = describe("t", 2).topics[0].partitions[0]
    assert other.error_code is ErrorCode.unknown_topic_or_partition


def test_leaders_and_reassignments(node: Node) -> None:
    create(node, "led", 2)
    parts = election.TopicPartitions(topic="led", partitions=[0, 1, 9])
    answer = ask(node, election.ElectLeadersRequest(topic_partitions=[parts], timeout_ms=60_000))
    rows = {row.partition_id: row.error_code for row in answer.replica_election_results[0].partition_result}
    assert rows == {
        0: ErrorCode.election_not_needed,
        1: ErrorCode.election_not_needed,
        9: ErrorCode.unknown_topic_or_partition,
    }
    part = reassignment.ReassignablePartition(partition_index=0, replicas=[5])
    topic = reassignment.ReassignableTopic(name="led", partitions=[part])
    request = reassignment.AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=60_000)
    refused = ask(node, request).responses[0].partitions[0]
    assert refused.error_code is ErrorCode.invalid_replica_assignment
    listed = ask(node, reassignments.ListPartitionReassignmentsRequest(topics=None, timeout_ms=60_000))
    assert (listed.error_code, list(listed.topics)) == (ErrorCode.none, [])


def test_features_are_updated_or_refused(node: Node) -> None:
    update = features.FeatureUpdateKey(feature="no.such.feature", max_version_level=1, upgrade_type=1)
    answer = ask(node, features.UpdateFeaturesRequest(feature_updates=[update], timeout_ms=60_000))
    codes = {answer.error_code, *(row.error_code for row in answer.results)}
    assert codes & {ErrorCode.invalid_update_version, ErrorCode.feature_update_failed}


def test_producers_are_described(node: Node) -> None:
    create(node, "produced")
    topic = producers.TopicRequest(name="produced", partition_indexes=[0, 3])
    rows = ask(node, producers.DescribeProducersRequest(topics=[topic])).topics[0].partitions
    assert [row.error_code for row in rows] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


def test_offsets_of_an_unknown_group_cannot_be_deleted(node: Node) -> None:
    part = forgetting.OffsetDeleteRequestPartition(partition_index=0)
    topic = forgetting.OffsetDeleteRequestTopic(name="t", partitions=[part])
    answer = ask(node, forgetting.OffsetDeleteRequest(group_id="nobody", topics=[topic]))
    assert answer.error_code in (
        ErrorCode.group_id_not_found,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
    )
