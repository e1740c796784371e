"""A node is killed many times, and the committed offsets of a consumer never go back. For a long run set
``KILL_ROUNDS`` to the number of kills."""

import contextlib
import os
import random
import threading
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from deadlines import TIMEOUT_S, eventually
from dev_process import DevProcess
from librdkafka_clients import create

ROUNDS = int(os.environ.get("KILL_ROUNDS", "4"))
PARTITION_COUNT = 3


class Committer:
    """Commits increasing offsets one after another, and keeps the acknowledged offsets."""

    def __init__(
        self, bootstrap: str, group: str, topic: str = "t", partitions: int = PARTITION_COUNT
    ) -> None:
        self.group = group
        self._topic = topic
        self.acknowledged = [-1] * partitions
        self.sent = [-1] * partitions
        self.count = 0
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            index = number % len(self.sent)
            self.sent[index] = number
            with contextlib.suppress(KafkaException):
                wanted = TopicPartition(self._topic, index, number)
                done = self._consumer.commit(offsets=[wanted], asynchronous=False)
                if done[0].error is None:
                    self.acknowledged[index] = number
                    self.count += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self._consumer.close()


def committed(bootstrap: str, group: str, topic: str = "t", partitions: int = PARTITION_COUNT) -> list[int]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        names = [TopicPartition(topic, index) for index in range(partitions)]
        return [found.offset for found in reader.committed(names, timeout=TIMEOUT_S)]
    finally:
        reader.close()


def test_committed_offsets_never_go_back_over_kills(tmp_path: Path) -> None:
    chance = random.Random(1)
    node = DevProcess(tmp_path, 0, "classic")
    port = node.port
    try:
        create(node.bootstrap, "t", partitions=PARTITION_COUNT)
        for number in range(ROUNDS):
            committers = [Committer(node.bootstrap, f"g-{number % 2}-{each}") for each in range(2)]
            wanted = chance.randrange(5, 200)
            eventually(lambda: all(each.count >= wanted for each in committers), "commits")  # noqa: B023
            before = [list(each.acknowledged) for each in committers]
            node.kill()
            node = DevProcess(tmp_path, port, "classic")
            at_start = [committed(node.bootstrap, each.group) for each in committers]
            for found, acknowledged in zip(at_start, before, strict=True):
                assert all(map(int.__ge__, found, acknowledged)), (found, acknowledged)
            # Wait for all commits, because a commit in progress may be acknowledged at this moment.
            for each in committers:
                each.stop()
            for each in committers:
                found = committed(node.bootstrap, each.group)
                assert all(map(int.__ge__, found, each.acknowledged)), (found, each.acknowledged)
                assert all(map(int.__le__, found, each.sent)), (found, each.sent)
    finally:
        node.kill()
