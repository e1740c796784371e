"""A node stores its objects on S3 servers of several makers, in buckets with and without versions.

Records leave the WAL, are read again, and are deleted with their topic.
"""

import asyncio
import contextlib
import io
import json
import pathlib
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S, eventually

from moldau.cli.main import main
from moldau.metrics import Meters
from moldau.objects import StorageSettings, open_storage
from moldau.runtime import Machine
from moldau.testing import Node

TOPIC, RECORDS = "events", 300
KEYS = {"access.key.id": "key", "secret.access.key": "secret"}
FAST = {
    "diskless.metadata.topic.num.partitions": "1",
    "diskless.consolidation.interval.ms": "100",
    "diskless.consolidation.segment.bytes": "4000",
    "diskless.consolidation.max.age.ms": "0",
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "200",
    "backup.interval.ms": "500",
}


@pytest.fixture(params=["moto, versioned", "S3Proxy", "Versity S3 Gateway, versioned"])
def store(request: pytest.FixtureRequest) -> dict[str, str]:
    """Configs of an object store."""
    if request.param == "S3Proxy":
        endpoint, _ = request.getfixturevalue("s3proxy")
        bucket = request.getfixturevalue("s3proxy_bucket")
    elif request.param.startswith("Versity"):
        endpoint = request.getfixturevalue("versitygw")
        bucket = request.getfixturevalue("versitygw_bucket")
    else:
        endpoint = request.getfixturevalue("s3_endpoint")
        bucket = request.getfixturevalue("s3_versioned_bucket")
    return {"url": f"s3://{bucket}/cluster", "endpoint": endpoint, **KEYS}


def segments(store: dict[str, str]) -> list[str]:
    """The keys of the topic's segments."""

    async def look() -> list[str]:
        options = {key: value for key, value in store.items() if key != "url"}
        storage = open_storage(StorageSettings(store["url"], options=options), Machine.real(), Meters())
        keys = [info.key async for page in storage.list("") for info in page]
        await storage.close()
        return [key for key in keys if TOPIC in key]

    return asyncio.run(look())


def wal_start(node: Node) -> int:
    """The first offset that is still in the WAL."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["diskless", "topics", "--bootstrap", node.bootstrap_servers, "--json"]) == 0
    (topic,) = json.loads(said.getvalue())
    (partition,) = topic["partitions"]
    return int(partition["wal_start"])


def test_records_leave_the_wal_and_are_deleted_with_their_topic(
    store: dict[str, str], tmp_path: pathlib.Path
) -> None:
    properties = dict(FAST)
    for key, value in store.items():
        properties |= {f"diskless.storage.{key}": value, f"rsm.config.{key}": value}
    with Node(data=str(tmp_path), diskless=True, properties=properties) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(TIMEOUT_S)
        produce(node)
        eventually(lambda: wal_start(node) == RECORDS, "all records have left the WAL")
        assert segments(store)
    with Node(data=str(tmp_path), diskless=True, properties=properties) as node:
        assert read(node) == [b"%d" % number for number in range(RECORDS)]
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)
        eventually(lambda: not segments(store), "no segment of the topic is left")


def produce(node: Node) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "batch.num.messages": 20})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def read(node: Node) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap_servers, "group.id": "reader", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < RECORDS:
        assert time.monotonic() < deadline, len(found)
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    consumer.close()
    return found
