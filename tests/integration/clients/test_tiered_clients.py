"""librdkafka and kafka-python read a tiered topic from its first to its last record. They see one log without
gaps."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from deadlines import TIMEOUT_S, consume, eventually
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from librdkafka_clients import create, producer, read_all

from moldau.testing import Node

COUNT = 60
RECORD_BYTES = 100_000
"""Ten records of this size fill a segment of the smallest size that Kafka accepts."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    properties = {
        "remote.log.manager.task.interval.ms": "50",
        "log.retention.check.interval.ms": "100",
    }
    with Node(properties=properties) as running:
        yield running


@pytest.fixture(scope="module")
def values(node: Node) -> list[bytes]:
    """The records of the topic ``past``, whose closed segments are only in the remote tier."""
    options = {"remote_storage_enable": "true", "local_retention_bytes": "1", "retention_ms": "-1"}
    create(node.bootstrap_servers, "past", segment_bytes=str(1 << 20), **options)
    sent = [b"%d " % number + os.urandom(RECORD_BYTES) for number in range(COUNT)]
    sender = producer(node.bootstrap_servers, enable_idempotence=True, batch_size=200_000)
    for number, value in enumerate(sent):
        sender.produce("past", value, partition=0, timestamp=1_700_000_000_000 + number)
    assert sender.flush(TIMEOUT_S) == 0
    folder = Path(node.data, "past-0")
    eventually(lambda: len(list(folder.glob("*.log"))) == 1, "all closed segments are remote")
    assert len([*Path(node.data, "objects").glob("tiered/past-*/0/*.log")]) >= 5
    return sent


def test_librdkafka_reads_from_the_first_record(node: Node, values: list[bytes]) -> None:
    messages = read_all(node.bootstrap_servers, "past", COUNT)
    assert [message.offset() for message in messages] == list(range(COUNT))
    assert [message.value() for message in messages] == values


def test_a_group_continues_in_the_remote_part(node: Node, values: list[bytes]) -> None:
    config = {
        "bootstrap.servers": node.bootstrap_servers,
        "group.id": "group",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    first = Consumer(config)
    first.subscribe(["past"])
    last = consume(first, 15)[-1]
    first.commit(offsets=[TopicPartition("past", 0, last.offset() + 1)], asynchronous=False)
    first.close()
    second = Consumer(config)
    second.subscribe(["past"])
    rest = consume(second, COUNT - 15)
    second.close()
    assert [message.value() for message in rest] == values[15:]


def test_offsets_by_time_over_both_tiers(node: Node, values: list[bytes]) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    part = TopicPartition("past", 0)
    for number in (0, 1, 33, COUNT - 1):
        wanted = {part: OffsetSpec.for_timestamp(1_700_000_000_000 + number)}
        assert admin.list_offsets(wanted)[part].result(TIMEOUT_S).offset == number
    assert admin.list_offsets({part: OffsetSpec.earliest()})[part].result(TIMEOUT_S).offset == 0
    latest = admin.list_offsets({part: OffsetSpec.max_timestamp()})[part].result(TIMEOUT_S)
    assert latest.offset == COUNT - 1


def test_kafka_python_reads_from_the_first_record(node: Node, values: list[bytes]) -> None:
    reader = KafkaConsumer(
        bootstrap_servers=node.bootstrap_servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    part = PythonTopicPartition("past", 0)
    reader.assign([part])
    found: list[bytes] = []

    def poll() -> bool:
        for records in reader.poll(timeout_ms=500).values():
            found.extend(record.value for record in records)
        return len(found) >= COUNT

    try:
        eventually(poll, "all records")
    finally:
        reader.close()
    assert found == values
