"""A whole node with diskless topics, tested with an ordinary client."""

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer

from moldau.runtime import KafkaError
from moldau.testing import Node

COUNT = 500


def diskless(url: str) -> dict[str, str]:
    return {
        "diskless.system.enable": "true",
        "log.diskless.enable": "true",
        "diskless.metadata.topic.num.partitions": "2",
        "num.partitions": "3",
        "diskless.storage.url": url,
    }


def produce(bootstrap: str, first: int) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            errors.append(error)

    for number in range(first, first + COUNT):
        producer.produce("orders", key=b"%d" % (number % 7), value=b"%d" % number, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert errors == []


def consume(bootstrap: str, group: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    values: list[int] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 0.2):
            assert message.error() is None
            values.append(int(message.value() or b""))
    consumer.close()
    return sorted(values)


def test_records_outlive_every_local_segment(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/objects"
    with Node(data=str(data), properties=diskless(url)) as node:
        produce(node.bootstrap_servers, 0)
        assert consume(node.bootstrap_servers, "a", COUNT) == list(range(COUNT))
    caches = list(data.glob("orders-*"))
    assert len(caches) == 3
    for cache in caches:
        shutil.rmtree(cache)
    with Node(data=str(data), properties=diskless(url)) as node:
        produce(node.bootstrap_servers, COUNT)
        assert consume(node.bootstrap_servers, "b", 2 * COUNT) == list(range(2 * COUNT))


def test_a_bad_store_ends_the_start_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(KafkaError, match=r"object storage|blocked"):
        Node(properties=diskless(f"file://{tmp_path}/blocked/objects")).start()
    with pytest.raises(KafkaError, match=r"diskless.storage.url|not one of"):
        Node(properties=diskless("ftp://nowhere")).start()


def test_a_grace_period_that_is_too_short_for_readers_stops_the_start(tmp_path: Path) -> None:
    key = "diskless.coordinator.orphan.scan.grace.period.ms"
    with pytest.raises(KafkaError, match=f"{key}: a grace of 30000 ms is not longer than"):
        Node(properties={**diskless(f"file://{tmp_path}/objects"), key: "30000"}).start()
