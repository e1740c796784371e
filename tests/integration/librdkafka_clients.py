"""confluent-kafka clients with options that all tests use."""

from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S, consume


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic. The arguments for configs have underscores in place of dots."""
    configs = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(TIMEOUT_S)


class Deliveries:
    """Collects delivery reports."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.messages.append(message)
        else:
            self.errors.append(error)


def producer(bootstrap: str, **options: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": bootstrap, **{key.replace("_", "."): value for key, value in options.items()}}
    )


def read_all(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Message]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, partition, offset)])
    try:
        return consume(reader, count)
    finally:
        reader.close()
