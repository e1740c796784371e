"""Kafka's DumpLogSegments checks every file of a stopped node, and Kafka's metadata shell checks two of the
files."""

import random
import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deadlines import TIMEOUT_S, eventually
from foreign_clients import Java
from librdkafka_clients import create, producer

from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.testing import Node

pytestmark = pytest.mark.java

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BATCHES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a node that clients used and that was then stopped."""
    data = tmp_path_factory.mktemp("data")
    properties = {"metadata.log.max.record.bytes.between.snapshots": "1000"}
    with Node(data=str(data), properties=properties) as node:
        use(node.bootstrap_servers)
        metadata = data / CLUSTER_METADATA_FOLDER
        eventually(lambda: any(metadata.glob("*[1-9]*-*.checkpoint")), "a metadata snapshot")
    return data


def use(bootstrap: str) -> None:
    # With the smallest segments and a dense index, there are several files, and indexes with many entries.
    create(bootstrap, "t", segment_bytes=str(1 << 20), index_interval_bytes="500")
    chance = random.Random(1)
    create(bootstrap, "stamped", message_timestamp_type="LogAppendTime")
    for codec in CODECS:
        sender = producer(bootstrap, compression_type=codec, enable_idempotence=True)
        for batch in range(BATCHES):
            for number in range(batch % 5 + 1):
                value = b"compressible " * 100 + chance.randbytes(6_000)
                sender.produce("t", value, b"key %d" % number, timestamp=1_700_000_000_000 + batch * 37 % 100)
            sender.produce("stamped", None, b"key", headers=[("h", None)])
            assert sender.flush(TIMEOUT_S) == 0
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    reader.subscribe(["t"])
    eventually(lambda: reader.poll(0.2), "a record through a group")
    reader.commit(offsets=[TopicPartition("t", 0, 5, "a note")], asynchronous=False)
    reader.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for number in range(5):
        create(bootstrap, f"passing-{number}", partitions=3)
        admin.delete_topics([f"passing-{number}"])[f"passing-{number}"].result(TIMEOUT_S)


def dump(java: Java, files: list[Path], *options: str) -> str:
    assert files
    return java.tool("kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), *options)


def test_record_batches(java: Java, folder: Path) -> None:
    files = sorted(folder.glob("t-0/*.log")) + sorted(folder.glob("stamped-0/*.log"))
    assert len(files) > 3
    shown = dump(java, files, "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in shown
    records = BATCHES * 3 * len(CODECS) + BATCHES * len(CODECS)
    assert shown.count("| offset: ") == records
    for codec in CODECS:
        assert f"compresscodec: {codec}" in shown
    assert "headerKeys: [h]" in shown
    assert "LogAppendTime" in shown


def test_indexes(java: Java, folder: Path) -> None:
    files = sorted(folder.glob("*/*.index")) + sorted(folder.glob("*/*.timeindex"))
    shown = dump(java, files, "--index-sanity-check")
    assert shown.count("passed sanity check") + shown.count(".index is empty") == len(files)
    assert f"{folder}/t-0/00000000000000000000.index passed sanity check" in shown
    shown = dump(java, files, "--verify-index-only")
    assert "mismatch" not in shown.lower()
    assert "Found timestamp" not in shown


def test_producer_snapshots(java: Java, folder: Path) -> None:
    files = sorted(folder.glob("t-0/*.snapshot"))
    last = dump(java, files[-1:])
    # A snapshot has the last five batches of each producer.
    assert last.count("producerId: ") == 5 * len(CODECS)
    dump(java, files)


def test_group_offsets(java: Java, folder: Path) -> None:
    files = sorted(folder.glob("__consumer_offsets-*/*.log"))
    shown = dump(java, files, "--offsets-decoder", "--deep-iteration")
    assert "isvalid: false" not in shown
    assert '"group":"g","topic":"t","partition":0' in shown
    assert '"offset":5,"leaderEpoch":-1,"metadata":"a note' in shown
    assert '"protocolType":"consumer"' in shown
    assert "Could not" not in shown


def test_the_metadata_log_and_its_snapshots(java: Java, folder: Path) -> None:
    metadata = folder / CLUSTER_METADATA_FOLDER
    files = sorted(metadata.glob("*.log")) + sorted(metadata.glob("*.checkpoint"))
    shown = dump(java, files, "--cluster-metadata-decoder", "--deep-iteration")
    assert "isvalid: false" not in shown
    for kind in ("REGISTER_BROKER", "TOPIC", "PARTITION", "FEATURE_LEVEL", "CONFIG", "REMOVE_TOPIC"):
        assert f'"type":"{kind}_RECORD"' in shown
    assert "SnapshotHeader" in shown
    assert "SnapshotFooter" in shown
    assert "LeaderChange" in shown
    assert "Could not" not in shown


def test_the_metadata_shell_loads_the_log_and_a_snapshot(
    java_with_metadata_shell: Java, folder: Path
) -> None:
    metadata = folder / CLUSTER_METADATA_FOLDER
    snapshot, end = max(metadata.glob("*.checkpoint")), int(max(metadata.glob("*.snapshot")).stem)
    of_log, of_snapshot = java_with_metadata_shell.metadata_trees(metadata / f"{0:020}.log", snapshot)
    assert f"offset {end - 1}, epoch 1" in of_log
    for tree in (of_log, of_snapshot):
        assert "BrokerRegistration(id=1, " in tree
        assert re.search(r"TOPIC:t:\s+index.interval.bytes:\s+500\s+segment.bytes:\s+1048576\n", tree)
        assert re.search(r"finalized_eligible.leader.replicas.version:\s+1\n", tree)
        assert " t:\n" in tree.partition("byName:")[2]
    by_name = of_log.partition("byName:")[2]
    assert [name for name in (CONSUMER_OFFSETS_TOPIC, "stamped") if f" {name}:\n" not in by_name] == []
    # The log ends with the deletion of the last topic and the clean stop of the broker.
    assert "passing" not in by_name
    assert "inControlledShutdown=true" in of_log
    assert by_name.count("PartitionRegistration(replicas=[1], ") == 6
