"""A producer at a fixed rate that notes when each record was sent and acknowledged."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Producer

LIMIT_S: Final = 300.0
PAUSE_S: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Delivery:
    """An acknowledged record. Times are values of ``time.perf_counter``."""

    sent_s: float
    acknowledged_s: float

    @property
    def wait_s(self) -> float:
        return self.acknowledged_s - self.sent_s


def p99_ms(waits_s: Sequence[float]) -> float:
    """99th percentile in ms."""
    return sorted(waits_s)[len(waits_s) * 99 // 100] * 1000


class PacedProducer:
    """A producer of librdkafka with acks=all, which sends in its own thread while the block runs."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int, record_size: int) -> None:
        self.deliveries: list[Delivery] = []
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._value = bytes(record_size)
        self._errors: list[str] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "PacedProducer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self._producer.flush(LIMIT_S) or self._errors:
            raise RuntimeError(f"records of {self._topic} are not acknowledged: {self._errors[:3]}")

    def _run(self) -> None:
        start, sent = time.perf_counter(), 0
        while not self._stopped.is_set():
            if time.perf_counter() < start + sent / self._rate:
                self._producer.poll(0)
                time.sleep(PAUSE_S)
                continue
            partition = sent % self._partitions
            callback = self._callback(time.perf_counter())
            self._producer.produce(self._topic, self._value, partition=partition, on_delivery=callback)
            sent += 1

    def _callback(self, sent_s: float) -> Any:
        def delivered(error: object, message: object) -> None:
            if error is None:
                self.deliveries.append(Delivery(sent_s, time.perf_counter()))
            else:
                self._errors.append(str(error))

        return delivered

    def wait_for_a_record_sent_after(self, moment_s: float) -> None:
        """Wait until a record that is sent after this moment is acknowledged."""
        deadline = time.monotonic() + LIMIT_S
        while not self.deliveries or self.deliveries[-1].sent_s < moment_s:
            if time.monotonic() > deadline or self._errors:
                raise RuntimeError(f"the producer of {self._topic} does not go on: {self._errors[:3]}")
            time.sleep(0.005)

    def waits_s(self, first_s: float, last_s: float) -> list[float]:
        """The waits for the records that were sent between two moments."""
        return [each.wait_s for each in self.deliveries if first_s <= each.sent_s <= last_s]

    def longest_s(self, moment_s: float) -> float:
        """The longest wait for a record that was acknowledged after this moment."""
        return max(each.wait_s for each in self.deliveries if each.acknowledged_s >= moment_s)
