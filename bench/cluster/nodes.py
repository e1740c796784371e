"""The nodes of a cluster as processes: three controllers and three brokers, of Moldau or of Apache Kafka.

Both systems get the same properties, except for keys that only one of them supports.
"""

import functools
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from bench.brokers import JARS, STOP_TIMEOUT_S, Usage, free_ports, quiet_logging, usage_of
from bench.partitions import Connection
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER, CLUSTER_METADATA_TOPIC
from moldau.protocol.schema import Message

Figures: TypeAlias = dict[str, float | int | str]
"""The measurements of one system, each with its name."""

CONTROLLERS: Final = (101, 102, 103)
BROKERS: Final = (1, 2, 3)
CLUSTER_ID: Final = "bW9sZGF1LWJlbmNoLWthZg"
LIMIT_S: Final = 300.0
POLL_S: Final = 0.005
METADATA: Final = (3, 12)
DESCRIBE_QUORUM: Final = (55, 1)

PROPERTIES: Final = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "3",
    # the values that the documentation recommends for short pauses
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "200",
}


class ClusterNodes:
    """The processes of one cluster. ``stop`` ends all of them."""

    name: str

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        controllers: Iterable[int] = CONTROLLERS,
        brokers: Iterable[int] = BROKERS,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Formats the folders, but starts no process. ``properties`` are for all nodes."""
        self.folder = folder
        folder.mkdir(parents=True)
        self.controllers, self.brokers = tuple(controllers), tuple(brokers)
        ids = (*self.controllers, *self.brokers)
        self._ports = dict(zip(ids, free_ports(len(ids)), strict=True))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._log = (folder / "nodes.log").open("ab")
        for node_id in ids:
            lines = {**self._properties(node_id), **PROPERTIES, **(properties or {})}
            self._config(node_id).write_text("\n".join(f"{key}={value}" for key, value in lines.items()))
            subprocess.run(self._formatting(node_id), check=True, stdout=self._log, stderr=subprocess.STDOUT)

    def _command(self, node_id: int) -> list[str]:
        raise NotImplementedError

    def _formatting(self, node_id: int) -> list[str]:
        raise NotImplementedError

    def _properties(self, node_id: int) -> dict[str, str]:
        is_broker = node_id in self.brokers
        voters = (f"{voter}@127.0.0.1:{self._ports[voter]}" for voter in self.controllers)
        listener = "PLAINTEXT" if is_broker else "CONTROLLER"
        return {
            "process.roles": "broker" if is_broker else "controller",
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"{listener}://{self.address(node_id)}",
            "log.dirs": str((self.folder / str(node_id)).resolve()),
        }

    def _config(self, node_id: int) -> pathlib.Path:
        return self.folder / f"{node_id}.properties"

    def address(self, node_id: int) -> str:
        return f"127.0.0.1:{self._ports[node_id]}"

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.address, self.brokers))

    def metadata_folder(self, node_id: int) -> pathlib.Path:
        return self.folder / str(node_id) / CLUSTER_METADATA_FOLDER

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids or (*self.controllers, *self.brokers):
            self._running[node_id] = subprocess.Popen(
                self._command(node_id), stdout=self._log, stderr=subprocess.STDOUT
            )

    def kill(self, node_id: int) -> None:
        process = self._running.pop(node_id)
        process.kill()
        process.wait()

    def end(self, node_id: int) -> None:
        """Stop a node cleanly."""
        process = self._running.pop(node_id)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(2 * STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Kill all nodes. Their data are not needed any more."""
        for node_id in list(self._running):
            self.kill(node_id)
        self._log.close()

    def usage(self, node_id: int) -> Usage:
        return usage_of(self._running[node_id].pid)

    def ask(self, node_id: int, api: tuple[int, int], request: Message) -> Any:
        """The response of one node, on a connection of its own. Raises ``OSError`` or ``EOFError``."""
        connection = Connection(self.address(node_id))
        try:
            return connection.call(api, request)
        finally:
            connection.close()

    def leader(self) -> int:
        """The active controller according to the voters."""
        request, deadline = quorum_request(), time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for node_id in self.controllers:
                try:
                    answer = self.ask(node_id, DESCRIBE_QUORUM, request)
                    found = answer.topics[0].partitions[0]
                except (OSError, EOFError, IndexError):
                    continue  # the node is down, or it does not lead
                if found.leader_id == node_id:
                    return node_id
            time.sleep(POLL_S)
        raise RuntimeError(f"the cluster has no active controller: see {self.folder}")

    def wait_for_brokers(self, *node_ids: int) -> None:
        """Wait until each broker lists these brokers as unfenced."""
        for node_id in self.brokers:
            wait_until(functools.partial(self._lists, node_id, set(node_ids)))

    def _lists(self, node_id: int, wanted: set[int]) -> bool:
        try:
            answer = self.ask(node_id, METADATA, MetadataRequest(topics=[]))
        except (OSError, EOFError):
            return False
        return wanted <= {broker.node_id for broker in answer.brokers}


class MoldauNodes(ClusterNodes):
    """A cluster of ``moldau node`` processes."""

    name = "moldau"

    def _command(self, node_id: int) -> list[str]:
        command = [sys.executable, "-m", "moldau", "node", "--config", str(self._config(node_id))]
        return [*command, "--log-level", "warning"]

    def _formatting(self, node_id: int) -> list[str]:
        storage = [sys.executable, "-m", "moldau", "storage", "format"]
        return [*storage, "--config", str(self._config(node_id)), "--cluster-id", CLUSTER_ID]


class KafkaNodes(ClusterNodes):
    """Apache Kafka from its jars, with 512 MiB of heap for each node."""

    name = "kafka"

    def _java(self) -> list[str]:
        return ["java", "-cp", f"{JARS}/*", f"-Dlog4j2.configurationFile={quiet_logging(self.folder)}"]

    def _command(self, node_id: int) -> list[str]:
        heap = ["-Xms512m", "-Xmx512m", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        java, *rest = self._java()
        return [java, *heap, *rest, "kafka.Kafka", str(self._config(node_id))]

    def _formatting(self, node_id: int) -> list[str]:
        tool = ["kafka.tools.StorageTool", "format", "--config", str(self._config(node_id))]
        return [*self._java(), *tool, "--cluster-id", CLUSTER_ID]


def quorum_request() -> DescribeQuorumRequest:
    """A request for the leader and the voters of the metadata log."""
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return DescribeQuorumRequest(topics=[topic])


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until ``condition()`` is true. Raises ``RuntimeError`` after :data:`LIMIT_S`."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the cluster does not come to what is expected")
        time.sleep(POLL_S)
