"""A librdkafka producer, and a group that reads the producer's records, while nodes and partitions change."""

import time

from cluster_processes import LIMIT_S, QUIET, wait_for
from confluent_kafka import Consumer, Producer


class Load:
    """An idempotent producer of numbered records, and a group that reads these records and commits
    offsets."""

    def __init__(self, bootstrap: str) -> None:
        common = {"bootstrap.servers": bootstrap, **QUIET}
        self.acknowledged: set[bytes] = set()
        self.refused: list[str] = []
        self.read: list[bytes] = []
        self._sent = 0
        self._producer = Producer({**common, "enable.idempotence": True, "acks": "all", "linger.ms": 2})
        self._consumer = Consumer(
            {
                **common,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "auto.commit.interval.ms": 200,
            }
        )
        self._consumer.subscribe(["events"])

    def go_on_until(self, count: int) -> None:
        """Write and read until ``count`` more records are acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + LIMIT_S
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, "the producer does not go on"
            while self._sent - len(self.acknowledged) < 200:
                value = b"%d" % self._sent
                self._producer.produce("events", value, key=value, on_delivery=self._delivered)
                self._sent += 1
            self._producer.poll(0.01)
            self.consume(0.0)

    def _delivered(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged.add(message.value())  # type: ignore[attr-defined]
        else:
            self.refused.append(str(error))

    def consume(self, timeout_s: float) -> None:
        self.read += [
            message.value() for message in self._consumer.consume(500, timeout_s) if not message.error()
        ]

    def finish(self) -> None:
        self._producer.flush(LIMIT_S)
        wait_for(self._has_read_all)
        self._consumer.close()

    def _has_read_all(self) -> bool:
        self.consume(0.5)
        return set(self.read) >= self.acknowledged
