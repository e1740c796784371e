"""``moldau pipeline export`` as a process with Spark, against three brokers. A broker is killed while the
command writes files."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

import pyarrow.parquet as parquet
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing

TOPIC, PARTITIONS, RECORDS, UNIT_RECORDS = "events", 3, 2_000, 200
TIMEOUT_S = 120.0
PROPERTIES = {"diskless.metadata.topic.num.partitions": "3"}


def export(bootstrap: str, folder: Path) -> "subprocess.Popen[str]":
    command = ["pipeline", "export", "--topic", TOPIC, "--to", str(folder), "--once", "-b", bootstrap]
    options = ["--unit-records", str(UNIT_RECORDS), "--master", "local[1]"]
    return subprocess.Popen(
        [sys.executable, "-m", "moldau", *command, *options], stderr=subprocess.PIPE, text=True
    )


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if not path.name.startswith(".")]


@pytest.mark.parametrize("diskless", ["true", "false"], ids=["diskless", "classic"])
def test_a_broker_is_killed_while_a_topic_is_exported(tmp_path: Path, diskless: str) -> None:
    """The table gets each record once, perhaps after another run of the command."""
    folder = tmp_path / "table"
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"diskless.enable": diskless})
        admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"%d-%d" % (partition, number), partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        leader = admin.list_topics(TOPIC).topics[TOPIC].partitions[0].leader

        running = export(cluster.bootstrap_servers, folder)
        deadline = time.monotonic() + TIMEOUT_S
        while not files(folder):
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        cluster.kill(leader)
        assert len(files(folder)) < PARTITIONS * RECORDS // UNIT_RECORDS, "the command was almost done"
        _, errors = running.communicate(timeout=TIMEOUT_S)
        if running.returncode:
            assert "Traceback" not in errors
            again = export(cluster.bootstrap_servers, folder)
            _, errors = again.communicate(timeout=TIMEOUT_S)
            assert again.returncode == 0, errors
        table = parquet.read_table(folder, columns=["partition", "offset", "value"])
    rows = sorted(zip(*(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True))
    assert rows == [
        (partition, number, b"%d-%d" % (partition, number))
        for partition in range(PARTITIONS)
        for number in range(RECORDS)
    ]
