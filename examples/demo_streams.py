"""The clients of the cluster demo: a producer and a consumer that continue while nodes are down, and a reader
for the final check."""

import contextlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from demo_orders import orders
from demo_processes import Deadline

PARTITIONS = 3
PAUSE_BETWEEN_ROUNDS_S = 0.01
ORDERS_MAX = 60_000
"""Number of records of each topic. They are enough for ten minutes."""
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda _: None, "reconnect.backoff.max.ms": 200}


class OrderStream:
    """An idempotent producer in its own thread. It sends an order to each topic every 10 ms."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self.acknowledged: dict[str, set[int]] = {topic: set() for topic in topics}
        self.refused: list[str] = []
        """Errors of records that the producer could not deliver."""
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
        places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        self._acknowledged_at: dict[tuple[str, int], list[float]] = {place: [] for place in places}
        self._sent_at: dict[tuple[str, int], float] = dict.fromkeys(places, 0.0)
        """Send time of the newest acknowledged record of each partition."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self, deadline: Deadline) -> int:
        """Stop sending. Returns the number of records without a delivery report at the deadline."""
        self._ended.set()
        self._thread.join()
        return self._producer.flush(deadline.left_s("the end of the stream"))

    def is_served_since(self, moment: float) -> bool:
        """Whether each partition has an acknowledged record that was sent after ``moment``."""
        return all(sent > moment for sent in self._sent_at.values())

    def pauses_s(self, begin: float, end: float) -> dict[str, float]:
        """For each topic, the longest time between ``begin`` and ``end`` in which one of its partitions got
        no acknowledgement."""
        pauses: dict[str, float] = defaultdict(float)
        for (topic, _), moments in self._acknowledged_at.items():
            gaps = (
                after - before for before, after in pairwise(list(moments)) if after > begin and before < end
            )
            pauses[topic] = max(pauses[topic], *gaps, 0.0)
        return dict(pauses)

    def _run(self) -> None:
        for number, (key, value) in enumerate(orders(ORDERS_MAX)):
            for topic in self.acknowledged:
                place = (topic, number % PARTITIONS)
                told = self._on_delivery(place, number, time.monotonic())
                self._producer.produce(topic, value, key=key, partition=place[1], on_delivery=told)
            self._producer.poll(0)
            if self._ended.wait(PAUSE_BETWEEN_ROUNDS_S):
                return

    def _on_delivery(
        self, place: tuple[str, int], number: int, sent: float
    ) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.refused.append(f"{place[0]} {number}: {error}")
                return
            self.acknowledged[place[0]].add(number)
            self._acknowledged_at[place].append(time.monotonic())
            self._sent_at[place] = max(self._sent_at[place], sent)

        return told


class GroupReader:
    """The only member of a consumer group, in rack b and in its own thread."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self.numbers: dict[str, list[int]] = {topic: [] for topic in topics}
        settings = {"group.id": "demo", "auto.offset.reset": "earliest", "client.rack": "b"}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **settings, **QUIET})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Subscribe when the topics exist, because a client looks for new topics only every five minutes."""
        self._consumer.subscribe(list(self.numbers))
        self._thread.start()

    def end(self, expected: Mapping[str, set[int]], deadline: Deadline) -> None:
        """Wait until the reader has read as many records of each topic as ``expected`` has, and leave the
        group.
        """
        try:
            while any(len(set(self.numbers[topic])) < len(numbers) for topic, numbers in expected.items()):
                left = {topic: len(numbers - set(self.numbers[topic])) for topic, numbers in expected.items()}
                deadline.left_s(f"the consumer group at the end of the topics; it lacks {left}")
                time.sleep(0.1)
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.numbers[_topic_of(message)].append(_number_of(message))
        self._consumer.close()


def read_from_the_beginning(
    bootstrap: str, topics: Sequence[str], deadline: Deadline
) -> dict[str, dict[int, list[int]]]:
    """The order numbers in each topic's partitions, in the order of the offsets."""
    settings = {"group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings, **QUIET})
    open_places = {(topic, partition) for topic in topics for partition in range(PARTITIONS)}
    found: dict[str, dict[int, list[int]]] = {
        topic: {partition: [] for partition in range(PARTITIONS)} for topic in topics
    }
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in open_places])
        while open_places:
            deadline.left_s(f"the ends of {sorted(open_places)} in the final reading")
            for message in consumer.consume(1000, 0.5):
                topic, partition, error = _topic_of(message), message.partition(), message.error()
                assert partition is not None
                if error is None:
                    found[topic][partition].append(_number_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_places.discard((topic, partition))
    return found


def _topic_of(message: Message) -> str:
    return message.topic() or ""


def _number_of(message: Message) -> int:
    return int(json.loads(message.value() or b"")["order"])
