"""Diskless topics on three broker processes with librdkafka. The broker of the coordinator is killed.

During the whole test, records move from the WAL to the remote tier.
"""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.cli.main import main
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC

TOPIC = "events"
PARTITIONS = 3
RECORDS = 600
PATIENCE_S = 90.0
IMPATIENT = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "diskless.metadata.topic.num.partitions": "1",
    "diskless.consolidation.interval.ms": "200",
    "diskless.consolidation.segment.bytes": "2000",
    "diskless.consolidation.max.age.ms": "500",
}


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """The brokers' addresses, and the file that lists the processes."""
    command = [
        sys.executable,
        "-m",
        "moldau",
        "dev",
        "--data",
        str(tmp_path),
        "--port",
        "0",
        "--brokers",
        "3",
    ]
    for key, value in IMPATIENT.items():
        command += ["--set", f"{key}={value}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        word, brokers = process.stdout.readline().split()
        assert word == "ready"
        yield brokers, tmp_path / "cluster.json"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def create(admin: AdminClient) -> None:
    new = NewTopic(TOPIC, PARTITIONS, 3, config={"diskless.enable": "true"})
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            admin.create_topics([new])[TOPIC].result()
            return
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return  # The response to an earlier request was lost.
            # Sessions are short. On a busy machine all brokers may be fenced for a moment.
            if not error.retriable() and error.code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            time.sleep(0.5)
    raise AssertionError("the coordinators' topic does not come")


def coordinator(admin: AdminClient) -> int:
    found: int = (
        admin.list_topics(DISKLESS_METADATA_TOPIC).topics[DISKLESS_METADATA_TOPIC].partitions[0].leader
    )
    return found


def wal_starts(brokers: str) -> dict[int, int]:
    """The first offset of each partition that is still in the WAL."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        if main(["diskless", "topics", "--bootstrap", brokers, "--json"]) != 0:
            return {}  # the coordinator is moving
    (topic,) = json.loads(said.getvalue())
    return {part["partition"]: part["wal_start"] for part in topic["partitions"]}


def read_all(brokers: str, ends: dict[int, int]) -> dict[int, list[bytes]]:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "judge", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
    found: dict[int, list[bytes]] = {partition: [] for partition in ends}
    deadline = time.monotonic() + PATIENCE_S
    while any(len(found[partition]) < end for partition, end in ends.items()):
        assert time.monotonic() < deadline, {partition: len(values) for partition, values in found.items()}
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            assert message.offset() == len(found[message.partition()])
            found[message.partition()].append(message.value())
    consumer.close()
    return found


def test_the_brokers_of_coordinators_are_killed_under_load(cluster: tuple[str, pathlib.Path]) -> None:
    brokers, listed = cluster
    admin = AdminClient({"bootstrap.servers": brokers})
    create(admin)
    acknowledged: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}

    def told(error: Any, message: Any) -> None:
        assert error is None, error
        acknowledged[message.partition()].append(message.value())

    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=told)
        producer.poll(0.005)
        if number == RECORDS // 3:
            killed = coordinator(admin)
            nodes = json.loads(listed.read_text())["nodes"]
            os.kill(next(node["pid"] for node in nodes if node["id"] == killed), signal.SIGKILL)
    assert producer.flush(PATIENCE_S) == 0
    assert coordinator(admin) != killed
    ends = {partition: len(values) for partition, values in acknowledged.items()}
    deadline = time.monotonic() + PATIENCE_S
    while wal_starts(brokers) != ends:
        assert time.monotonic() < deadline, f"not all records have left the WAL: {wal_starts(brokers)}"
        time.sleep(0.5)
    found = read_all(brokers, ends)
    for partition in range(PARTITIONS):
        assert found[partition] == [b"%d" % number for number in range(partition, RECORDS, PARTITIONS)]
        assert found[partition] == acknowledged[partition]
