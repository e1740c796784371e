"""A transactional producer is told at once that there are no transactions, and asks no more."""

import asyncio
import json

import aiokafka.errors
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer
from deadlines import TIMEOUT_S
from foreign_clients import JavaScript
from kafka import KafkaProducer

pytestmark = pytest.mark.parametrize("kind", ["classic"], scope="module")


def test_librdkafka_is_told_why(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "librdkafka", "log_level": 0})
    with pytest.raises(KafkaException, match="transactions are not supported yet") as refused:
        producer.init_transactions(TIMEOUT_S)
    error = refused.value.args[0]
    # Any other error than one of authorization makes it ask for ever.
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "no access right is missing" in error.str()
    assert error.fatal()


def test_kafka_python_fails_at_once(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="kafka-python")
    try:
        with pytest.raises(kafka.errors.KafkaError, match="UnsupportedVersionError"):
            producer.init_transactions()
    finally:
        producer.close(timeout=0)


def test_aiokafka_fails_at_once(bootstrap: str) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka")
        try:
            with pytest.raises(aiokafka.errors.KafkaError, match="UnsupportedVersionError"):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(start())


@pytest.mark.clients
def test_kafkajs_fails_at_once(javascript: JavaScript, bootstrap: str) -> None:
    told = json.loads(javascript.script("kafkajs_transaction.js", bootstrap))
    # It asks once when it connects, which it does not report, and once for the transaction.
    assert told == {"type": "UNSUPPORTED_VERSION", "retriable": False, "requests": 2}
