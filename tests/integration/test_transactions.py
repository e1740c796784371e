"""Transactional producers of many client libraries, and consumers that read committed records only."""

import asyncio
import json

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S
from foreign_clients import JavaScript
from kafka import KafkaProducer

pytestmark = pytest.mark.parametrize("kind", ["classic", "diskless"], scope="module")


def create(bootstrap: str, *topics: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        created.result(TIMEOUT_S)


def producer(bootstrap: str, transactional_id: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0})
    made.init_transactions(TIMEOUT_S)
    return made


def consumer(bootstrap: str, group: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def values(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[str]:
    """All values of partition 0 up to the end offset for the isolation level."""
    reader = consumer(bootstrap, "values", isolation)
    reader.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = reader.poll(TIMEOUT_S)
        assert message is not None, f"no end after {found}"
        if message.error() is None:
            found.append(message.value().decode())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            reader.close()
            return found
        else:
            raise KafkaException(message.error())


def test_no_reader_of_committed_records_gets_aborted_records(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    transactional = producer(bootstrap, topic)
    for number in range(6):
        transactional.begin_transaction()
        for part in range(3):
            transactional.produce(topic, f"{number}/{part}", partition=0)
        transactional.flush()
        if number % 2:
            transactional.abort_transaction(TIMEOUT_S)
        else:
            transactional.commit_transaction(TIMEOUT_S)
    committed = [f"{number}/{part}" for number in (0, 2, 4) for part in range(3)]
    assert values(bootstrap, topic) == committed
    assert len(values(bootstrap, topic, "read_uncommitted")) == 18


def test_an_open_transaction_holds_readers_back(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    transactional = producer(bootstrap, topic)
    transactional.begin_transaction()
    transactional.produce(topic, "open", partition=0)
    transactional.flush()
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, "behind it", partition=0)
    plain.flush()
    assert values(bootstrap, topic) == []
    assert values(bootstrap, topic, "read_uncommitted") == ["open", "behind it"]
    transactional.commit_transaction(TIMEOUT_S)
    assert values(bootstrap, topic) == ["open", "behind it"]


def test_offsets_are_committed_together_with_the_output_records(
    bootstrap: str, topic: str, group: str
) -> None:
    out = f"{topic}-out"
    create(bootstrap, topic, out)
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        plain.produce(topic, str(number), partition=0)
    plain.flush()
    transactional, reader = producer(bootstrap, topic), consumer(bootstrap, group)
    reader.subscribe([topic])
    taken: list[str] = []
    while len(taken) < 10:
        message = reader.poll(TIMEOUT_S)
        if message.error() is None:
            taken.append(message.value().decode())
    position = [TopicPartition(topic, 0, 10)]
    for commits in (False, True):
        transactional.begin_transaction()
        for value in taken:
            transactional.produce(out, value if commits else f"{value} aborted", partition=0)
        transactional.send_offsets_to_transaction(position, reader.consumer_group_metadata(), TIMEOUT_S)
        if commits:
            transactional.commit_transaction(TIMEOUT_S)
        else:
            transactional.abort_transaction(TIMEOUT_S)
        (found,) = reader.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        assert found.offset == (10 if commits else -1001)
    reader.close()
    assert values(bootstrap, out) == taken


def test_a_fenced_producer_commits_nothing(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    zombie = producer(bootstrap, topic)
    zombie.begin_transaction()
    zombie.produce(topic, "zombie", partition=0)
    zombie.flush()
    successor = producer(bootstrap, topic)
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    successor.begin_transaction()
    successor.produce(topic, "successor", partition=0)
    successor.commit_transaction(TIMEOUT_S)
    assert values(bootstrap, topic) == ["successor"]


def test_kafka_python_commits_and_aborts(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    transactional = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    try:
        transactional.init_transactions()
        for value in (b"aborted", b"committed"):
            transactional.begin_transaction()
            transactional.send(topic, value, partition=0).get(TIMEOUT_S)
            if value == b"aborted":
                transactional.abort_transaction()
            else:
                transactional.commit_transaction()
    finally:
        transactional.close(timeout=TIMEOUT_S)
    assert values(bootstrap, topic) == ["committed"]


def test_aiokafka_commits_and_aborts(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)

    async def story() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as transactional:
            await transactional.begin_transaction()
            await transactional.send_and_wait(topic, b"aborted", partition=0)
            await transactional.abort_transaction()
            async with transactional.transaction():
                await transactional.send_and_wait(topic, b"committed", partition=0)
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as reader:
            message = await asyncio.wait_for(reader.getone(), TIMEOUT_S)
            assert message.value == b"committed"

    asyncio.run(story())


@pytest.mark.clients
def test_kafkajs_commits_and_aborts(javascript: JavaScript, bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    assert json.loads(javascript.script("kafkajs_transaction.js", bootstrap, topic)) == {"done": True}
    assert values(bootstrap, topic) == ["committed"]
