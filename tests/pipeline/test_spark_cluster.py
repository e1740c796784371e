"""The long-lived process of jobs, on a real cluster of two workers."""

import json
import pathlib
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from spark_support import missing_spark

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

from confluent_kafka import Producer
from exporting import create_topic, read_dead_letters, read_table
from spark_cluster import JAVA_OPTIONS, Cluster, environment, standalone_cluster

import moldau.testing
from moldau.pipeline.export import ExportJob

RECORDS = 4_000
WAIT_S = 240.0

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node(diskless=True) as running:
        create_topic(running, "orders", partitions=4)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(RECORDS):
            value = b"oops" if number == 77 else json.dumps({"total": number}).encode()
            producer.produce("orders", value=value, partition=number % 4)
        assert producer.flush(60) == 0
        yield running


JOBS = """
bootstrap = "{bootstrap}"
master = "{master}"
metrics_port = 0
[spark]
"spark.driver.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.executor.memory" = "512m"
"spark.executor.cores" = 1
"spark.executor.extraJavaOptions" = "{java_options}"
[[job]]
kind = "export"
topic = "orders"
to = "{folder}"
format = "iceberg"
value = "json"
schema = "total INT"
interval = 1
"""


def test_jobs_run_on_a_cluster_until_they_are_told_to_stop(
    cluster: Cluster, node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    jobs = tmp_path / "jobs.toml"
    lake = tmp_path / "lake"
    jobs.write_text(
        JOBS.format(
            bootstrap=node.bootstrap_servers, master=cluster.master, java_options=JAVA_OPTIONS, folder=lake
        )
    )
    command = [sys.executable, "-m", "moldau", "pipeline", "run", "--config", str(jobs)]
    with (tmp_path / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment(), cwd=tmp_path, text=True
        )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline() or "{}")
        assert ready.get("ready") == ["export-orders"], (tmp_path / "stderr").read_text()
        done = json.loads(process.stdout.readline())
        assert (done.get("error"), done["records"], done["dead_letters"]) == (None, RECORDS - 1, 1)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{ready['metrics_port']}/metrics", timeout=60
        ) as answer:
            text = answer.read().decode()
        assert (
            f'moldau_pipeline_Jobs_Records_total{{job="export-orders",kind="export"}} {RECORDS - 1}\n' in text
        )
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(WAIT_S) == 0, (tmp_path / "stderr").read_text()
    finally:
        process.kill()
        process.wait()
    assert all(cluster.executors()), "both workers had work"
    job = ExportJob(node.bootstrap_servers, "orders", str(lake), "iceberg")
    totals = sorted(row["value"]["total"] for row in read_table(job))
    assert totals == [number for number in range(RECORDS) if number != 77]
    assert [row["value"] for row in read_dead_letters(job)] == [b"oops"]
