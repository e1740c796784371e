"""Kafka Streams counts words exactly once, while the Streams program and a broker are killed."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import TIMEOUT_S, eventually
from foreign_clients import HERE, STREAMS, Java, require
from test_cluster_in_a_test import metadata

import moldau.testing
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC

pytestmark = [pytest.mark.java, pytest.mark.real_time]

PROPERTIES = {
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "1500",
    "diskless.metadata.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "4",
}
KINDS = {"classic": "false", "diskless": "true"}
LINES = [f"a{number % 3} b{number % 7} c{number % 11}" for number in range(200)]
Counts = dict[str, list[int]]


def create(bootstrap: str) -> None:
    wanted = [
        NewTopic(f"{kind}-{part}", 1, 3, config={"diskless.enable": flag})
        for kind, flag in KINDS.items()
        for part in ("in", "out")
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(wanted).values():
        created.result(TIMEOUT_S)


def produce(bootstrap: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for kind in KINDS:
        for line in lines:
            producer.produce(f"{kind}-in", line, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


class Reader:
    """The committed counts of each word, in the order of their records."""

    def __init__(self, bootstrap: str) -> None:
        options = {"group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **options})
        self._consumer.assign([TopicPartition(f"{kind}-out", 0, 0) for kind in KINDS])
        self.counts: dict[str, Counts] = {kind: {} for kind in KINDS}

    def has(self, words: int) -> bool:
        """Read the next message, if there is one. Returns whether the topic of each kind has given at least
        ``words`` messages so far. Each message is a count of one word."""
        message = self._consumer.poll(0.1)
        if message is not None and message.error() is None:
            kind = message.topic().partition("-")[0]
            self.counts[kind].setdefault(message.key().decode(), []).append(int(message.value()))
        return all(sum(map(len, found.values())) >= words for found in self.counts.values())

    def close(self) -> None:
        self._consumer.close()


def count_words(java: Java, bootstrap: str, state: Path) -> "subprocess.Popen[bytes]":
    """Start the program. It runs until it is killed."""
    require(STREAMS.is_dir(), "Kafka Streams in .tools/streams")
    command = java.command(str(HERE / "java" / "WordCount.java"), bootstrap, str(state), *KINDS)
    classes = command.index("-cp") + 1
    command[classes] += f":{STREAMS}/*"
    with state.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def test_words_are_counted_exactly_once_over_kills(java: Java, tmp_path: Path) -> None:
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as cluster:
        bootstrap = cluster.bootstrap_servers
        create(bootstrap)
        half = len(LINES) // 2
        produce(bootstrap, LINES[:half])
        reader = Reader(bootstrap)
        program = count_words(java, bootstrap, tmp_path / "first")
        try:
            eventually(lambda: reader.has(half), "the first counts")
            program.kill()  # at this moment the program has open transactions
            program.wait(TIMEOUT_S)
            _, (leader,) = metadata(cluster.address(1), DISKLESS_METADATA_TOPIC)
            cluster.kill(leader)
            program = count_words(java, bootstrap, tmp_path / "second")
            produce(bootstrap, LINES[half:])
            eventually(lambda: reader.has(3 * len(LINES)), "all counts")
        finally:
            program.kill()
            program.wait(TIMEOUT_S)
            reader.close()
        expected = Counter(word for line in LINES for word in line.split())
        for kind, found in reader.counts.items():
            assert found == {word: [*range(1, count + 1)] for word, count in expected.items()}, kind
