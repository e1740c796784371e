"""Requests of librdkafka's admin client."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from deadlines import TIMEOUT_S
from librdkafka_clients import Deliveries, create, producer, read_all


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def error_code(call: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as refused:
        call()
    return int(refused.value.args[0].code())


def test_topics_are_created_described_and_deleted(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(TIMEOUT_S)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert all(len(partition.isr) == 1 for partition in described.partitions)
    assert not described.is_internal
    again = admin.create_topics([NewTopic(topic, 1, 1)])[topic]
    assert error_code(lambda: again.result(TIMEOUT_S)) == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics
    gone = admin.delete_topics([topic])[topic]
    assert error_code(lambda: gone.result(TIMEOUT_S)) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("new", "code"),
    [
        ({"num_partitions": 0, "replication_factor": 1}, KafkaError.INVALID_PARTITIONS),
        ({"num_partitions": 1, "replication_factor": 3}, KafkaError.INVALID_REPLICATION_FACTOR),
        ({"num_partitions": 1, "config": {"no.such": "1"}}, KafkaError.INVALID_CONFIG),
        ({"num_partitions": 1, "config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
    ],
)
def test_creations_that_kafka_refuses(
    admin: AdminClient, topic: str, new: dict[str, object], code: int
) -> None:
    future = admin.create_topics([NewTopic(topic, **new)])[topic]
    assert error_code(lambda: future.result(TIMEOUT_S)) == code
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_validate_only_creates_nothing(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_partitions_are_added(admin: AdminClient, bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, partitions=1)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(TIMEOUT_S)
    assert len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions) == 3
    fewer = admin.create_partitions([NewPartitions(topic, 2)])[topic]
    assert error_code(lambda: fewer.result(TIMEOUT_S)) == KafkaError.INVALID_PARTITIONS
    sender, reports = producer(bootstrap), Deliveries()
    sender.produce(topic, b"v", partition=2, on_delivery=reports)
    sender.flush(TIMEOUT_S)
    assert reports.errors == []


def test_topic_configs_are_altered_and_take_effect(admin: AdminClient, bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    change = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    query = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([query])[query].result(TIMEOUT_S)
    assert entries["max.message.bytes"].value == "2000"
    assert entries["max.message.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert entries["retention.ms"].value == "604800000"
    assert entries["retention.ms"].is_default
    sender, reports = producer(bootstrap), Deliveries()
    sender.produce(topic, b"x" * 3000, on_delivery=reports)
    sender.flush(TIMEOUT_S)
    assert [error.code() for error in reports.errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    bad = ConfigEntry("retention.ms", "-5", incremental_operation=AlterConfigOpType.SET)
    refused = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[bad])
    future = admin.incremental_alter_configs([refused])[refused]
    assert error_code(lambda: future.result(TIMEOUT_S)) == KafkaError.INVALID_CONFIG


def test_broker_configs_are_described(admin: AdminClient) -> None:
    query = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([query])[query].result(TIMEOUT_S)
    assert entries["node.id"].value == "1"
    assert entries["node.id"].is_read_only


def test_records_are_deleted_up_to_an_offset(admin: AdminClient, bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    sender = producer(bootstrap)
    for number in range(10):
        sender.produce(topic, b"%d" % number)
    sender.flush(TIMEOUT_S)
    upto = TopicPartition(topic, 0, 6)
    deleted = admin.delete_records([upto])[upto].result(TIMEOUT_S)
    assert deleted.low_watermark == 6
    assert read_all(bootstrap, topic, 4, offset=6)[0].value() == b"6"
    beyond = TopicPartition(topic, 0, 99)
    future = admin.delete_records([beyond])[beyond]
    assert error_code(lambda: future.result(TIMEOUT_S)) == KafkaError.OFFSET_OUT_OF_RANGE


def test_the_cluster_is_described(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert len(cluster.cluster_id) == 22
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id


def test_a_topic_created_again_has_a_new_log(admin: AdminClient, bootstrap: str, topic: str) -> None:
    sender = producer(bootstrap)
    create(bootstrap, topic)
    first_id = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S).topic_id
    for value in (b"old 1", b"old 2"):
        sender.produce(topic, value)
    sender.flush(TIMEOUT_S)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    create(bootstrap, topic)
    second_id = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S).topic_id
    assert str(first_id) != str(second_id)
    # The test uses a new producer, because the old producer gets the new topic id only later.
    fresh = producer(bootstrap)
    fresh.produce(topic, b"new")
    fresh.flush(TIMEOUT_S)
    (message,) = read_all(bootstrap, topic, 1)
    assert (message.offset(), message.value()) == (0, b"new")
