"""The process of a node: its ready line, SIGTERM and SIGKILL. No acknowledged record is lost or
duplicated."""

import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from deadlines import TIMEOUT_S, consume, eventually
from dev_process import dev_process
from librdkafka_clients import create, producer, read_all

PARTITIONS = 3


def test_the_ready_line_and_a_clean_stop(tmp_path: Path, kind: str) -> None:
    with dev_process(tmp_path, kind=kind) as node:
        assert re.fullmatch(r"ready 127\.0\.0\.1:\d+\n", node.first_line)
        sender = producer(node.bootstrap)
        sender.produce("t", b"v")
        assert sender.flush(TIMEOUT_S) == 0
        waiting = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
        waiting.subscribe(["t"])
        waiting.poll(1.0)
        # A long poll and a group member do not delay a stop.
        code, shown = node.terminate()
        waiting.close()
    assert (code, shown) == (0, "")
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_restart_keeps_records_topics_configs_and_offsets(tmp_path: Path, kind: str) -> None:
    with dev_process(tmp_path, kind=kind) as node:
        create(node.bootstrap, "t", partitions=2, retention_ms="12345678")
        sender = producer(node.bootstrap)
        for number in range(10):
            sender.produce("t", b"%d" % number, partition=0)
        sender.flush(TIMEOUT_S)
        reader = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
        reader.commit(offsets=[TopicPartition("t", 0, 6)], asynchronous=False)
        reader.close()
        assert node.terminate()[0] == 0
    with dev_process(tmp_path, kind=kind) as node:
        reader = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.auto.commit": False})
        reader.subscribe(["t"])
        messages = consume(reader, 4)
        reader.close()
        assert [message.value() for message in messages] == [b"6", b"7", b"8", b"9"]


class Load:
    """An idempotent producer that sends numbered values continuously and records the acknowledged values."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        self.errors: list[KafkaError] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged.append((message.partition(), int(message.value())))

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            if len(self._producer) < 500:
                self._producer.produce(
                    "t", b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
                )
                number += 1
            else:
                self._producer.poll(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_S) == 0


def lose_the_cache(data: Path) -> None:
    """Delete the local segments, which are copies of data in the object store."""
    caches = list(data.glob("t-*"))
    assert len(caches) == PARTITIONS
    for cache in caches:
        shutil.rmtree(cache)


def test_sigkill_loses_and_doubles_nothing_of_an_idempotent_producer(
    tmp_path: Path, kind: str, free_port: Callable[[], int]
) -> None:
    port = free_port()
    with dev_process(tmp_path, port, kind) as node:
        create(node.bootstrap, "t", partitions=PARTITIONS)
        load = Load(node.bootstrap)
        eventually(lambda: len(load.acknowledged) > 2_000, "2,000 acknowledged records")
        node.kill()
    for _ in range(2):
        with dev_process(tmp_path, port, kind) as node:
            before = len(load.acknowledged)
            eventually(lambda: len(load.acknowledged) > before + 2_000, "2,000 more records")  # noqa: B023
            node.kill()
    if kind == "diskless":
        lose_the_cache(tmp_path)
    with dev_process(tmp_path, port, kind) as node:
        load.stop()
        assert load.errors == []
        per_partition = Counter(partition for partition, _ in load.acknowledged)
        for partition in range(PARTITIONS):
            messages = read_all(node.bootstrap, "t", per_partition[partition], partition)
            values = [int(message.value()) for message in messages]
            assert values == list(range(partition, partition + PARTITIONS * len(values), PARTITIONS))
            assert [message.offset() for message in messages] == list(range(len(messages)))
