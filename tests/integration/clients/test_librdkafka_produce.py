"""librdkafka (confluent-kafka), used as producer and as consumer without a group."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from deadlines import TIMEOUT_S, consume
from librdkafka_clients import Deliveries, create, producer, read_all

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_codec_and_acks_level_round_trips(bootstrap: str, topic: str, codec: str, acks: str) -> None:
    create(bootstrap, topic)
    reports = Deliveries()
    sender = producer(bootstrap, compression_type=codec, acks=acks, linger_ms=5)
    values = [b"value %d " % number * 20 for number in range(500)]
    for value in values:
        sender.produce(topic, value, on_delivery=reports)
    assert sender.flush(TIMEOUT_S) == 0
    assert (len(reports.messages), reports.errors) == (500, [])
    assert [message.value() for message in read_all(bootstrap, topic, 500)] == values


def test_keys_headers_tombstones_and_timestamps_come_back(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    sender = producer(bootstrap)
    headers = [("a", b"1"), ("a", b""), ("nothing", None), ("ü", b"\x00\xff")]
    sender.produce(topic, b"v", b"k", headers=headers, timestamp=1_600_000_000_123)
    sender.produce(topic, None, b"tombstone", timestamp=1)
    sender.produce(topic, b"", b"", timestamp=1_700_000_000_000)
    sender.flush(TIMEOUT_S)
    first, second, third = read_all(bootstrap, topic, 3)
    assert first.headers() == headers
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, 1_600_000_000_123)
    assert (second.key(), second.value()) == (b"tombstone", None)
    assert (third.key(), third.value()) == (b"", b"")


def test_the_producer_and_the_consumer_get_the_log_append_time(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    reports = Deliveries()
    sender = producer(bootstrap)
    sender.produce(topic, b"v", timestamp=5, on_delivery=reports)
    sender.flush(TIMEOUT_S)
    after = int(time.time() * 1000)
    (message,) = read_all(bootstrap, topic, 1)
    kind, stamp = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before <= stamp <= after
    assert reports.messages[0].timestamp() == (TIMESTAMP_LOG_APPEND_TIME, stamp)


def test_large_messages_up_to_the_topics_limit(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, max_message_bytes="6000000")
    reports = Deliveries()
    sender = producer(bootstrap, message_max_bytes=8_000_000)
    sender.produce(topic, b"x" * 5_000_000, on_delivery=reports)
    sender.flush(TIMEOUT_S)
    sender.produce(topic, b"y" * 7_000_000, on_delivery=reports)
    sender.flush(TIMEOUT_S)
    assert len(reports.messages) == 1
    assert [error.code() for error in reports.errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    (message,) = read_all(bootstrap, topic, 1)
    assert len(message.value()) == 5_000_000


def test_an_idempotent_producer_is_in_order_over_partitions(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, partitions=3)
    reports = Deliveries()
    sender = producer(bootstrap, enable_idempotence=True, linger_ms=1, batch_num_messages=50)
    for number in range(3000):
        sender.produce(topic, b"%d" % number, partition=number % 3, on_delivery=reports)
        sender.poll(0)
    assert sender.flush(TIMEOUT_S) == 0
    assert (len(reports.messages), reports.errors) == (3000, [])
    for partition in range(3):
        values = [int(message.value()) for message in read_all(bootstrap, topic, 1000, partition)]
        assert values == list(range(partition, 3000, 3))


def test_a_produce_to_an_unknown_topic_creates_it(bootstrap: str, topic: str) -> None:
    reports = Deliveries()
    sender = producer(bootstrap)
    sender.produce(topic, b"v", on_delivery=reports)
    sender.flush(TIMEOUT_S)
    assert len(reports.messages) == 1


def test_watermarks_and_offsets_for_times(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    sender = producer(bootstrap)
    for number in range(10):
        sender.produce(topic, b"%d" % number, timestamp=1_000 * (number + 1))
    sender.flush(TIMEOUT_S)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "times"})

    def offset_at(timestamp_ms: int) -> int:
        (found,) = reader.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], TIMEOUT_S)
        return found.offset

    assert reader.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S) == (0, 10)
    assert [offset_at(when) for when in (0, 1_000, 1_001, 10_000)] == [0, 0, 1, 9]
    assert offset_at(10_001) in (-1, 10)
    reader.close()


def test_an_offset_out_of_range_follows_the_reset_policy(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    sender = producer(bootstrap)
    sender.produce(topic, b"only")
    sender.flush(TIMEOUT_S)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition(topic, 0, 999)])
    (message,) = consume(reader, 1)
    assert (message.offset(), message.value()) == (0, b"only")
    reader.close()
    strict = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "auto.offset.reset": "error"})
    strict.assign([TopicPartition(topic, 0, 999)])
    refused = _poll_for_error(strict.poll)
    assert refused.code() == KafkaError._AUTO_OFFSET_RESET
    strict.close()


def _poll_for_error(poll: Callable[[float], Message | None]) -> KafkaError:
    message = poll(TIMEOUT_S)
    assert message is not None
    error = message.error()
    assert error is not None
    return error


def test_an_invalid_topic_is_refused(bootstrap: str) -> None:
    with pytest.raises(KafkaException) as refused:
        create(bootstrap, "not/a/name")
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
