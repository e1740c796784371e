"""An export and a verification of a cluster of three brokers. A broker is killed in the middle of each job.
The tests do not need Spark."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

import pyarrow.dataset
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.checks.verify import VerifyJob, verify_once
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.runtime import KafkaError

T = TypeVar("T")

TOPIC, PARTITIONS, RECORDS = "events", 3, 200
TIMEOUT_S = 120.0
PROPERTIES = {
    "diskless.metadata.topic.num.partitions": "2",
    # A part of the records leaves the WAL, so the jobs read both places.
    "diskless.consolidation.segment.bytes": "3000",
    "diskless.consolidation.max.age.ms": "3600000",
    "diskless.consolidation.interval.ms": "1000",
}


class Killing:
    """Runs the units of a job in this process, and kills a broker before the first unit."""

    def __init__(self, cluster: moldau.testing.Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self.has_killed = False

    def __call__(self, function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        if units and not self.has_killed:
            self.has_killed = True
            self._cluster.kill(self._broker_id)
        return [function(unit) for unit in units]


@pytest.fixture
def cluster() -> Iterator[moldau.testing.Cluster]:
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"diskless.enable": "true"})
        admin.create_topics([new])[TOPIC].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "batch.num.messages": 10})
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"%d-%d-" % (partition, number) + b"v" * 50, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        yield running


def leader_of(cluster: moldau.testing.Cluster) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    leader: int = admin.list_topics(TOPIC).topics[TOPIC].partitions[0].leader
    return leader


def until_done(job: Callable[[], T]) -> T:
    """Run a job again until it succeeds. Before the killed broker is fenced, a run may fail, because a
    coordinator or a partition has no leader."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return job()
        except (KafkaError, ToolError, OSError):
            if time.monotonic() > deadline:
                raise


def test_an_export_has_every_record_once(cluster: moldau.testing.Cluster, tmp_path: Path) -> None:
    run = Killing(cluster, leader_of(cluster))
    job = ExportJob(cluster.bootstrap_servers, TOPIC, str(tmp_path / "table"), "parquet")
    until_done(lambda: export_once(job, run))
    assert run.has_killed
    table = pyarrow.dataset.dataset(str(tmp_path / "table")).to_table(columns=["partition", "offset"])
    rows = sorted(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))
    assert rows == [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]


def test_a_verification_finds_no_damage(cluster: moldau.testing.Cluster) -> None:
    run = Killing(cluster, leader_of(cluster))
    found = until_done(lambda: verify_once(VerifyJob(cluster.bootstrap_servers), run))
    assert run.has_killed
    assert (found["partitions"], found["damages"]) == (PARTITIONS, 0)
    assert found["records"] + found["moved"] > 0
