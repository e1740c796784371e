"""A standalone Spark cluster on loopback: a master and two workers. It uses the installed PySpark package."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyspark

T = TypeVar("T")
WORKERS = 2
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Settings for Spark processes that run only for seconds."""
WAIT_S = 450.0
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")


@dataclass(frozen=True)
class Cluster:
    """A Spark cluster. ``folder`` contains the logs, and the data of the workers' executors. Each worker has
    two cores."""

    master: str
    folder: pathlib.Path

    def executors(self) -> list[set[str]]:
        """The folders of all executors of each worker."""
        return [
            {str(found) for found in (self.folder / f"worker-{number}").glob("app-*/*")}
            for number in range(WORKERS)
        ]


def eventually(probe: Callable[[], T | None], what: str) -> T:
    """Call ``probe`` until it returns a true value. Returns this value."""
    deadline = time.monotonic() + WAIT_S
    while True:
        if found := probe():
            return found
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.05)


def environment() -> dict[str, str]:
    """The environment of every process of the cluster, and of the driver."""
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
    }


@contextlib.contextmanager
def _process(folder: pathlib.Path, name: str, arguments: Sequence[str]) -> Iterator[pathlib.Path]:
    """Start one of Spark's processes and return its log. The process is stopped at the end."""
    script = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [script, *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment(), cwd=folder
        )
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def standalone_cluster(folder: pathlib.Path) -> Iterator[Cluster]:
    """Start a cluster. It is ready when both workers have registered."""
    listen = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(
            _process(folder, "master", ["org.apache.spark.deploy.master.Master", *listen])
        )
        found = eventually(lambda: _ADDRESS.search(log.read_text()), "the master listens")
        for number in range(WORKERS):
            arguments = ["org.apache.spark.deploy.worker.Worker", *listen, "--cores", "2", "--memory", "1g"]
            arguments += ["--work-dir", str(folder / f"worker-{number}"), found[1]]
            stack.enter_context(_process(folder, f"worker-{number}-log", arguments))
        eventually(lambda: log.read_text().count("Registering worker") == WORKERS, "both workers are there")
        yield Cluster(found[1], folder)
