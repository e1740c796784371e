"""aiokafka, used as producer, consumer and admin client."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

TIMEOUT_S = 120.0


async def consume(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    async with asyncio.timeout(TIMEOUT_S):
        return [await consumer.getone() for _ in range(count)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_codec_and_acks_level_round_trips(
    bootstrap: str, topic: str, codec: str | None, acks: int | str
) -> None:
    async def scenario() -> None:
        values = [b"value %d " % number * 20 for number in range(200)]
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=codec, acks=acks, enable_idempotence=acks == "all"
        ) as producer:
            for value in values:
                await producer.send(topic, value, key=b"k", headers=[("h", b"v")], timestamp_ms=1_234)
            await producer.flush()
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            records = await consume(consumer, 200)
        assert [record.value for record in records] == values
        assert (records[0].key, records[0].headers) == (b"k", (("h", b"v"),))
        assert records[0].timestamp == 1_234

    asyncio.run(scenario())


def test_two_members_share_a_topic_and_one_takes_over(bootstrap: str, topic: str, group: str) -> None:
    async def scenario() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 4, 1)])
        options = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": 45_000,
            "enable_auto_commit": False,
        }
        first, second = (AIOKafkaConsumer(topic, **options) for _ in range(2))
        await first.start()
        await second.start()
        async with asyncio.timeout(TIMEOUT_S):
            while (len(first.assignment()), len(second.assignment())) != (2, 2):
                await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
        assert not first.assignment() & second.assignment()
        await second.stop()
        async with asyncio.timeout(TIMEOUT_S):
            while len(first.assignment()) != 4:
                await first.getmany(timeout_ms=50)
        (described,) = await admin.describe_consumer_groups([group])
        assert described.groups[0][2] == "Stable"
        await first.commit({TopicPartition(topic, 3): 11})
        await first.stop()
        assert (await admin.list_consumer_group_offsets(group))[TopicPartition(topic, 3)].offset == 11
        await admin.close()

    asyncio.run(scenario())


def test_offsets_times_and_seeks(bootstrap: str, topic: str) -> None:
    async def scenario() -> None:
        partition = TopicPartition(topic, 0)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for number in range(5):
                sent = await producer.send_and_wait(topic, b"v", timestamp_ms=1_000 * (number + 1))
                assert sent.offset == number
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([partition])
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 5}
            assert (await consumer.offsets_for_times({partition: 2_500}))[partition].offset == 2
            consumer.seek(partition, 3)
            assert [record.offset for record in await consume(consumer, 2)] == [3, 4]

    asyncio.run(scenario())


def test_admin_changes_take_effect(bootstrap: str, topic: str) -> None:
    async def scenario() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 1, 1)])
        await admin.create_partitions({topic: NewPartitions(3)})
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000"})
        await admin.alter_configs([resource])
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, b"x" * 3_000)
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
        await admin.close()

    asyncio.run(scenario())
