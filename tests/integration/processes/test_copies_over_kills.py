"""A Java program copies records in transactions, with their offsets. The broker of each role, the controller
and the program itself are killed one after another."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S, eventually
from foreign_clients import HERE, Java
from test_cluster_in_a_test import metadata

import moldau.testing
from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

pytestmark = [pytest.mark.java, pytest.mark.real_time]

PROPERTIES = {
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "1500",
    "diskless.metadata.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "1",
}
KINDS = {"classic": "false", "diskless": "true"}
PARTITIONS = 2
ROLES = (
    TRANSACTION_STATE_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    "classic-out",
    "controller",
    "",
)
"""The roles of the killed nodes: the leader of a topic, or the active controller. An empty name stands for
the program."""
RECORDS = 120
"""Number of records of each kind that are written before each kill, and after the last kill."""


class Outputs:
    """The committed records of each output partition, in order."""

    def __init__(self, bootstrap: str) -> None:
        options = {"group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **options})
        places = [(f"{kind}-out", index) for kind in KINDS for index in range(PARTITIONS)]
        self._consumer.assign([TopicPartition(*place, 0) for place in places])
        self.values: dict[tuple[str, int], list[int]] = {place: [] for place in places}

    def have(self, count: int) -> bool:
        """Continue to read. Returns whether at least ``count`` records were read from each partition."""
        message = self._consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.values[message.topic(), message.partition()].append(int(message.value()))
        return all(len(found) >= count for found in self.values.values())

    def close(self) -> None:
        self._consumer.close()


class Program:
    """The copying program. It is started again after a kill."""

    def __init__(self, java: Java, bootstrap: str, log: Path) -> None:
        self._command = java.command(str(HERE / "java" / "TransactionalCopier.java"), bootstrap, *KINDS)
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)


def _create(admin: AdminClient, wanted: Sequence[NewTopic]) -> None:
    """Create topics. On a busy machine, a cluster that has just started has no coordinators yet."""
    deadline = time.monotonic() + TIMEOUT_S
    left = list(wanted)
    while left:
        answers = admin.create_topics(left)
        left = [new for new in left if not _is_created(answers[new.topic])]
        assert not left or time.monotonic() < deadline, f"{left} cannot be created"


def _is_created(answer: Any) -> bool:
    try:
        answer.result(TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.COORDINATOR_NOT_AVAILABLE:
            raise
        return False
    return True


def prepare(bootstrap: str) -> Callable[[int], None]:
    """Create the topics. Returns a function that writes the records of a round."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [
        NewTopic(f"{kind}-{part}", PARTITIONS, 3, config={"diskless.enable": flag})
        for kind, flag in KINDS.items()
        for part in ("in", "out")
    ]
    _create(admin, wanted)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def write(turn: int) -> None:
        for kind in KINDS:
            for number in range(turn * RECORDS, (turn + 1) * RECORDS):
                producer.produce(f"{kind}-in", str(number), partition=number % PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0

    return write


def strike(cluster: moldau.testing.Cluster, program: Program, role: str) -> int | None:
    """Kill a node, or the program. Returns the id of the killed node."""
    if not role:
        program.kill()
        program.start()
        return None
    victim = cluster.active_controller() if role == "controller" else None
    if victim is None:
        _, leaders = metadata(cluster.address(cluster.brokers[0]), role)
        victim = leaders[0]
    cluster.kill(victim)
    return victim


def test_copies_are_exactly_once_over_kills_of_every_role(java: Java, tmp_path: Path) -> None:
    with moldau.testing.Cluster(brokers=3, controllers=3, properties=PROPERTIES) as cluster:
        bootstrap = cluster.bootstrap_servers
        write = prepare(bootstrap)
        outputs, program = Outputs(bootstrap), Program(java, bootstrap, tmp_path / "program.log")
        try:
            for turn, role in enumerate(ROLES):
                write(turn)
                begun = turn * RECORDS // PARTITIONS + 1
                eventually(lambda begun=begun: outputs.have(begun), f"copies before the kill of {role!r}")
                victim = strike(cluster, program, role)
                done = (turn + 1) * RECORDS // PARTITIONS
                eventually(lambda done=done: outputs.have(done), f"copies after the kill of {role!r}")
                if victim is not None:
                    cluster.restart(victim)
            write(len(ROLES))
            total = (len(ROLES) + 1) * RECORDS
            eventually(lambda: outputs.have(total // PARTITIONS), "all copies")
        finally:
            program.kill()
            outputs.close()
    for (topic, index), found in outputs.values.items():
        assert found == list(range(index, total, PARTITIONS)), topic
