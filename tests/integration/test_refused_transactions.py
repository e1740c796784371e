"""A transactional producer is told at once that there are no transactions, and asks no more."""

import asyncio

import aiokafka.errors
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer
from deadlines import TIMEOUT_S
from kafka import KafkaProducer

pytestmark = pytest.mark.parametrize("kind", ["classic"], scope="module")


def test_librdkafka_is_told_why(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "librdkafka", "log_level": 0})
    with pytest.raises(KafkaException, match="transactions are not supported yet") as refused:
        producer.init_transactions(TIMEOUT_S)
    error = refused.value.args[0]
    assert error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
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
