"""Nodes of Apache Kafka in one cluster with our nodes, and helpers that send requests to nodes of both
systems."""

import contextlib
import io
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import Java

from moldau.cli.main import main

LIMIT_S = 120
SNAPSHOT_BYTES = 2_000
ANY_PORT = 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the cluster does not come to what is expected"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", ANY_PORT))
        return int(probe.getsockname()[1])


class KafkaNode:
    """A node of Apache Kafka that is broker and controller in one process. Kafka's tool formats
    its folder."""

    def __init__(
        self, java: Java, node_id: int, folder: Path, *, bootstrap_controllers: str = "", beside: str = ""
    ) -> None:
        """``bootstrap_controllers`` are the controllers of the cluster that the node joins. Without them the
        node has a cluster of its own. ``beside`` is the other static voter of the node's cluster, as
        ``ID@HOST:PORT``."""
        self._java = java
        # With static voters, the format command needs no option for the initial controllers.
        self._beginning = [] if beside else ["--standalone"]
        if bootstrap_controllers:
            self._beginning = ["--no-initial-controllers"]
        self.config = folder / "kafka.properties"
        self.output = folder / "kafka.log"
        self.controller = f"127.0.0.1:{free_port()}"
        self.bootstrap_servers = f"127.0.0.1:{free_port()}"
        self.voters = f"controller.quorum.voters={node_id}@{self.controller},{beside}"
        """The line of a file that names the static voters."""
        self.controllers = f"controller.quorum.bootstrap.servers={bootstrap_controllers or self.controller}"
        """The line of a file that names the controllers of a cluster whose voters can change."""
        self.config.write_text(
            f"process.roles=broker,controller\nnode.id={node_id}\nlog.dirs={folder}/kafka\n"
            "controller.listener.names=CONTROLLER\n"
            f"listeners=CONTROLLER://{self.controller},PLAINTEXT://{self.bootstrap_servers}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"{self.voters if beside else self.controllers}\n"
            # This time-out is longer than the time-out of our nodes. So this node requests votes only if no
            # other node has become leader before.
            "controller.quorum.election.timeout.ms=300\ncontroller.quorum.fetch.timeout.ms=2500\n"
            f"metadata.log.max.record.bytes.between.snapshots={SNAPSHOT_BYTES}\n"
            "broker.heartbeat.interval.ms=500\nbroker.session.timeout.ms=3000\n"
            # Kafka computes the partition of a group from the number of partitions of the offsets topic.
            # Kafka reads this number only at its start.
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=4\n"
            "group.initial.rebalance.delay.ms=0\n"
        )

    def format(self, cluster_id: str, *features: str, ours: Sequence[Sequence[str]] = ()) -> None:
        """Format with Kafka's StorageTool. ``features`` are the feature levels of a new cluster, as
        ``NAME=LEVEL``.

        ``ours`` has a row for each of our controllers that is formatted at the same time: its properties file
        and its options.
        """
        levels = [word for feature in features for word in ("--feature", feature)]
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]
        own = [*tool, str(self.config), *self._beginning, *levels]
        self._java.tools(own, *([*tool, *arguments] for arguments in ours))

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the node during the block. If it still runs at the end, it is killed."""
        command = self._java.command("kafka.Kafka", str(self.config))
        with self.output.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                yield process
            finally:
                process.kill()
                process.wait()


def created(admin: AdminClient, topic: str, partitions: int, replicas: int = 1, **configs: str) -> str:
    """Create a topic while the active controller may change. Returns the error text, or an empty text."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        new = NewTopic(topic, partitions, replicas, config=configs)
        try:
            admin.create_topics([new], operation_timeout=5, request_timeout=10)[topic].result()
            return ""
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return ""
            if code == KafkaError.INVALID_CONFIG:
                return str(error)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def copied(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Produce to each partition with acks=all. Then consume all records in a group."""
    servers = {"bootstrap.servers": bootstrap_servers}
    producer = Producer({**servers, "acks": "all"})
    for partition in range(partitions):
        producer.produce(topic, f"{topic}-{partition}".encode(), partition=partition)
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**servers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: set[bytes] = set()

    def read() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add(message.value())
        return len(found) == partitions

    wait_for(read)
    consumer.close()


def moldau(*arguments: str) -> str:
    """Run a command of Moldau. Returns its output."""
    with io.TextIOWrapper(io.BytesIO()) as output, contextlib.redirect_stdout(output):
        assert main(list(arguments)) == 0, arguments
        output.seek(0)
        return output.read()


def can(*arguments: str) -> bool:
    """Run a command of Moldau. Returns whether it succeeds."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(list(arguments)) == 0


def members(bootstrap_servers: str, part: str) -> list[int]:
    """The ids of the quorum's ``voters`` or ``observers``."""
    text = moldau("quorum", "describe", "--json", "--bootstrap", bootstrap_servers)
    return [row["node_id"] for row in json.loads(text)[part]]
