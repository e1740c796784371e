"""The disk of a node contains metadata and a cache of diskless topics, but no other data."""

import shutil
import time
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.testing import Node

COUNT = 300
MARK = b"payload-of-a-diskless-record"


def properties(url: str) -> dict[str, str]:
    return {
        "diskless.system.enable": "true",
        "log.diskless.enable": "true",
        "diskless.metadata.topic.num.partitions": "2",
        "num.partitions": "4",
        "diskless.storage.url": url,
    }


def produce(bootstrap: str) -> set[int]:
    acknowledged: set[int] = set()

    def delivered(error: object, message: Message) -> None:
        assert error is None
        acknowledged.add(int((message.value() or b"").rpartition(b" ")[2]))

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce("orders", MARK + b" %d" % number, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    return acknowledged


def read_all(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", partition, 0) for partition in range(4)])
    numbers: list[int] = []
    deadline = time.monotonic() + 60
    while len(numbers) < COUNT and time.monotonic() < deadline:
        for message in consumer.consume(COUNT, 0.2):
            assert message.error() is None
            numbers.append(int((message.value() or b"").rpartition(b" ")[2]))
    consumer.close()
    return sorted(numbers)


def files_with_payload(folder: Path) -> set[str]:
    """Names of the folders that contain a file with records of the topic."""
    return {path.parent.name for path in folder.rglob("*") if path.is_file() and MARK in path.read_bytes()}


def test_the_disk_has_only_caches_of_records_and_readers_do_not_need_them(tmp_path: Path) -> None:
    data, objects = tmp_path / "data", tmp_path / "objects"
    config = properties(f"file://{objects}")
    with Node(data=str(data), properties=config) as node:
        acknowledged = produce(node.bootstrap_servers)
        assert read_all(node.bootstrap_servers) == sorted(acknowledged)
    caches = {f"orders-{partition}" for partition in range(4)}
    assert files_with_payload(data) <= caches
    assert files_with_payload(objects)

    for cache in caches:
        shutil.rmtree(data / cache)
    assert not files_with_payload(data)
    databases = list(data.glob("__diskless_metadata-*/state.sqlite*"))
    assert len(databases) >= 2
    for path in databases:
        path.unlink()

    with Node(data=str(data), properties=config) as node:
        assert read_all(node.bootstrap_servers) == sorted(acknowledged)


def notice(node: Node) -> str | None:
    """The node's response about the content of its object store."""
    assert node._node is not None
    return node._node.find(DisklessSubsystem).contribution().notices["objects"]()


def test_offsets_are_metadata_and_outlive_the_objects(tmp_path: Path) -> None:
    data, objects = tmp_path / "data", tmp_path / "objects"
    config = properties(f"file://{objects}")
    with Node(data=str(data), properties=config) as node:
        produce(node.bootstrap_servers)
        assert notice(node) is None
    for cache in data.glob("orders-*"):
        shutil.rmtree(cache)
    shutil.rmtree(objects)
    with Node(data=str(data), properties=config) as node:
        consumer = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "g"})
        low, high = zip(
            *(consumer.get_watermark_offsets(TopicPartition("orders", index), 60) for index in range(4)),
            strict=True,
        )
        consumer.close()
        assert f"no claim in file://{objects}" in (notice(node) or "")
    # The coordinator still has the offsets, because offsets are metadata. The bytes were only in the store.
    assert sum(high) - sum(low) == COUNT
