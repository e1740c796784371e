"""Jobs on two real workers: a long-running process beside a node, and a job of spark-submit."""

import contextlib
import json
import pathlib
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from spark_support import missing_spark

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from exporting import read_dead_letters, read_table
from spark_cluster import JAVA_OPTIONS, WAIT_S, Cluster, environment, eventually, standalone_cluster

from moldau.pipeline.export.job import ExportJob

RECORDS = 4_000
DOCUMENTATION = pathlib.Path(__file__).resolve().parents[3] / "docs" / "pipeline.md"

pytestmark = [pytest.mark.timeout(1500)]

JOBS = """
master = "{master}"
metrics_port = 0
[spark]
"spark.driver.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.executor.memory" = "512m"
"spark.executor.cores" = 1
"spark.cores.max" = 2
"spark.executor.extraJavaOptions" = "{java_options}"
[[job]]
kind = "export"
topic = "orders"
to = "{folder}"
format = "iceberg"
value = "json"
schema = "total INT"
interval = 1
[[job]]
kind = "consolidate"
interval = 1
"""
SETTINGS = (
    "diskless.consolidation.enable=false",
    "diskless.consolidation.segment.bytes=20000",
    "diskless.consolidation.max.age.ms=0",
    "diskless.metadata.topic.num.partitions=2",
    "remote.log.metadata.topic.num.partitions=2",
)


def produce(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", num_partitions=4)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        value = b"oops" if number == 77 else json.dumps({"total": number}).encode()
        producer.produce("orders", value=value, partition=number % 4)
    assert producer.flush(60) == 0


@contextlib.contextmanager
def submitted(
    cluster: Cluster, bootstrap: str, folder: pathlib.Path, log: pathlib.Path
) -> Iterator[subprocess.Popen[str]]:
    """Run an export with the program of the documentation, on one core of the cluster."""
    program = folder.parent / "moldau_job.py"
    (text,) = re.findall(r"```python\n(# moldau_job\.py.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    program.write_text(text)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.cores.max": "1",
    }
    command = [str(pathlib.Path(sys.executable).with_name("spark-submit")), "--master", cluster.master]
    command += ["--driver-java-options", JAVA_OPTIONS]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command += [str(program), "pipeline", "export", "--bootstrap", bootstrap, "--topic", "orders"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--to", str(folder), "--json"],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
            cwd=folder.parent,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """All complete JSON lines of a log."""
    found = [line for line in path.read_text().split("\n")[:-1] if line.startswith("{")]
    return [json.loads(line) for line in found]


def test_jobs_run_on_a_cluster_until_the_node_stops(tmp_path: pathlib.Path) -> None:
    """The first rounds may fail, because the topic does not exist yet."""
    lake, jobs, log = tmp_path / "lake", tmp_path / "jobs.toml", tmp_path / "stderr"
    with standalone_cluster(tmp_path) as cluster, log.open("wb") as errors:
        jobs.write_text(JOBS.format(master=cluster.master, java_options=JAVA_OPTIONS, folder=lake))
        command = [sys.executable, "-m", "moldau", "dev", "--data", str(tmp_path / "data"), "--port", "0"]
        command += [word for setting in SETTINGS for word in ("--set", setting)]
        node = subprocess.Popen(
            [*command, "--pipeline-config", str(jobs)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
            cwd=tmp_path,
            text=True,
        )
        try:
            assert node.stdout is not None
            word, _, bootstrap = node.stdout.readline().strip().partition(" ")
            assert word == "ready", log.read_text()
            produce(bootstrap)
            with submitted(cluster, bootstrap, tmp_path / "files", tmp_path / "submit") as job:
                output, _ = job.communicate(timeout=WAIT_S)
                assert job.returncode == 0, (tmp_path / "submit").read_text()
                # Spark writes the progress lines of the program into the same stream.
                assert json.loads(output[output.index("{\n") :])["records"] == RECORDS
            eventually(
                lambda: sum(line.get("records", 0) for line in lines(log)) == RECORDS - 1, "the whole table"
            )
            eventually(lambda: any(line.get("segments") for line in lines(log)), "segments")
            (ready,) = [line for line in lines(log) if "ready" in line]
            assert ready["ready"] == ["export-orders", "consolidate"]
            metrics = f"http://127.0.0.1:{ready['metrics_port']}/metrics"
            with urllib.request.urlopen(metrics, timeout=60) as answer:
                text = answer.read().decode()
            assert 'moldau_pipeline_Jobs_DeadLetters_total{job="export-orders",kind="export"} 1\n' in text
            node.send_signal(signal.SIGTERM)
            node.stdout.read()
            assert node.wait(WAIT_S) == 0, log.read_text()
        finally:
            node.kill()
            node.wait()
            node.stdout.close()
        assert all(cluster.executors()), "both workers had work"
    job = ExportJob(bootstrap, "orders", str(lake), "iceberg")
    totals = sorted(row["value"]["total"] for row in read_table(job))
    assert totals == [number for number in range(RECORDS) if number != 77]
    assert [row["value"] for row in read_dead_letters(job)] == [b"oops"]
    assert "ended with exit code" not in log.read_text()
