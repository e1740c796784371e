"""librdkafka's consumers in groups: rebalances, static members, commits, listing and deletion."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from deadlines import TIMEOUT_S, consume, eventually
from librdkafka_clients import create, producer


class Members:
    """Consumers of one group, which are closed at the end of the test."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._base = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
        }
        self.consumers: list[Consumer] = []
        self.revocations: list[tuple[Consumer, list[TopicPartition]]] = []

    def join(self, topic: str, **options: Any) -> Consumer:
        given = {key.replace("_", "."): value for key, value in options.items()}
        consumer = Consumer({**self._base, **given})
        consumer.subscribe([topic], on_revoke=lambda who, lost: self.revocations.append((who, lost)))
        self.consumers.append(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()
        self.revocations = [(who, lost) for who, lost in self.revocations if who is not consumer]

    def shares(self) -> list[list[int]]:
        """The current partitions of each member. Members are in the order in which they joined. The call also
        handles rebalances of the members."""
        for consumer in self.consumers:
            message = consumer.poll(0.02)
            assert message is None or message.error() is None
        return [sorted(owned.partition for owned in one.assignment()) for one in self.consumers]

    def settle(self, *sizes: int) -> None:
        """Wait until each partition has one owner, and each member has the given number of partitions."""
        total = sum(sizes)

        def settled() -> bool:
            shares = self.shares()
            owned = sorted(partition for share in shares for partition in share)
            return owned == list(range(total)) and sorted(map(len, shares)) == sorted(sizes)

        eventually(settled, f"{total} partitions shared as {sizes}")


@pytest.fixture
def members(bootstrap: str, group: str) -> Iterator[Members]:
    made = Members(bootstrap, group)
    yield made
    for consumer in made.consumers:
        consumer.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions_as_they_come_and_go(
    bootstrap: str, topic: str, members: Members, strategy: str
) -> None:
    create(bootstrap, topic, partitions=4)
    options = {"partition_assignment_strategy": strategy}
    members.join(topic, **options)
    members.settle(4)
    second = members.join(topic, **options)
    members.settle(2, 2)
    members.join(topic, **options)
    members.settle(1, 1, 2)
    members.leave(second)
    members.settle(2, 2)


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(
    bootstrap: str, topic: str, members: Members
) -> None:
    create(bootstrap, topic, partitions=4)
    steady = members.join(topic, group_instance_id="steady")
    restarted = members.join(topic, group_instance_id="restarted")
    members.settle(2, 2)
    owned = sorted(item.partition for item in steady.assignment())
    members.revocations.clear()
    members.leave(restarted)
    members.join(topic, group_instance_id="restarted")
    members.settle(2, 2)
    assert sorted(item.partition for item in steady.assignment()) == owned
    assert members.revocations == []


def test_commit_and_resume(bootstrap: str, topic: str, members: Members) -> None:
    create(bootstrap, topic)
    sender = producer(bootstrap)
    for number in range(10):
        sender.produce(topic, b"%d" % number)
    sender.flush(TIMEOUT_S)
    first = members.join(topic)
    assert [message.offset() for message in consume(first, 4)] == [0, 1, 2, 3]
    first.commit(offsets=[TopicPartition(topic, 0, 4, "a note")], asynchronous=False)
    (committed,) = first.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    assert (committed.offset, committed.metadata) == (4, "a note")
    members.leave(first)
    second = members.join(topic)
    assert [message.offset() for message in consume(second, 6)] == [4, 5, 6, 7, 8, 9]


def test_a_regular_expression_finds_new_topics(bootstrap: str, topic: str, members: Members) -> None:
    consumer = members.join(f"^{topic}.*", topic_metadata_refresh_interval_ms=200)
    create(bootstrap, topic + "-later")
    sender = producer(bootstrap)
    sender.produce(topic + "-later", b"v")
    sender.flush(TIMEOUT_S)

    def found() -> Message | None:
        message = consumer.poll(0.2)
        if message is None or message.error() is None:
            return message
        # Before the first record, librdkafka may return an error that says that the topic does not exist yet.
        assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, message.error()
        return None

    assert eventually(found, "a record of the new topic").value() == b"v"


def test_groups_are_listed_described_reset_and_deleted(
    bootstrap: str, topic: str, group: str, members: Members
) -> None:
    create(bootstrap, topic, partitions=2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    consumer = members.join(topic, client_id="a-client")
    members.settle(2)
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (member,) = described.members
    assert member.client_id == "a-client"
    assert sorted(item.partition for item in member.assignment.topic_partitions) == [0, 1]
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(TIMEOUT_S)
    assert listed.errors == []
    assert group in [entry.group_id for entry in listed.valid]
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    members.leave(consumer)

    target = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 5)])
    admin.alter_consumer_group_offsets([target])[group].result(TIMEOUT_S)
    query = ConsumerGroupTopicPartitions(group)
    held = admin.list_consumer_group_offsets([query])[group].result(TIMEOUT_S)
    assert {item.partition: item.offset for item in held.topic_partitions} == {0: 3, 1: 5}
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert group not in [entry.group_id for entry in listed.valid]


def test_lag_from_end_offsets(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, partitions=2)
    sender = producer(bootstrap)
    for number in range(5):
        sender.produce(topic, b"v", partition=0, timestamp=1_000 + number % 3)
    sender.flush(TIMEOUT_S)
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def offset(spec: OffsetSpec, partition: int = 0) -> int:
        key = TopicPartition(topic, partition)
        return int(admin.list_offsets({key: spec})[key].result(TIMEOUT_S).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 5
    assert offset(OffsetSpec.latest(), 1) == 0
    assert offset(OffsetSpec.max_timestamp()) == 2
    assert offset(OffsetSpec.for_timestamp(1_001)) == 1
