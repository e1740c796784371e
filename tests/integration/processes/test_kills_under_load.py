"""A node is killed under load. After its restart it has all records that it has acknowledged.

Clients write to every kind of topic and commit offsets, and topics are created and deleted. For a long run
use ``make kills ROUNDS=20``.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deadlines import TIMEOUT_S, eventually
from dev_process import READY_TIMEOUT_S
from librdkafka_clients import create
from test_offsets_over_kills import Committer, committed

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))
KEY_COUNT = 40
SMALL = {"segment_ms": "700"}
TOPICS = {
    "classic": {"diskless_enable": "false", **SMALL},
    "compacted": {
        "diskless_enable": "false",
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.01",
        "max_compaction_lag_ms": "1000",
        **SMALL,
    },
    "diskless": {"diskless_enable": "true"},
    "tiered": {
        "diskless_enable": "false",
        "remote_storage_enable": "true",
        "local_retention_ms": "1000",
        **SMALL,
    },
}
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:0
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
diskless.system.enable=true
diskless.storage.url=file://{folder}/objects
diskless.metadata.topic.num.partitions=2
diskless.metadata.topic.replication.factor=1
diskless.metadata.max.new.records.between.snapshots=200
remote.log.storage.system.enable=true
rsm.config.url=file://{folder}/remote
remote.log.metadata.topic.num.partitions=2
remote.log.metadata.topic.replication.factor=1
remote.log.manager.task.interval.ms=500
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.cleaner.backoff.ms=300
log.flush.offset.checkpoint.interval.ms=300
replica.high.watermark.checkpoint.interval.ms=300
metadata.log.max.record.bytes.between.snapshots=3000
metadata.max.retention.bytes=10000
"""


class NodeProcess:
    """``moldau node`` on a formatted folder."""

    def __init__(self, config: Path) -> None:
        self._log = config.with_suffix(".log").open("a+")
        begin = self._log.tell()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moldau", "node", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        word = self._process.stdout.readline().split()
        watchdog.cancel()
        if word[:1] != ["ready"]:
            self.kill()
            self._log = config.with_suffix(".log").open()
            self._log.seek(begin)
            raise AssertionError(f"the node did not start: {self._log.read()}")

    def kill(self) -> None:
        """Send SIGKILL, so that the process cannot write anything."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


class Load:
    """An idempotent producer that writes numbered values to every topic. It keeps the acknowledged values."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[str, set[int]] = defaultdict(set)
        self.errors: list[KafkaError] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def count(self) -> int:
        """The number of acknowledged records in the topic that has the fewest acknowledged records."""
        return min(len(self.acknowledged[topic]) for topic in TOPICS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acknowledged[str(message.topic())].add(number_of(message))

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            if len(self._producer) < 400:
                for topic in TOPICS:
                    self._producer.produce(
                        topic,
                        b"%d %s" % (number, b"." * (number % 300)),
                        key=b"%d" % (number % KEY_COUNT),
                        on_delivery=self._delivered,
                    )
                number += 1
            self._producer.poll(0.002)

    def stop(self) -> None:
        self.abort()
        assert self._producer.flush(TIMEOUT_S) == 0

    def abort(self) -> None:
        """End the thread, even if records are not acknowledged yet."""
        self._stop.set()
        self._thread.join()


def number_of(message: Message) -> int:
    value = message.value()
    assert value is not None
    return int(value.split()[0])


class TopicChanges:
    """Creates and deletes topics one after another. It keeps a list of the topics that certainly exist."""

    def __init__(self, bootstrap: str) -> None:
        self.existing: set[str] = set()
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "socket.timeout.ms": 5_000})
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                create(self._bootstrap, f"extra-{number}", partitions=3)
                self.existing.add(f"extra-{number}")
                if number % 2:
                    self.existing.discard(f"extra-{number}")
                    admin.delete_topics([f"extra-{number}"])[f"extra-{number}"].result(TIMEOUT_S)
            except Exception:
                # The node is down, so the outcome of the last change is unknown.
                self._stop.wait(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    abort = stop


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
def config(tmp_path: Path, port: int) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(PROPERTIES.format(port=port, folder=tmp_path))
    command = [sys.executable, "-m", "moldau", "storage", "format", "--config", str(path)]
    command += ["--cluster-id", "a2lsbHMtdW5kZXItbG9hZA"]
    subprocess.run(command, check=True, capture_output=True, timeout=READY_TIMEOUT_S)
    return path


def read_numbers(bootstrap: str, topic: str) -> list[int]:
    """The numbers of all records of a topic."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    numbers: list[int] = []
    deadline_s = time.monotonic() + 5 * TIMEOUT_S
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        while True:
            assert time.monotonic() < deadline_s, topic
            message = reader.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                numbers.append(number_of(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                return numbers
    finally:
        reader.close()


def check_records(bootstrap: str, load: Load) -> None:
    """Check that every acknowledged record exists once. In a compacted topic, check this for the last record
    of each key."""
    for topic in TOPICS:
        acknowledged = load.acknowledged[topic]
        numbers = read_numbers(bootstrap, topic)
        if topic == "compacted":
            latest = {number % KEY_COUNT: number for number in numbers}
            assert latest == {number % KEY_COUNT: number for number in sorted(acknowledged)}
        else:
            assert acknowledged <= set(numbers), topic
            assert len(numbers) == len(set(numbers)), topic


def test_every_start_after_a_kill_succeeds_with_all_that_was_acknowledged(
    tmp_path: Path, config: Path, port: int
) -> None:
    chance = random.Random(ROUNDS)
    bootstrap = f"127.0.0.1:{port}"
    node = NodeProcess(config)
    load: Load | None = None
    changes: TopicChanges | None = None
    try:
        for topic, configs in TOPICS.items():
            create(bootstrap, topic, 1, **configs)
        load, changes = Load(bootstrap), TopicChanges(bootstrap)
        for number in range(ROUNDS):
            committer = Committer(bootstrap, f"g-{number}", "classic", 1)
            wanted = load.count() + chance.randrange(20, 1_000)
            eventually(lambda: load.count() >= wanted and committer.count > 5, "acknowledgements")  # noqa: B023
            before = list(committer.acknowledged)
            node.kill()
            node = NodeProcess(config)
            at_start = committed(bootstrap, committer.group, "classic", 1)
            assert at_start[0] >= before[0]
            committer.stop()
            assert committed(bootstrap, committer.group, "classic", 1)[0] >= committer.acknowledged[0]
        changes.stop()
        load.stop()
        assert load.errors == []
        check_records(bootstrap, load)
        topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).topics
        assert changes.existing <= set(topics)
        node.kill()
        node = NodeProcess(config)
        check_records(bootstrap, load)
        shown = config.with_suffix(".log").read_text()
        assert " were removed, too" not in shown
        assert "is damaged" not in shown
        counts = ", ".join(f"{topic} {len(load.acknowledged[topic])}" for topic in TOPICS)
        print(f"{ROUNDS} kills, records acknowledged and found: {counts}; {len(changes.existing)} topics")
    finally:
        for each in (changes, load):
            if each is not None:
                each.abort()
        node.kill()
