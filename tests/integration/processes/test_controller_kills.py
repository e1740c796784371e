"""The active controller is killed with SIGKILL while topics are created. No broker loses an acknowledged
topic."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import LIMIT_S, QUIET, Processes, wait_for
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.real_time

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
CREATIONS_A_ROUND = 15
ROLES = dict.fromkeys((1, 2, 3), "controller") | dict.fromkeys((11, 12), "broker")
QUICK = {
    "controller.quorum.election.timeout.ms": 300,
    "controller.quorum.fetch.timeout.ms": 600,
    "controller.quorum.election.backoff.max.ms": 200,
}


class Creations:
    """Creates one topic after another until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[str] = []
        self.pauses_s: list[float] = [0.0]
        """The longest pause between two acknowledgements in each round."""
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number, last = 0, time.monotonic()
        while not self._is_over.is_set():
            number += 1
            topic = f"topic-{number}"
            try:
                self._admin.create_topics([NewTopic(topic, 1, 1)], operation_timeout=10)[topic].result(20)
            except (KafkaException, TimeoutError):
                continue  # the outcome of this creation is unknown, so the next topic gets another name
            now = time.monotonic()
            self.pauses_s[-1], last = max(self.pauses_s[-1], now - last), now
            self.acknowledged.append(topic)

    def wait_for_more(self) -> None:
        wanted = len(self.acknowledged) + CREATIONS_A_ROUND
        wait_for(lambda: len(self.acknowledged) >= wanted)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(LIMIT_S)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path, ROLES, QUICK)
    found.start(*ROLES)
    try:
        yield found
    finally:
        assert set(found.stop()) == {0}


def test_no_acknowledged_creation_is_lost(processes: Processes) -> None:
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})
    wait_for(lambda: sorted(admin.list_topics(timeout=10).brokers) == [11, 12])
    creations = Creations(processes.bootstrap)
    try:
        creations.wait_for_more()
        for _ in range(ROUNDS):
            leader = processes.leader()
            creations.pauses_s.append(0.0)
            processes.kill(leader)
            creations.wait_for_more()
            processes.start(leader)
            wait_for(lambda node_id=leader: processes.serves(node_id))
    finally:
        creations.stop()
    pauses = [round(pause_s, 2) for pause_s in sorted(creations.pauses_s[1:])]
    print(f"{len(creations.acknowledged)} creations, longest pauses of the rounds in seconds: {pauses}")
    for bootstrap in processes.bootstrap.split(","):
        of_broker = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        wait_for(lambda of=of_broker: set(creations.acknowledged) <= of.list_topics(timeout=10).topics.keys())
