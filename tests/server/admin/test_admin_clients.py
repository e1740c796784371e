"""Admin clients of other projects send requests that no other clients send."""

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient

from moldau.testing import Node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        admin.create_topics([NewTopic("t", num_partitions=2, replication_factor=1)])["t"].result(60)
        yield running


@pytest.fixture
def librdkafka(node: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap_servers})


@pytest.fixture
def kafka_python(node: Node) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=node.bootstrap_servers)
    yield admin
    admin.close()


def test_librdkafka_sees_new_partitions_immediately(librdkafka: AdminClient) -> None:
    librdkafka.create_topics([NewTopic("grows", num_partitions=1, replication_factor=1)])["grows"].result(60)
    librdkafka.create_partitions([NewPartitions("grows", 3)])["grows"].result(60)
    described = librdkafka.describe_topics(TopicCollection(["grows"]), include_authorized_operations=True)[
        "grows"
    ].result(60)
    assert len(described.partitions) == 3
    assert AclOperation.DELETE in described.authorized_operations


def test_librdkafka_elects_leaders_and_describes_the_cluster(librdkafka: AdminClient) -> None:
    elected = librdkafka.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]).result(60)
    assert [error.name() for error in elected.values()] == ["ELECTION_NOT_NEEDED"]
    cluster = librdkafka.describe_cluster(include_authorized_operations=True).result(60)
    assert (cluster.controller.id, [one.id for one in cluster.nodes]) == (1, [1])
    assert AclOperation.ALTER in cluster.authorized_operations


def test_librdkafka_learns_that_there_are_no_acls(librdkafka: AdminClient) -> None:
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    with pytest.raises(KafkaException) as refused:
        librdkafka.describe_acls(every).result(60)
    assert refused.value.args[0].name() == "_UNSUPPORTED_FEATURE"


def test_kafka_python_describes_disks_quorum_and_pages(kafka_python: KafkaAdminClient, node: Node) -> None:
    (broker,) = kafka_python.describe_log_dirs()
    (folder,) = broker["log_dirs"]
    assert folder["log_dir"] == node.data
    assert {"t"} <= {topic["name"] for topic in folder["topics"]}
    (topic,) = kafka_python.describe_metadata_quorum()["topics"]
    assert topic["partitions"][0]["leader_id"] == 1
    page = kafka_python.describe_topic_partitions(["t"], response_partition_limit=1)
    assert [row["partition_index"] for row in page["topics"][0]["partitions"]] == [0]
    assert page["next_cursor"] == {"topic_name": "t", "partition_index": 1}


def test_kafka_python_lists_resources_features_and_reassignments(kafka_python: KafkaAdminClient) -> None:
    assert "t" in kafka_python.list_config_resources()["topic"]
    features = kafka_python.describe_features()
    assert features["metadata.version"]["finalized"] == features["metadata.version"]["supported"][1:] * 2
    assert kafka_python.list_partition_reassignments() == {}


def test_kafka_python_lists_no_transactions(kafka_python: KafkaAdminClient) -> None:
    assert not any(kafka_python.list_transactions().values())
