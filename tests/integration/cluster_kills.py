"""Three brokers and three controllers as processes, with the load of four clients. Random nodes are killed
with SIGKILL. A long run that is not part of the suite is ``make cluster-kills MINUTES=10``.

These conditions are checked at the end. No acknowledged record is missing. Records of idempotent producers
are not duplicated, and they are in order. Committed offsets never went back. The replicas of classic
partitions are equal byte for byte.
"""

import argparse
import faulthandler
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster_processes import LIMIT_S, QUIET, Processes, wait_for
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import JARS, Java
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka.errors import KafkaError as KafkaPythonError

BROKERS, CONTROLLERS = (1, 2, 3), (101, 102, 103)
PARTITIONS = {"classic": 6, "diskless": 3, "java": 3, "python": 3}
DISKLESS = {"diskless.enable": "true"}
GROUP = "readers"
GROUP_TOPICS = ("classic", "diskless")
RECORDS_A_SECOND = 400
QUEUED_MAX = 50_000
PAUSE_S, AWAY_S = (2.0, 12.0), (0.5, 12.0)
SILENCE_S = 20.0
END_S = 300.0
PROPERTIES = {
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "group.initial.rebalance.delay.ms": 0,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3_000,
    "controller.quorum.fetch.timeout.ms": 1_000,
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": 3,
    "diskless.metadata.topic.replication.factor": 3,
    "log.segment.bytes": 4 << 20,
}


class Acknowledged:
    """The records that brokers have acknowledged, as ``(partition, number)`` for each topic."""

    def __init__(self) -> None:
        self.numbers: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.refusals: Counter[str] = Counter()

    def add(self, topic: str, partition: int, number: int) -> None:
        self.numbers[topic].add((partition, number))


def java_program() -> str | None:
    """The path of Java; ``None`` if Java or the jars of Kafka are missing."""
    return shutil.which("java") if JARS.is_dir() else None


class Load:
    """A client that writes in a thread until it is stopped."""

    def __init__(self, bootstrap: str, found: Acknowledged) -> None:
        self.bootstrap, self.found = bootstrap, found
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error

    def run(self) -> None:
        raise NotImplementedError

    def turns(self) -> Iterator[int]:
        """Generate numbers at a limited rate until the load is stopped."""
        number = 0
        while not self._stop.is_set():
            yield number
            number += 1
            if number % 20 == 0:
                self._stop.wait(20 / RECORDS_A_SECOND)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(END_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not end"
        if self.failure is not None:
            raise RuntimeError(f"{type(self).__name__} ended early") from self.failure


class IdempotentLoad(Load):
    """An idempotent producer of librdkafka, which writes to a classic and a diskless topic."""

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "linger.ms": 5,
                **QUIET,
            }
        )
        for number in self.turns():
            for topic in ("classic", "diskless"):
                partition = number % PARTITIONS[topic]
                while len(producer) > QUEUED_MAX:
                    producer.poll(0.1)
                producer.produce(topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
            producer.poll(0)
        assert producer.flush(END_S) == 0

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.found.add(message.topic(), message.partition(), int(message.value()))
        else:
            self.found.refusals[str(error)] += 1


class KafkaPythonLoad(Load):
    """A producer of kafka-python with acks=all. Its retries may write records twice."""

    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            acks="all",
            retries=1_000_000,
            delivery_timeout_ms=int(END_S * 1000),
            max_block_ms=int(END_S * 1000),
        )
        for number in self.turns():
            partition = number % PARTITIONS["python"]
            sent = producer.send("python", b"%d" % number, partition=partition)
            sent.add_callback(lambda row, number=number: self.found.add("python", row.partition, number))
            sent.add_errback(lambda error: self.found.refusals.update([type(error).__name__]))
        producer.flush(END_S)
        producer.close()


class JavaLoad(Load):
    """Kafka's VerifiableProducer, which does not repeat refused records."""

    def run(self) -> None:
        program = java_program()
        if program is None:
            return
        options = ["--bootstrap-server", self.bootstrap, "--topic", "java", "--acks", "-1"]
        options += ["--throughput", str(RECORDS_A_SECOND)]
        command = Java(program).command("org.apache.kafka.tools.VerifiableProducer", *options)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ending = threading.Thread(target=lambda: (self._stop.wait(), process.terminate()))
        ending.start()
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("name") == "producer_send_success":
                self.found.add("java", event["partition"], int(event["value"]))
        process.wait(END_S)
        ending.join()


