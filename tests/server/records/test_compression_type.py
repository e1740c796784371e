"""``compression.type`` is the codec in which a node stores a topic. The tests use clients of other projects,
and both kinds of topics."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from crc32c import crc32c
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from plain_requests import Requests, eventually, records, values

from moldau.protocol.messages import incremental_alter_configs as alteration
from moldau.records import Compression, Record, TimestampType, build_batch, parse_header
from moldau.records.batch import iter_headers
from moldau.runtime import ErrorCode, SystemClock
from moldau.testing import Node

Story = Callable[[Requests, str], Awaitable[None]]
BROKER, SET, DELETE = 4, 0, 1
CODECS = ["gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module", params=["classic", "diskless"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with Node(diskless=request.param == "diskless") as running:
        yield running


@pytest.fixture
def play(node: Node) -> Callable[[Story], None]:
    def run(story: Story) -> None:
        async def told() -> None:
            async with Requests(node.bootstrap_servers) as client:
                async with asyncio.timeout(200):
                    await story(client, f"t-{uuid.uuid4().hex[:12]}")

        asyncio.run(told())

    return run


async def header_at(client: Requests, topic: str, offset: int) -> Any:
    answer = await client.fetch(topic, offset, max_wait_ms=30_000)
    assert answer.error_code is ErrorCode.none, answer
    view = memoryview(b"".join(answer.records) if isinstance(answer.records, list) else answer.records)
    return next(
        header for _, header in iter_headers(view) if header.base_offset <= offset <= header.last_offset
    )


@pytest.mark.parametrize("target", list(Compression))
def test_every_codec_becomes_the_topics(play: Any, target: Compression) -> None:
    async def story(client: Requests, topic: str) -> None:
        name = "uncompressed" if target is Compression.NONE else target.name.lower()
        await client.create(topic, compression_type=name)
        sent = records(*[b"%d" % n * 50 for n in range(20)], step_ms=1)
        for number, source in enumerate(Compression):
            batch = build_batch(
                sent, compression=source, producer_id=7, producer_epoch=1, base_sequence=number * 20
            )
            answer = await client.produce(topic, batch)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, number * 20)
        again = await client.produce(topic, batch)
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 80)
        for number in range(5):
            header = await header_at(client, topic, number * 20)
            assert header.compression is target
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, number * 20)
            assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_019)
        found = await client.read(topic, 0, 100)
        assert values(found) == values(sent) * 5
        assert [one.timestamp for one in found] == [one.timestamp for one in sent] * 5

    play(story)


def test_a_recompressed_batch_gets_the_append_time(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, compression_type="lz4", message_timestamp_type="LogAppendTime")
        began_ms = SystemClock().now_ms()
        answer = await client.produce(topic, build_batch(records(b"a", b"b", timestamp=1)))
        assert answer.log_append_time_ms >= began_ms
        header = await header_at(client, topic, 0)
        assert header.compression is Compression.LZ4
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        found = await client.read(topic, 0, 2)
        assert {one.timestamp for one in found} == {answer.log_append_time_ms}

    play(story)


def test_batches_that_are_refused_when_they_are_opened(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        await client.create(topic, compression_type="uncompressed", max_message_bytes="2000")
        squeezed = build_batch(records(b"x" * 3_000), compression=Compression.ZSTD)
        assert (await client.produce(topic, squeezed)).error_code is ErrorCode.message_too_large
        broken = bytearray(build_batch(records(b"a", b"b"), compression=Compression.GZIP))
        broken[-4:] = b"\0\0\0\0"  # this is the length field at the end of gzip data
        answer = await client.produce(topic, resealed(broken))
        assert answer.error_code is ErrorCode.invalid_record
        await client.alter(topic, message_timestamp_before_max_ms="1000")
        now_ms = SystemClock().now_ms()
        late = [Record(0, now_ms, b"k", b"new"), Record(1, now_ms - 100_000, b"k", b"old")]
        refused = await client.produce(topic, build_batch(late, compression=Compression.SNAPPY))
        assert refused.error_code is ErrorCode.invalid_timestamp
        assert [row.batch_index for row in refused.record_errors] == [1]
        assert (await client.offset_at(topic, -1)).offset == 0

    play(story)


def resealed(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    assert parse_header(batch).size_bytes == len(batch)
    return bytes(batch)


def test_topic_and_broker_configs_take_effect_while_the_node_runs(play: Any) -> None:
    async def story(client: Requests, topic: str) -> None:
        async def set_broker(operation: int, value: str | None) -> None:
            row = alteration.AlterableConfig(name="compression.type", config_operation=operation, value=value)
            resource = alteration.AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[row])
            answer = await client.ask(alteration.IncrementalAlterConfigsRequest(resources=[resource]))
            assert answer.responses[0].error_code is ErrorCode.none

        async def is_stored_as(codec: Compression) -> bool:
            offset = await client.produce_values(topic, b"v" * 100)
            return (await header_at(client, topic, offset)).compression is codec

        await client.create(topic)
        assert await is_stored_as(Compression.NONE)
        await set_broker(SET, "zstd")
        await eventually(lambda: is_stored_as(Compression.ZSTD), "the broker's codec")
        assert await client.alter(topic, compression_type="gzip") is ErrorCode.none
        await eventually(lambda: is_stored_as(Compression.GZIP), "the topic's codec")
        assert await client.alter(topic, compression_type="producer") is ErrorCode.none
        await eventually(lambda: is_stored_as(Compression.NONE), "the producer's codec")
        await set_broker(DELETE, None)
        assert await client.alter(topic, compression_type="brotli") is ErrorCode.invalid_config

    play(story)


def test_other_clients_read_what_the_broker_compressed(node: Node, play: Any) -> None:
    topics = [f"t-{codec}-{uuid.uuid4().hex[:12]}" for codec in CODECS]

    async def story(client: Requests, _: str) -> None:
        for topic, codec in zip(topics, CODECS, strict=True):
            await client.create(topic, compression_type=codec)

    play(story)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "enable.idempotence": True})
    for topic in topics:
        for n in range(50):
            producer.produce(topic, key=b"%d" % n, value=b"librdkafka %d" % n * 10)
    assert producer.flush(60) == 0
    sender = KafkaProducer(bootstrap_servers=node.bootstrap_servers)
    for topic in topics:
        for n in range(50):
            sender.send(topic, key=b"%d" % n, value=b"kafka-python %d" % n * 10)
    sender.flush(60)
    sender.close()
    expected = [b"%s %d" % (who, n) * 10 for who in (b"librdkafka", b"kafka-python") for n in range(50)]
    assert read_by_librdkafka(node, topics, 100) == dict.fromkeys(topics, expected)
    assert read_by_kafka_python(node, topics, 100) == dict.fromkeys(topics, expected)


def read_by_librdkafka(node: Node, topics: list[str], count: int) -> dict[str, list[bytes]]:
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap_servers, "group.id": "readers", "check.crcs": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
    found: dict[str, list[bytes]] = {topic: [] for topic in topics}
    try:
        while any(len(values) < count for values in found.values()):
            message = consumer.poll(60)
            assert message is not None, found
            assert message.error() is None, message.error()
            found[message.topic()].append(message.value())
    finally:
        consumer.close()
    return found


def read_by_kafka_python(node: Node, topics: list[str], count: int) -> dict[str, list[bytes]]:
    reader = KafkaConsumer(bootstrap_servers=node.bootstrap_servers, auto_offset_reset="earliest")
    reader.assign([KafkaPartition(topic, 0) for topic in topics])
    found: dict[str, list[bytes]] = {topic: [] for topic in topics}
    try:
        while any(len(values) < count for values in found.values()):
            polled = reader.poll(timeout_ms=60_000)
            assert polled, found
            for partition, rows in polled.items():
                found[partition.topic] += [row.value for row in rows]
    finally:
        reader.close()
    return found
