"""Every client of the suite reads a partition through its chunks, and Kafka's DumpLogSegments reads the
folders of chunks."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S, consume, eventually
from foreign_clients import Java, JavaScript, Kcat
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

import moldau.testing

pytestmark = [pytest.mark.clients, pytest.mark.java]

TOPIC = "chunked"
COUNT = 40
VALUES = [f"value {number}" for number in range(COUNT)]
ENDED = 10
"""The number of records in each chunk. The last chunk is active."""


def moldau_command(bootstrap: str, *words: str) -> str:
    command = [sys.executable, "-m", "moldau", *words, "--bootstrap", bootstrap]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[moldau.testing.Cluster]:
    """Three brokers. Each inactive chunk is on one broker, and broker 1 leads the active chunk."""
    data = str(tmp_path_factory.mktemp("data"))
    properties = {"chunk.redirect.min.bytes": "0"}
    with moldau.testing.Cluster(
        brokers=3, racks=("a", "b", "c"), data=data, properties=properties
    ) as running:
        bootstrap = running.bootstrap_servers
        moldau_command(bootstrap, "cluster", "upgrade", "moldau.chunk.version=1")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[1]])])[TOPIC].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number, value in enumerate(VALUES):
            if number and number % ENDED == 0:
                where = ["--partition", "0", "--replicas", str((2, 3, 1)[number // ENDED - 1])]
                moldau_command(bootstrap, "chunks", "create", "--topic", TOPIC, *where)
            producer.produce(TOPIC, value.encode(), b"k", partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        yield running


@pytest.fixture
def bootstrap(cluster: moldau.testing.Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.mark.parametrize("rack", [[], ["--command-property", "client.rack=b"]], ids=["no rack", "rack"])
def test_the_java_consumer(java: Java, bootstrap: str, rack: list[str]) -> None:
    where = ["--bootstrap-server", bootstrap, "--topic", TOPIC, "--from-beginning"]
    shown = java.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *where,
        "--max-messages",
        str(COUNT),
        "--timeout-ms",
        "60000",
        *rack,
    )
    assert shown.splitlines() == VALUES


def test_the_java_producer_continues_while_chunks_are_created(java: Java, bootstrap: str) -> None:
    topic, count = "written", 8_000
    servers = {"bootstrap.servers": bootstrap}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1]])])[topic].result(TIMEOUT_S)
    borders: list[int] = []

    def is_written(watcher: Consumer, count: int) -> bool:
        try:
            return watcher.get_watermark_offsets(Partition(topic, 0), TIMEOUT_S)[1] >= count
        except KafkaException:
            return False  # The client asks the former leader once.

    def create() -> None:
        watcher = Consumer({**servers, "group.id": "watcher"})
        for written, broker in ((500, "2"), (2_500, "3"), (4_500, "1")):
            eventually(partial(is_written, watcher, written), f"{written} records")
            where = ["--topic", topic, "--partition", "0", "--replicas", broker, "--json"]
            borders.append(json.loads(moldau_command(bootstrap, "chunks", "create", *where))["start_offset"])
        watcher.close()

    creating = threading.Thread(target=create)
    creating.start()
    java.tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--throughput", "1000", "--payload-monotonic"),
        *("--command-property", f"bootstrap.servers={bootstrap}", "linger.ms=5"),
    )
    creating.join()
    assert len(borders) == 3
    assert borders[0] < count, "no chunk ended while the producer was writing"
    reader = Consumer({**servers, "group.id": "all", "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    found = consume(reader, count)
    reader.close()
    assert [int(record.value()) for record in found] == list(range(count))


@pytest.mark.parametrize("rack", ["", "b", "nowhere"])
def test_librdkafka(bootstrap: str, rack: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": f"g-{rack}", "auto.offset.reset": "earliest"}
    reader = Consumer({**settings, "client.rack": rack, "fetch.error.backoff.ms": 50})
    reader.subscribe([TOPIC])
    found: list[str] = []

    def is_complete() -> bool:
        record = reader.poll(0.2)
        if record is not None and record.error() is None:
            found.append(record.value().decode())
        return len(found) >= COUNT

    eventually(is_complete, "all records")
    reader.close()
    assert found == VALUES


def test_kcat(kcat: Kcat, bootstrap: str) -> None:
    assert kcat(bootstrap, "-C", "-t", TOPIC, "-p", "0", "-o", "beginning", "-e", "-q").splitlines() == VALUES


def test_kafka_python(bootstrap: str) -> None:
    reader = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    reader.assign([PythonPartition(TOPIC, 0)])
    found: list[str] = []

    def is_complete() -> bool:
        for records in reader.poll(200).values():
            found.extend(record.value.decode() for record in records)
        return len(found) >= COUNT

    eventually(is_complete, "all records")
    reader.close()
    assert found == VALUES


def test_aiokafka(bootstrap: str) -> None:
    async def read() -> list[str]:
        settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest"}
        async with asyncio.timeout(TIMEOUT_S), AIOKafkaConsumer(TOPIC, **settings) as reader:
            return [(await reader.getone()).value.decode() for _ in range(COUNT)]

    assert asyncio.run(read()) == VALUES


@pytest.mark.parametrize("package", ["kafkajs", "@platformatic/kafka"])
def test_javascript(javascript: JavaScript, bootstrap: str, package: str) -> None:
    assert javascript.script("read_topic.js", package, bootstrap, TOPIC, str(COUNT)).splitlines() == VALUES


def test_dump_log_segments(java: Java, cluster: moldau.testing.Cluster) -> None:
    folders = [folder for broker in cluster.brokers for folder in chunk_folders(cluster, broker)]
    assert len(folders) == COUNT // ENDED - 1
    logs = [file for folder in folders for file in sorted(folder.glob("*.log"))]
    shown = java.tool("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, logs)))
    assert "isvalid: false" not in shown
    assert shown.count("| offset: ") == COUNT - ENDED
    indexes = [file for folder in folders for file in folder.glob("*index")]
    checked = java.tool(
        "kafka.tools.DumpLogSegments", "--index-sanity-check", "--files", ",".join(map(str, indexes))
    )
    assert checked.count("passed sanity check") + checked.count(".index is empty") == len(indexes)
    snapshots = [file for folder in folders for file in folder.glob("*.snapshot")]
    assert snapshots
    producers = java.tool("kafka.tools.DumpLogSegments", "--files", ",".join(map(str, snapshots)))
    # A snapshot has the last five batches of the producer.
    assert producers.count("producerId: ") == 5 * len(snapshots)


def chunk_folders(cluster: moldau.testing.Cluster, broker: int) -> list[Path]:
    return sorted(Path(cluster.log_dirs(broker)[0]).glob(f"{TOPIC}-0.*-chunk"))
