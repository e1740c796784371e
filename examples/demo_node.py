"""The node of the demo: a ``moldau dev`` process that can be killed. The module also reads the content of the
node's object store, and counts the node's requests to the store.
"""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass

from rich.console import Console

console = Console()

SETTINGS = (
    # With these settings Spark consolidates at the end of the demo. By default it would wait for an hour or
    # for 64 MiB.
    "diskless.consolidation.enable=false",
    "diskless.consolidation.segment.bytes=1048576",
    "diskless.consolidation.max.age.ms=0",
)


class Node:
    """A ``moldau dev`` process on a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = pathlib.Path(folder)
        self.bootstrap = ""
        self.requests: Counter[str] = Counter()
        """Number of requests to the object store, by kind, over all starts of the node."""
        self._port = free_port()
        self._metrics_port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process. Returns when the node accepts clients."""
        began = time.monotonic()
        self._metrics_port = free_port()
        command = [sys.executable, "-m", "moldau", "dev", "--data", str(self.folder / "data")]
        command += ["--port", str(self._port), "--set", f"metrics.listener=127.0.0.1:{self._metrics_port}"]
        for setting in SETTINGS:
            command += ["--set", setting]
        log = open(self.folder / "node.log", "a")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ready "):
                self.bootstrap = line.split()[1]
                took_ms = (time.monotonic() - began) * 1000
                console.print(
                    f"[green]node {self._process.pid} ready[/] at {self.bootstrap} after {took_ms:.0f} ms"
                )
                return
        raise SystemExit(
            f"the node did not start; its log says:\n{(self.folder / 'node.log').read_text()[-2000:]}"
        )

    def kill(self) -> None:
        """Kill the process with SIGKILL, so that it cannot clean up."""
        assert self._process is not None
        self._count_requests()
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        console.print(f"[red]node {self._process.pid} killed[/] with SIGKILL, in the middle of the stream")

    def stop(self) -> None:
        """Stop the process cleanly."""
        assert self._process is not None
        if self._process.poll() is not None:
            return
        self._count_requests()
        self._process.terminate()
        code = self._process.wait(timeout=60)
        console.print(f"node {self._process.pid} stopped, exit code {code}")

    def _count_requests(self) -> None:
        """Add the number of requests that this process has sent to the object store. The process shows these
        numbers in ``/metrics``."""
        for name, value in self.metrics().items():
            meter, _, labels = name.partition("{")
            if meter == "moldau_objects_ObjectStorage_RequestsPerSec_total":
                self.requests[labels.split('"')[1]] += round(value)

    def metrics(self) -> dict[str, float]:
        """The node's metrics by name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics") as page:
            lines = page.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


def free_port() -> int:
    """A port that stays free while the node is stopped. It is outside the range from which the system chooses
    ports.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of an object store."""

    files: int
    size_bytes: int


def stored_objects(node: Node) -> Stored:
    """The objects of the development node's store, which is a folder. In production it would be a bucket."""
    sizes = [path.stat().st_size for path in (node.folder / "data" / "objects").rglob("*") if path.is_file()]
    return Stored(len(sizes), sum(sizes))
