"""An outside engine consolidates a cluster of three brokers, and a broker is killed in the middle. The test
does not need Spark."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.cli.admin.diskless_client import describe_topics
from moldau.cli.errors import CommandError
from moldau.client.cluster import connected
from moldau.client.errors import ToolError
from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once
from moldau.runtime import KafkaError

TOPIC, PARTITIONS, RECORDS = "events", 3, 200
TIMEOUT_S = 120.0
PROPERTIES = {
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.consolidation.enable": "false",
    "diskless.consolidation.segment.bytes": "3000",
    "diskless.consolidation.max.age.ms": "0",
}


def test_a_broker_is_killed_between_the_plan_and_the_publishing() -> None:
    """The segments of the killed leader are planned again by the next leader, and no record is lost."""
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"diskless.enable": "true"})
        admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 10})
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, value_of(partition, number), partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        leader = admin.list_topics(TOPIC).topics[TOPIC].partitions[0].leader

        def killing(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
            built = [function(unit) for unit in units]
            if not killed:
                killed.append(leader)
                cluster.kill(leader)
            return built

        killed: list[int] = []
        done = 0
        deadline = time.monotonic() + TIMEOUT_S
        while any(start < RECORDS for start in wal_starts(cluster.bootstrap_servers)):
            assert time.monotonic() < deadline, wal_starts(cluster.bootstrap_servers)
            job = ConsolidateJob(cluster.bootstrap_servers, (TOPIC,), unit_bytes=20_000, timeout_s=TIMEOUT_S)
            # Until the broker is fenced, a round may fail, because the coordinator or a partition has no
            # leader.
            with contextlib.suppress(KafkaError, ToolError, OSError):
                done += consolidate_once(job, killing)["segments"]
        assert killed
        assert done >= 3 * PARTITIONS
        assert read_all(cluster.bootstrap_servers) == {
            partition: [value_of(partition, number) for number in range(RECORDS)]
            for partition in range(PARTITIONS)
        }


def value_of(partition: int, number: int) -> bytes:
    return b"%d-%d-" % (partition, number) + b"v" * 50


def wal_starts(bootstrap: str) -> list[int]:
    """For each partition, the first offset that is not in the remote tier; 0 if it is not known now."""

    async def look() -> list[int]:
        async with connected(bootstrap, TIMEOUT_S) as client:
            (topic,) = await describe_topics(client, [TOPIC])
            return [part.wal_start_offset for _, part in topic.partitions.values()]

    try:
        return asyncio.run(look())
    except (KafkaError, CommandError, OSError):
        return [0]


def read_all(bootstrap: str) -> dict[int, list[bytes]]:
    """Read the topic from offset 0 to its end. Returns all values by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
        }
    )
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    deadline = time.monotonic() + TIMEOUT_S
    while sum(map(len, found.values())) < RECORDS * PARTITIONS:
        assert time.monotonic() < deadline, {partition: len(rows) for partition, rows in found.items()}
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            assert message.offset() == len(found[message.partition()])
            found[message.partition()].append(message.value())
    consumer.close()
    return found
