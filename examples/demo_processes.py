"""The processes of the cluster demo: one ``moldau dev`` with several nodes, and the nodes that were
restarted.

``moldau dev`` does not restart a dead node. It prints the command for the restart on stderr, and the demo
runs this command. The demo ends only processes that it has started, by their pids.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from demo_node import console

SETTINGS = (
    # A broker without heartbeats is fenced after 3 s instead of Kafka's 9 s, because a demo is short.
    "broker.heartbeat.interval.ms=500",
    "broker.session.timeout.ms=3000",
    # All diskless partitions have one coordinator, so the loss of its broker has the largest effect.
    "diskless.metadata.topic.num.partitions=1",
    "min.insync.replicas=2",
    # With these settings, segments of a tiered topic leave the brokers' disks within seconds instead of
    # minutes.
    "log.retention.check.interval.ms=1000",
    "remote.log.manager.task.interval.ms=500",
    "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector",
)
STOP_TIMEOUT_S = 20.0


class Late(Exception):
    """An event did not happen before the demo's deadline. The message names the event."""


class Deadline:
    """The time at which the demo must have ended."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s

    def left_s(self, awaited: str) -> float:
        """The remaining seconds. Raises :class:`Late` if the deadline has passed."""
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise Late(awaited)
        return left_s


def ports_in_a_row(count: int) -> int:
    """The first of ``count`` free ports that follow each other."""
    while True:
        first = random.randrange(15_000, 31_000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port))
            return first


class ClusterProcesses:
    """Three brokers in three racks and three controllers, each in its own process."""

    def __init__(self, folder: pathlib.Path, deadline: Deadline, settings: Sequence[str] = SETTINGS) -> None:
        self.bootstrap = ""
        self._settings = settings
        self._data = folder / "data"
        self._stderr = folder / "dev.log"
        self._deadline = deadline
        self._dev: subprocess.Popen[str] | None = None
        self._advice: dict[int, str] = {}
        """The commands that start the killed nodes again, by node id."""
        self._restarted: dict[int, subprocess.Popen[str]] = {}

    def start(self, first_port: int = 0) -> None:
        """Start all nodes. Returns when each node accepts clients. The brokers use ``first_port`` and the
        ports after it. Without ``first_port`` they use any free ports."""
        began = time.monotonic()
        self._start(first_port, ())
        console.print(
            f"[green]three brokers and three controllers ready[/] at {self.bootstrap}"
            f" after {(time.monotonic() - began) * 1000:.0f} ms"
        )

    def restore(self, store: pathlib.Path) -> None:
        """Restore all nodes from their object store into new folders, and start them at the addresses of the
        lost brokers."""
        first_port = int(self.bootstrap.split(",")[0].rpartition(":")[2])
        self._start(first_port, ("--restore-from", f"file://{store}"))

    def _start(self, first_port: int, options: Sequence[str]) -> None:
        arguments = ["dev", "--data", str(self._data), "--port", str(first_port), *options]
        arguments += ["--brokers", "3", "--controllers", "3", "--racks", "a,b,c"]
        for setting in self._settings:
            arguments += ["--set", setting]
        self._dev = self._run(arguments, self._stderr)
        self.bootstrap = self._ready(self._dev, "a cluster that accepts clients", self._stderr).split()[1]

    def kill(self, node_id: int, kind: str) -> None:
        """End a node with SIGKILL, and wait until ``moldau dev`` has reported its end."""
        pid = self._node(node_id)["pid"]
        os.kill(pid, signal.SIGKILL)
        console.print(f"[red]{kind} {node_id} (pid {pid}) killed[/] with SIGKILL")
        report = re.compile(rf"\(pid {pid}\) was ended by SIGKILL; `moldau (.*)` starts it again")
        while (found := report.search(self._stderr.read_text())) is None:
            self._deadline.left_s(f"the report that node {node_id} has died")
            time.sleep(0.05)
        self._advice[node_id] = found[1]

    def start_again(self, node_id: int) -> None:
        """Start a killed node on its data, with the command that ``moldau dev`` prints. Returns when the node
        accepts clients."""
        began = time.monotonic()
        log = pathlib.Path(self._node(node_id)["log"])
        process = self._run([*shlex.split(self._advice[node_id]), "--log-level", "warning"], log)
        self._restarted[node_id] = process
        self._ready(process, f"node {node_id}, which was started again", log)
        console.print(
            f"[green]node {node_id} ready again[/] (pid {process.pid})"
            f" after {(time.monotonic() - began) * 1000:.0f} ms"
        )

    def lose_all_disks(self, kept: pathlib.Path) -> pathlib.Path:
        """Kill every process, move the object store to ``kept``, and delete everything else."""
        nodes: list[dict[str, Any]] = json.loads((self._data / "cluster.json").read_text())["nodes"]
        assert self._dev is not None
        for pid in (self._dev.pid, *(node["pid"] for node in nodes)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._dev.wait()
        self._dev = None
        shutil.move(self._data / "objects", kept)
        shutil.rmtree(self._data)
        return kept

    def stop(self) -> list[str]:
        """End all processes, brokers before controllers. Returns the processes that did not end cleanly."""
        dev = [] if self._dev is None else [("moldau dev", self._dev)]
        roles = {node_id: self._node(node_id)["roles"] for node_id in self._restarted}
        again = [(f"node {node_id}", process) for node_id, process in self._restarted.items()]
        brokers = [each for each, role in zip(again, roles.values(), strict=True) if "broker" in role]
        controllers = [each for each in again if each not in brokers]
        problems = []
        for name, process in [*brokers, *dev, *controllers]:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                # `moldau dev` ends two groups of nodes, one after the other.
                code = process.wait(STOP_TIMEOUT_S * (2 if name == "moldau dev" else 1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                problems.append(f"{name} (pid {process.pid}) did not stop and was killed")
            else:
                problems += [f"{name} ended with exit code {code}"] if code else []
        return problems

    def _node(self, node_id: int) -> dict[str, Any]:
        nodes: list[dict[str, Any]] = json.loads((self._data / "cluster.json").read_text())["nodes"]
        return next(node for node in nodes if node["id"] == node_id)

    def _run(self, arguments: list[str], log: pathlib.Path) -> subprocess.Popen[str]:
        with log.open("a") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "moldau", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # Ctrl-C in a terminal reaches only the demo, which then ends the other processes in order.
                start_new_session=True,
            )

    def _ready(self, process: subprocess.Popen[str], awaited: str, log: pathlib.Path) -> str:
        """The line that a process prints when it accepts clients."""
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], self._deadline.left_s(awaited))[0]:
            raise Late(awaited)
        line = process.stdout.readline()
        if not line:
            raise Late(f"{awaited}; its log says:\n{log.read_text()[-2000:]}")
        return line