class GroupLoad(Load):
    """A consumer of kafka-python that commits; committed offsets must never go back.

    Consumers of librdkafka 2.16 are not used, because they can deadlock when leaders change. The handler of
    OffsetForLeaderEpoch and the handler of a broken connection take two locks in different orders.

    If the number of partitions changes, kafka-python 3.0.12 joins again. If the time of its ``poll`` ends
    before the response to SyncGroup arrives, the consumer ignores this response. It then has no partitions,
    sends no heartbeats, and does not join again. Therefore a consumer that reads nothing for some time is
    replaced. At the end, the group must commit once more, so that a coordinator that has stopped is found.
    """

    def __init__(self, bootstrap: str, found: Acknowledged) -> None:
        self.committed: dict[tuple[str, int], int] = {}
        self.replaced = 0
        self._has_committed = threading.Event()
        super().__init__(bootstrap, found)

    def wait_for_a_commit(self) -> None:
        """Wait until the group commits. Without a commit, nothing would be checked."""
        self._has_committed.clear()
        deadline_s = time.monotonic() + LIMIT_S
        while not self._has_committed.wait(1.0):
            if self.failure is not None:
                raise RuntimeError(f"{GROUP} ended early") from self.failure
            if time.monotonic() > deadline_s:
                faulthandler.dump_traceback()
                raise TimeoutError(f"{GROUP} committed no offset within {LIMIT_S:.0f} s")

    def run(self) -> None:
        while not self._stop.is_set():
            try:
                consumer = KafkaConsumer(
                    *GROUP_TOPICS,
                    bootstrap_servers=self.bootstrap.split(","),
                    group_id=GROUP,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                )
                self._consume(consumer)
                consumer.close(autocommit=False)
            except KafkaPythonError:
                time.sleep(0.1)
            self.replaced += not self._stop.is_set()

    def _consume(self, consumer: Any) -> None:
        """Read and commit until the load is stopped, or until the consumer reads nothing."""
        deadline_s = time.monotonic() + SILENCE_S
        while not self._stop.is_set() and time.monotonic() < deadline_s:
            try:
                if consumer.poll(timeout_ms=1_000, max_records=500):
                    self._commit(consumer)
                    deadline_s = time.monotonic() + SILENCE_S
            except KafkaPythonError:
                time.sleep(0.1)

    def _commit(self, consumer: Any) -> None:
        sent = {each: consumer.position(each) for each in consumer.assignment()}
        consumer.commit({each: OffsetAndMetadata(offset, "", -1) for each, offset in sent.items()})
        for each, offset in sent.items():
            key = each.topic, each.partition
            self.committed[key] = max(offset, self.committed.get(key, 0))
        self._has_committed.set()

    def check(self) -> list[str]:
        """Return a line for each partition if its committed offset is lower than an offset that the broker
        has acknowledged."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": GROUP, **QUIET})
        names = [TopicPartition(*key) for key in self.committed]
        found = {(row.topic, row.partition): row.offset for row in consumer.committed(names, 60)}
        consumer.close()
        counts = f"{sum(self.committed.values()):>8} committed, {sum(found.values()):>8} found"
        print(f"{GROUP:9} {counts}, {self.replaced} consumers replaced")
        return [
            f"{key}: committed {was}, and {found[key]} is left"
            for key, was in self.committed.items()
            if found[key] < was
        ]


class Killer:
    """Kills one node after another. At most one broker and one controller are down at a time."""

    def __init__(self, processes: Processes, seed: int) -> None:
        self._processes = processes
        self._chance = random.Random(seed)
        self._down: dict[int, float] = {}
        self.kills: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        next_s = time.monotonic() + 5
        while time.monotonic() < end_s:
            now_s = time.monotonic()
            for node_id in [each for each, due_s in self._down.items() if due_s <= now_s]:
                del self._down[node_id]
                self._processes.start(node_id)
            if now_s >= next_s:
                self._kill()
                next_s = now_s + self._chance.uniform(*PAUSE_S)
            time.sleep(0.05)
        self._processes.start(*self._down)

    def _kill(self) -> None:
        role, nodes = self._chance.choice((("brokers", BROKERS), ("controllers", CONTROLLERS)))
        node_id = self._chance.choice(nodes)
        if set(nodes) & set(self._down):
            return
        self._processes.kill(node_id)
        self.kills[role] += 1
        self._down[node_id] = time.monotonic() + self._chance.uniform(*AWAY_S)


def read_all(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """The numbers of all records of a topic. They are in a list for each partition, in the order of the
    records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    found: dict[int, list[int]] = {index: [] for index in range(PARTITIONS[topic])}
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in found])
    left, deadline_s = set(found), time.monotonic() + END_S
    while left:
        assert time.monotonic() < deadline_s, f"{topic} cannot be read: {left} are left"
        for message in consumer.consume(1_000, 1.0):
            error = message.error()
            if error is None:
                found[message.partition()].append(int(message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    consumer.close()
    return found


def check_topic(bootstrap: str, topic: str, found: Acknowledged) -> list[str]:
    """Print a line about a topic. Returns the violations."""
    rows = read_all(bootstrap, topic)
    read = Counter((index, number) for index, numbers in rows.items() for number in numbers)
    missing = found.numbers[topic] - set(read)
    doubled = sum(count - 1 for count in read.values())
    disordered = sum(numbers != sorted(numbers) for numbers in rows.values())
    counts = f"{len(found.numbers[topic]):>8} acknowledged, {read.total():>8} read, {len(missing)} missing"
    print(f"{topic:9} {counts}, {doubled} doubled, {disordered} partitions out of order")
    is_idempotent = topic in ("classic", "diskless")
    violations = [f"{topic}: {len(missing)} acknowledged records are missing"] if missing else []
    if not found.numbers[topic] and (topic != "java" or java_program() is not None):
        violations.append(f"{topic}: no record was acknowledged, so nothing was checked")
    if is_idempotent and (doubled or disordered):
        violations.append(f"{topic}: {doubled} records doubled, {disordered} partitions out of order")
    return violations


def run(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run the whole test. Returns the violations."""
    roles = dict.fromkeys(BROKERS, "broker") | dict.fromkeys(CONTROLLERS, "controller")
    objects = folder / "objects"
    objects.mkdir()
    processes = Processes(folder, roles, {**PROPERTIES, "diskless.storage.url": f"file://{objects}"})
    processes.start(*roles)
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})
    try:
        wait_for(lambda: len(admin.list_topics(timeout=10).brokers) == len(BROKERS))
        for topic, count in PARTITIONS.items():
            new = NewTopic(topic, count, 3, config=DISKLESS if topic == "diskless" else {})
            admin.create_topics([new])[topic].result(LIMIT_S)
        found = Acknowledged()
        writers = [kind(processes.bootstrap, found) for kind in (IdempotentLoad, KafkaPythonLoad, JavaLoad)]
        group = GroupLoad(processes.bootstrap, found)
        group.wait_for_a_commit()
        killer = Killer(processes, seed)
        killer.run(seconds)
        group.wait_for_a_commit()
        for load in (*writers, group):
            load.stop()
        print(f"{killer.kills['brokers']} kills of brokers, {killer.kills['controllers']} of controllers")
        print(f"records that clients gave up: {dict(found.refusals) or 'none'}")
        violations = [each for topic in PARTITIONS for each in check_topic(processes.bootstrap, topic, found)]
        violations += group.check()
        for topic in ("classic", "java", "python"):
            for index in range(PARTITIONS[topic]):
                name = f"{topic}-{index}"
                wait_for(lambda name=name: len({processes.segments(each, name) for each in BROKERS}) == 1)
        print("the replicas of the classic partitions are equal byte for byte")
        return violations
    finally:
        processes.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder also after a success")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="moldau-kills-"))
    violations = run(folder, given.minutes * 60, given.seed)
    for each in violations:
        print(f"VIOLATION {each}", file=sys.stderr)
    if violations or given.keep:
        print(f"the logs and data are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
