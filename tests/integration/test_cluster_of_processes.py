"""Three controllers and two brokers as processes: librdkafka writes and reads over both brokers."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

CLUSTER_ID = "bW9sZGF1LXByb2Nlc3Nlcw"
CONTROLLERS, BROKERS = (1, 2, 3), (11, 12)
LIMIT_S = 120
QUIET = {"log_level": 0}


class Processes:
    """The nodes of a cluster, each started by its properties file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = free_ports(*CONTROLLERS, *BROKERS)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap = ",".join(f"127.0.0.1:{self._ports[node_id]}" for node_id in BROKERS)
        for node_id in (*CONTROLLERS, *BROKERS):
            self._config(node_id).write_text(self._properties(node_id))
            command = [*MOLDAU, "storage", "format", "--config", str(self._config(node_id)), "-t", CLUSTER_ID]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)

    def start(self, node_id: int) -> None:
        with self._log(node_id).open("ab") as log:
            command = [*MOLDAU, "node", "--config", str(self._config(node_id))]
            self._running[node_id] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self, node_id: int) -> None:
        process = self._running.pop(node_id)
        process.kill()
        process.wait(LIMIT_S)

    def stop(self) -> list[int]:
        """End all; their exit codes."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        return [process.wait(LIMIT_S) for process in self._running.values()]

    def leader(self) -> int:
        """The controller that the logs name for the newest epoch."""
        said = "".join(self._log(node_id).read_text() for node_id in CONTROLLERS)
        found = re.findall(r"node (\d+) leads the metadata quorum in epoch (\d+)", said)
        return max((int(epoch), int(node_id)) for node_id, epoch in found)[1]

    def _properties(self, node_id: int) -> str:
        is_controller = node_id in CONTROLLERS
        listener = "CONTROLLER" if is_controller else "PLAINTEXT"
        voters = ",".join(f"{voter}@127.0.0.1:{self._ports[voter]}" for voter in CONTROLLERS)
        lines = {
            "node.id": node_id,
            "process.roles": "controller" if is_controller else "broker",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listener}://127.0.0.1:{self._ports[node_id]}",
            "log.dirs": self._folder / str(node_id),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
        }
        return "\n".join(f"{key}={value}" for key, value in lines.items())

    def _config(self, node_id: int) -> Path:
        return self._folder / f"{node_id}.properties"

    def _log(self, node_id: int) -> Path:
        return self._folder / f"{node_id}.log"


MOLDAU = (sys.executable, "-m", "moldau")


def free_ports(*node_ids: int) -> dict[int, int]:
    with ExitStack() as stack:
        sockets = {node_id: stack.enter_context(socket.socket()) for node_id in node_ids}
        for each in sockets.values():
            each.bind(("127.0.0.1", 0))
        return {node_id: each.getsockname()[1] for node_id, each in sockets.items()}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    for node_id in (*CONTROLLERS, *BROKERS):
        found.start(node_id)
    try:
        yield found
    finally:
        assert set(found.stop()) == {0}


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


def test_clients_use_two_brokers_while_nodes_are_killed(processes: Processes) -> None:
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})

    def brokers() -> list[int]:
        return sorted(admin.list_topics(timeout=10).brokers)

    def leaders() -> list[int]:
        partitions = admin.list_topics("events", timeout=10).topics["events"].partitions
        return sorted(partition.leader for partition in partitions.values())

    wait_for(lambda: brokers() == [11, 12])
    admin.create_topics([NewTopic("events", 4, 1)])["events"].result(LIMIT_S)
    wait_for(lambda: leaders() == [11, 11, 12, 12])
    with pytest.raises(KafkaException, match="Replication factor: 2 larger than 1"):
        admin.create_topics([NewTopic("two", 1, 2)])["two"].result(LIMIT_S)

    acknowledged: set[bytes] = set()
    producer = Producer({"bootstrap.servers": processes.bootstrap, "enable.idempotence": True, **QUIET})
    for number in range(1000):
        producer.produce(
            "events",
            b"%d" % number,
            key=b"%d" % number,
            on_delivery=lambda error, message: None if error else acknowledged.add(message.value()),
        )
        producer.poll(0)
        if number == 500:
            leader = processes.leader()
            processes.kill(leader)
    admin.create_topics([NewTopic("later", 2, 1)], operation_timeout=60, request_timeout=100)["later"].result(
        LIMIT_S
    )
    producer.flush(LIMIT_S)
    assert len(acknowledged) == 1000
    processes.start(leader)

    group = {"group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": processes.bootstrap, **group, **QUIET})
    consumer.subscribe(["events"])
    read: set[bytes] = set()

    def has_read_all() -> bool:
        read.update(message.value() for message in consumer.consume(500, 1.0) if not message.error())
        return read == acknowledged

    wait_for(has_read_all)
    consumer.close()

    processes.kill(12)
    wait_for(lambda: brokers() == [11] and leaders() == [-1, -1, 11, 11])
    processes.start(12)
    wait_for(lambda: brokers() == [11, 12] and leaders() == [11, 11, 12, 12])
