"""The nodes of a cluster as processes, for tests that kill them."""

import contextlib
import io
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaException

from moldau.cli.main import main

CLUSTER_ID = "bW9sZGF1LXByb2Nlc3Nlcw"
LIMIT_S = 120
QUIET = {"log_level": 0}
MOLDAU = (sys.executable, "-m", "moldau")
NEXT_MOLDAU = (sys.executable, str(Path(__file__).parent / "next_version.py"))
"""The command line that starts the next version of the program."""


class Processes:
    """The nodes of a cluster. Each node is a process with its own properties file."""

    def __init__(
        self,
        folder: Path,
        roles: Mapping[int, str],
        properties: Mapping[str, str | int],
        *,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        """``roles`` has ``process.roles`` by node id. ``properties`` are for all nodes. ``racks`` has
        ``broker.rack`` by node id."""
        self._folder = folder
        self._roles = roles
        self._racks = racks or {}
        self._more = properties
        self._brokers = [node_id for node_id, role in roles.items() if "broker" in role]
        self._controllers = [node_id for node_id, role in roles.items() if "controller" in role]
        ports = free_ports(len(self._brokers) + len(self._controllers))
        self._broker_ports = {node_id: ports.pop() for node_id in self._brokers}
        self._controller_ports = {node_id: ports.pop() for node_id in self._controllers}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._broker_ports.values())
        for node_id in roles:
            self._config(node_id).write_text(self._properties(node_id))
            # The folders are formatted in this process. Starting another process for this would take longer
            # than all formats together.
            formatting = ["storage", "format", "--config", str(self._config(node_id)), "-t", CLUSTER_ID]
            with contextlib.redirect_stdout(io.StringIO()):
                assert main(formatting) == 0

    def start(self, *node_ids: int, program: Sequence[str] = MOLDAU) -> None:
        for node_id in node_ids:
            with self._log(node_id).open("ab") as log:
                command = [*program, "node", "--config", str(self._config(node_id))]
                self._running[node_id] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def fail_to_start(self, node_id: int) -> str:
        """Start a node that must end by itself with exit code 1. Returns the last line of its output."""
        self.start(node_id)
        assert self._running.pop(node_id).wait(LIMIT_S) == 1
        return self._log(node_id).read_text().splitlines()[-1]

    def kill(self, node_id: int) -> None:
        process = self._running.pop(node_id)
        process.kill()
        process.wait(LIMIT_S)

    def pause(self, node_id: int) -> None:
        """Stop a node with SIGSTOP. Its connections stay open, and it does not read from them."""
        self._running[node_id].send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self._running[node_id].send_signal(signal.SIGCONT)

    def terminate(self, node_id: int) -> int:
        """Stop a node cleanly. Returns its exit code."""
        process = self._running.pop(node_id)
        process.send_signal(signal.SIGTERM)
        return process.wait(LIMIT_S)

    def stop(self) -> list[int]:
        """Stop all nodes. Returns their exit codes."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        return [process.wait(LIMIT_S) for process in self._running.values()]

    def kill_all(self) -> None:
        """Kill all nodes that run."""
        for node_id in list(self._running):
            self.kill(node_id)

    def serves(self, node_id: int) -> bool:
        """Whether a node accepts connections."""
        port = self._controller_ports.get(node_id) or self._broker_ports[node_id]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def leader(self) -> int:
        """The leader of the newest epoch in the controllers' logs."""
        said = "".join(self._log(node_id).read_text() for node_id in self._controllers)
        found = re.findall(r"node (\d+) leads the metadata quorum in epoch (\d+)", said)
        return max((int(epoch), int(node_id)) for node_id, epoch in found)[1]

    def change_levels(self, *arguments: str) -> str:
        """Change feature levels of the cluster. Returns the error text, or an empty text."""
        upgrade = ["cluster", "upgrade", *arguments, "--bootstrap", self.bootstrap]
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as complaint,
        ):
            return complaint.getvalue() if main(upgrade) else ""

    def segments(self, node_id: int, partition: str) -> bytes:
        """The bytes of a partition's segments on one node."""
        folder = self._folder / str(node_id) / partition
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def _properties(self, node_id: int) -> str:
        listeners = []
        if node_id in self._broker_ports:
            listeners.append(f"PLAINTEXT://127.0.0.1:{self._broker_ports[node_id]}")
        if node_id in self._controller_ports:
            listeners.append(f"CONTROLLER://127.0.0.1:{self._controller_ports[node_id]}")
        voters = (f"{voter}@127.0.0.1:{port}" for voter, port in self._controller_ports.items())
        lines = {
            "node.id": node_id,
            "process.roles": self._roles[node_id],
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "log.dirs": self._folder / str(node_id),
            **self._more,
        }
        if node_id in self._racks:
            lines["broker.rack"] = self._racks[node_id]
        return "\n".join(f"{key}={value}" for key, value in lines.items())

    def _config(self, node_id: int) -> Path:
        return self._folder / f"{node_id}.properties"

    def _log(self, node_id: int) -> Path:
        return self._folder / f"{node_id}.log"


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not _holds(condition):
        assert time.monotonic() < deadline, "the cluster does not come to what is expected"
        time.sleep(0.2)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except KafkaException:
        return False
