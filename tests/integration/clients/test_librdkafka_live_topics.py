"""Tests librdkafka's clients while their topics change."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deadlines import TIMEOUT_S, consume, eventually
from librdkafka_clients import Deliveries, create, producer, read_all

QUICK = {"topic.metadata.refresh.interval.ms": 200, "topic.metadata.refresh.fast.interval.ms": 50}


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def member(bootstrap: str, group: str) -> Iterator[Consumer]:
    """A consumer in a group. It reads from the first record, and detects changes of its topics soon."""
    base = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**base, **QUICK, "enable.auto.commit": False})
    yield consumer
    consumer.close()


def messages_of(consumer: Consumer) -> list[Message]:
    """The messages that arrive in a short time, without the client's messages about itself."""
    message = consumer.poll(0.1)
    return [message] if message is not None and message.error() is None else []


class Persistent:
    """A producer that sends a value until it is acknowledged, even if the topic is deleted and created
    meanwhile."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        base = {"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUICK}
        # Without this setting, a metadata request between the deletion and the next creation could create the
        # topic with one partition.
        self._producer = Producer({**base, "allow.auto.create.topics": False})

    def send(self, values: set[bytes]) -> None:
        missing = set(values)

        def all_delivered() -> bool:
            reports = Deliveries()
            for value in missing:
                partition = int(value.split(b"-")[1]) % 2
                self._producer.produce(self._topic, value, partition=partition, on_delivery=reports)
            assert self._producer.flush(TIMEOUT_S) == 0
            # The client drops its pending records when it detects that the topic was deleted.
            gone = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
            assert {error.code() for error in reports.errors} <= gone
            missing.difference_update(message.value() for message in reports.messages)
            return not missing

        eventually(all_delivered, "all is delivered")


def test_a_topic_is_deleted_and_made_again_under_live_clients(
    bootstrap: str, topic: str, admin: AdminClient, member: Consumer
) -> None:
    sender = Persistent(bootstrap, topic)
    member.subscribe([topic])
    for turn in range(3):
        create(bootstrap, topic, partitions=2)
        # Each new topic has fewer records than the previous topic of the same name. Otherwise a reader's
        # position in the previous topic would also be valid in the new topic.
        wanted = {b"%d-%d" % (turn, number) for number in range(30 - 10 * turn)}
        sender.send(wanted)
        seen: set[bytes] = set()

        def all_seen(seen: set[bytes] = seen, wanted: set[bytes] = wanted) -> bool:
            seen.update(message.value() for message in messages_of(member))
            return len(seen) >= len(wanted)

        eventually(all_seen, f"all of turn {turn}")
        assert seen == wanted
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)


def test_partitions_that_are_added_are_consumed(
    bootstrap: str, topic: str, admin: AdminClient, member: Consumer
) -> None:
    create(bootstrap, topic)
    sender = producer(bootstrap, topic_metadata_refresh_interval_ms=200)
    sender.produce(topic, b"0", partition=0)
    assert sender.flush(TIMEOUT_S) == 0
    member.subscribe([topic])
    assert consume(member, 1)[0].value() == b"0"
    member.commit(asynchronous=False)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(TIMEOUT_S)
    later = producer(bootstrap)
    for partition in range(1, 5):
        later.produce(topic, b"%d" % partition, partition=partition)
    assert later.flush(TIMEOUT_S) == 0
    found = consume(member, 4)
    assert sorted(message.value() for message in found) == [b"1", b"2", b"3", b"4"]


def test_a_hundred_partitions_with_a_few_records_each(bootstrap: str, topic: str, member: Consumer) -> None:
    create(bootstrap, topic, partitions=100)
    sender, reports = producer(bootstrap, linger_ms=20), Deliveries()
    member.subscribe([topic])
    for turn in range(5):
        for partition in range(100):
            sender.produce(topic, b"%d" % turn, partition=partition, on_delivery=reports)
        assert sender.flush(TIMEOUT_S) == 0
    assert (len(reports.messages), reports.errors) == (500, [])
    by_partition: dict[int, list[bytes]] = {}
    for message in consume(member, 500):
        by_partition.setdefault(message.partition(), []).append(message.value())
    assert by_partition == {partition: [b"0", b"1", b"2", b"3", b"4"] for partition in range(100)}


def test_a_reader_at_deleted_records_continues_after_them(
    bootstrap: str, topic: str, admin: AdminClient, member: Consumer
) -> None:
    create(bootstrap, topic)
    sender = producer(bootstrap)
    for number in range(10):
        sender.produce(topic, b"%d" % number)
    assert sender.flush(TIMEOUT_S) == 0
    upto = TopicPartition(topic, 0, 7)
    admin.delete_records([upto])[upto].result(TIMEOUT_S)
    member.assign([TopicPartition(topic, 0, 2)])
    assert [message.offset() for message in consume(member, 3)] == [7, 8, 9]
    assert member.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S) == (7, 10)


def test_two_producers_and_a_reader_at_the_tail(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    senders = [producer(bootstrap, linger_ms=0, enable_idempotence=True) for _ in range(2)]
    # If the waiting fetch is not woken, it waits longer than the test.
    waits = {"fetch.wait.max.ms": 250_000, "socket.timeout.ms": 300_000}
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "tail", **waits})
    reader.assign([TopicPartition(topic, 0, 0)])
    for number in range(50):
        # Each record is acknowledged before the next record is sent.
        senders[number % 2].produce(topic, b"%d" % number)
        assert consume(reader, 1)[0].value() == b"%d" % number
        senders[number % 2].poll(0)
    reader.close()
    assert len(read_all(bootstrap, topic, 50)) == 50
