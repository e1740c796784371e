"""kafka-python, used as producer, consumer and admin client. Another file runs kafka-python's own
test suite."""

from collections.abc import Iterator

import pytest
from deadlines import TIMEOUT_S, eventually
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def consume(consumer: KafkaConsumer, count: int) -> list[ConsumerRecord]:
    taken: list[ConsumerRecord] = []

    def enough() -> bool:
        for records in consumer.poll(200, max_records=count - len(taken)).values():
            taken.extend(records)
        return len(taken) >= count

    eventually(enough, f"{count} records")
    return taken


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_codec_and_acks_level_round_trips(
    bootstrap: str, topic: str, admin: KafkaAdminClient, codec: str | None, acks: int | str
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=codec,
        acks=acks,
        enable_idempotence=acks == "all",
        linger_ms=5,
    )
    values = [b"value %d " % number * 20 for number in range(200)]
    for value in values:
        producer.send(topic, value, key=b"k", headers=[("h", b"v")], timestamp_ms=1_600_000_000_000)
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    records = consume(consumer, 200)
    consumer.close()
    assert [record.value for record in records] == values
    first = records[0]
    assert (first.key, first.headers, first.timestamp) == (b"k", [("h", b"v")], 1_600_000_000_000)


def test_a_message_over_the_topics_limit_is_refused(
    bootstrap: str, topic: str, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "2000"})])
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    assert producer.send(topic, b"x" * 100).get(TIMEOUT_S).offset == 0
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 3000).get(TIMEOUT_S)
    producer.close()


def test_a_group_commits_resumes_and_seeks(
    bootstrap: str, topic: str, group: str, admin: KafkaAdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    partition = TopicPartition(topic, 0)
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(10):
        producer.send(topic, b"%d" % number, timestamp_ms=1_000 * (number + 1))
    producer.flush(TIMEOUT_S)
    producer.close()
    options = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    first = KafkaConsumer(topic, **options)
    assert [record.offset for record in consume(first, 4)] == [0, 1, 2, 3]
    first.commit({partition: OffsetAndMetadata(4, "a note", -1)})
    assert first.beginning_offsets([partition]) == {partition: 0}
    assert first.end_offsets([partition]) == {partition: 10}
    assert first.offsets_for_times({partition: 4_500})[partition].offset == 4
    first.close()
    second = KafkaConsumer(topic, **options)
    assert [record.offset for record in consume(second, 6)] == [4, 5, 6, 7, 8, 9]
    second.seek(partition, 2)
    assert consume(second, 1)[0].offset == 2
    second.close()
    held = admin.list_group_offsets({group: None})
    assert held[group][partition].offset == 4
    admin.delete_groups([group])
    assert group not in [listed["group_id"] for listed in admin.list_groups()]


def test_topics_are_described_and_a_second_creation_refused(topic: str, admin: KafkaAdminClient) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    (described,) = admin.describe_topics([topic])
    assert len(described["partitions"]) == 2
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 2, 1)])
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
