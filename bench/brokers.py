"""Brokers as processes: how a broker is started, and which resources it uses."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

JARS: Final = pathlib.Path(".tools/jars")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a process: CPU seconds (user and system, all threads) and current memory."""

    user_s: float
    system_s: float
    rss_bytes: int

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


def usage_of(pid: int) -> Usage:
    """The resources of a process, from its files ``stat`` and ``status`` in ``/proc``."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    rss_kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return Usage(int(fields[11]) / TICKS_PER_S, int(fields[12]) / TICKS_PER_S, int(rss_kib) * 1024)


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, and wait. If it does not end in time, it is killed."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Broker:
    """A broker's process. It accepts clients when the constructor returns. ``stop`` ends it and removes its
    data."""

    name: str

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._log = (folder / "broker.log").open("w")
        start = time.perf_counter()
        self._process, self.bootstrap = self._start()
        self.start_s = time.perf_counter() - start

    def _start(self) -> tuple[subprocess.Popen[str], str]:
        raise NotImplementedError

    def _wait_until_ready(self, process: subprocess.Popen[str], port: int) -> None:
        """Wait until the broker responds to a request for its topics."""
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
                AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=2)
                return
            except Exception:
                time.sleep(0.05)
        process.kill()
        raise RuntimeError(f"{self.name} did not start: {(self.folder / 'broker.log').read_text()[-2000:]}")

    @property
    def version(self) -> str:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        return self._process.pid

    def usage(self) -> Usage:
        return usage_of(self._process.pid)

    def stop(self) -> None:
        end(self._process)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Moldau(Broker):
    """A development node with classic topics."""

    name = "moldau"

    def arguments(self, data: pathlib.Path) -> list[str]:
        """Arguments of ``moldau dev``."""
        return ["--classic", "--data", str(data), "--port", "0"]

    def _start(self) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "moldau", "dev", *self.arguments(self.folder / "data")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert process.stdout is not None
        line = process.stdout.readline().split()
        if not line or line[0] != "ready":
            process.kill()
            raise RuntimeError(f"the node did not start: {(self.folder / 'broker.log').read_text()}")
        return process, line[1]

    @property
    def version(self) -> str:
        import moldau

        return moldau.__version__


class Kafka(Broker):
    """Apache Kafka from its jars: one KRaft node that is broker and controller. Its JVM has a heap
    of 1 GiB."""

    name = "kafka"

    def _start(self) -> tuple[subprocess.Popen[str], str]:
        port, controller_port = free_ports(2)
        properties = self.folder / "server.properties"
        properties.write_text(kafka_properties(self.folder / "data", port, controller_port))
        java = ["java", "-cp", f"{JARS}/*"]
        quiet = [f"-Dlog4j2.configurationFile={quiet_logging(self.folder)}"]
        # With Kafka, an operator formats the folder before the start. So this step is not part of the start.
        formatting = ["kafka.tools.StorageTool", "format", "--config", str(properties)]
        subprocess.run(
            [*java, *quiet, *formatting, "--cluster-id", "bW9sZGF1LWJlbmNoLWthZg", "--standalone"],
            check=True,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._formatted = time.perf_counter()
        heap = ["-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        process = subprocess.Popen(
            [*java, *heap, *quiet, "kafka.Kafka", str(properties)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._wait_until_ready(process, port)
        self.serving_s = time.perf_counter() - self._formatted
        return process, f"127.0.0.1:{port}"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.start_s = self.serving_s

    @property
    def version(self) -> str:
        jar = next(iter(JARS.glob("kafka_2.13-*.jar")))
        return jar.stem.removeprefix("kafka_2.13-")


def quiet_logging(folder: pathlib.Path) -> pathlib.Path:
    """Write a logging configuration, and return its path. With it, Kafka logs only warnings and errors, like
    Moldau in this benchmark."""
    path = folder / "log4j2.properties"
    path.write_text(
        "status = error\nappender.console.type = Console\nappender.console.name = console\n"
        "rootLogger.level = warn\nrootLogger.appenderRef.console.ref = console\n"
    )
    return path


def kafka_properties(data: pathlib.Path, port: int, controller_port: int) -> str:
    """The configuration of a single node of Kafka. All other keys have Kafka's defaults."""
    return "\n".join(
        [
            "process.roles=broker,controller",
            "node.id=1",
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names=CONTROLLER",
            f"controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}",
            f"log.dirs={data.resolve()}",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            "",
        ]
    )


def free_ports(count: int) -> list[int]:
    """Unused ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
