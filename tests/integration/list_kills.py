"""Transactions append to lists and read lists. The brokers and controllers are processes, and random nodes
are killed with SIGKILL. A long run that is not part of the suite is ``make list-kills MINUTES=10``.

Each partition of a classic, a diskless and a tiered topic is a list. Producers of librdkafka append to
several lists in a transaction, and poll a ``read_committed`` consumer of kafka-python in between. At the end,
all lists are read. The checks are those of the simulation: no aborted or intermediate read (G1a, G1b), no
lost or repeated value, and no write against the order of transactions (G0).

The transactions commit no offsets, because in librdkafka 2.16 the call for this may never return if the
coordinator of the group moves. ``test_copies_over_kills.py`` commits offsets with Kafka's own client.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster_kills import BROKERS, CONTROLLERS, END_S, PROPERTIES, Killer
from cluster_processes import LIMIT_S, QUIET, Processes, wait_for
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.errors import KafkaError as KafkaPythonError

from moldau.simulation.transactions.lists import check_lists
from moldau.simulation.transactions.reader import CommittedRead
from moldau.simulation.transactions.record import Fate, RecordedTransaction, check_transactions

PARTITIONS = 2
TOPICS = {
    "classic": {},
    "diskless": {"diskless.enable": "true"},
    "tiered": {"remote.storage.enable": "true", "segment.ms": "1000", "local.retention.ms": "1000"},
}
PLACES = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
"""The lists. Other names refer to a list by its position here."""
NAMES = ("appender-0", "appender-1", "appender-2")
TRANSACTION_TIMEOUT_MS = 10_000
CALL_S = 20.0
COMMIT_CHANCE, POLL_CHANCE = 0.65, 0.4
END = b"end"
"""The last record of each list."""


class Appender:
    """A transactional producer and its consumer, in a thread. After a fatal error, the producer is replaced
    by another producer with the same transactional id."""

    def __init__(self, name: str, bootstrap: str, seed: int) -> None:
        self.name = name
        self.transactions: list[RecordedTransaction] = []
        self.reads: dict[int, list[CommittedRead]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._chance = random.Random(f"{name} {seed}")
        self._producer: Producer | None = None
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
        )
        self._places = {PythonPartition(*place): number for number, place in enumerate(PLACES)}
        self._consumer.assign(list(self._places))
        for place in self._places:
            self._consumer.seek(place, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(END_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise RuntimeError(f"{self.name} ended early") from self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._transact(self._started())
                except KafkaException as error:
                    self.errors[error.args[0].name()] += 1
                    self._producer = None
                    self._stop.wait(0.1)
            self._producer = None
            self._consumer.close()
        except BaseException as error:
            self.failure = error

    def _started(self) -> Producer:
        if self._producer is None:
            self._producer = started(self._bootstrap, self.name)
        return self._producer

    def _transact(self, producer: Producer) -> None:
        chance, number = self._chance, len(self.transactions)
        each = RecordedTransaction(f"{self.name}/{number}", self.name, number, began_s=time.monotonic())
        self.transactions.append(each)
        producer.begin_transaction()
        try:
            for place in sorted(chance.sample(range(len(PLACES)), chance.randint(1, len(PLACES)))):
                values = [f"{each.name}/{place}/{index}" for index in range(chance.randint(1, 3))]
                each.values[place] = values
                for value in values:
                    producer.produce(PLACES[place][0], value, partition=PLACES[place][1])
                if chance.random() < POLL_CHANCE:
                    producer.flush(CALL_S)
                    self._poll()
            if chance.random() < COMMIT_CHANCE:
                each.fate, each.commit_requested_s = Fate.UNKNOWN, time.monotonic()
                repeated(lambda: producer.commit_transaction(CALL_S))
                each.fate = Fate.COMMITTED
            else:
                repeated(lambda: producer.abort_transaction(CALL_S))
            each.ended_s = time.monotonic()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.errors[error.args[0].name()] += 1
            repeated(lambda: producer.abort_transaction(CALL_S))

    def _poll(self) -> None:
        try:
            found = self._consumer.poll(timeout_ms=100)
        except KafkaPythonError as error:
            self.errors[type(error).__name__] += 1
            return
        now_s = time.monotonic()
        for place, records in found.items():
            reads = self.reads[self._places[place]]
            reads += [CommittedRead(each.offset, each.value.decode(), now_s) for each in records]


def started(bootstrap: str, name: str) -> Producer:
    """A transactional producer. It has fenced earlier producers with the same transactional id."""
    options = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "linger.ms": 1}
    producer = Producer({"bootstrap.servers": bootstrap, **options, **QUIET})
    repeated(lambda: producer.init_transactions(CALL_S))
    return producer


def repeated(call: Callable[[], object]) -> None:
    """Repeat a call until it does not fail with a retriable error."""
    deadline_s = time.monotonic() + END_S
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


def read_lists(bootstrap: str) -> dict[int, list[CommittedRead]]:
    """The committed values of all lists. First all transactions are ended, and a last record is written to
    each list."""
    for name in NAMES:
        started(bootstrap, name)
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    for topic, index in PLACES:
        plain.produce(topic, END, partition=index)
    assert plain.flush(END_S) == 0
    options = {"group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **options, **QUIET})
    consumer.assign([TopicPartition(*place, 0) for place in PLACES])
    found: dict[int, list[CommittedRead]] = {number: [] for number in range(len(PLACES))}
    left, deadline_s = set(found), time.monotonic() + END_S
    while left:
        assert time.monotonic() < deadline_s, f"the lists {left} cannot be read to their end"
        for message in consumer.consume(1_000, 0.5):
            if message.error() is None:
                number = PLACES.index((message.topic(), message.partition()))
                if message.value() == END:
                    left.discard(number)
                else:
                    value = message.value().decode()
                    found[number].append(CommittedRead(message.offset(), value, time.monotonic()))
    consumer.close()
    return found


def check(bootstrap: str, appenders: Sequence[Appender]) -> list[str]:
    """Read the lists and check them. Returns the violations."""
    lists = read_lists(bootstrap)
    transactions = [each for appender in appenders for each in appender.transactions]
    observed: dict[int, list[str]] = defaultdict(list)
    for appender in appenders:
        for number, reads in appender.reads.items():
            observed[number] += [each.value for each in reads]
    fates = Counter(each.fate.value for each in transactions)
    print(f"transactions: {dict(fates)}; values: {sum(map(len, lists.values()))} in the lists,", end=" ")
    print(f"{sum(map(len, observed.values()))} read in transactions")
    print(f"errors of clients: {dict(sum((each.errors for each in appenders), Counter()))}")
    return check_transactions(
        transactions,
        {number: [each.value for each in elements] for number, elements in lists.items()},
        observed,
        {},
    ) + check_lists(transactions, lists, {each.name: each.reads for each in appenders})


def run(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run the whole test. Returns the violations."""
    roles = dict.fromkeys(BROKERS, "broker") | dict.fromkeys(CONTROLLERS, "controller")
    for name in ("objects", "segments"):
        (folder / name).mkdir()
    properties = {
        **PROPERTIES,
        "diskless.storage.url": f"file://{folder}/objects",
        "log.retention.check.interval.ms": 500,
        "remote.log.manager.task.interval.ms": 500,
        "remote.log.metadata.topic.num.partitions": 2,
        "remote.log.metadata.topic.replication.factor": 3,
        "remote.log.storage.system.enable": "true",
        "rsm.config.url": f"file://{folder}/segments",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        "transaction.state.log.num.partitions": 3,
    }
    processes = Processes(folder, roles, properties)
    processes.start(*roles)
    admin = AdminClient({"bootstrap.servers": processes.bootstrap, **QUIET})
    try:
        wait_for(lambda: len(admin.list_topics(timeout=10).brokers) == len(BROKERS))
        for topic, config in TOPICS.items():
            admin.create_topics([NewTopic(topic, PARTITIONS, 3, config=config)])[topic].result(LIMIT_S)
        appenders = [Appender(name, processes.bootstrap, seed) for name in NAMES]
        killer = Killer(processes, seed)
        killer.run(seconds)
        for appender in appenders:
            appender.stop()
        print(f"{killer.kills['brokers']} kills of brokers, {killer.kills['controllers']} of controllers")
        return check(processes.bootstrap, appenders)
    finally:
        processes.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="moldau-lists-"))
    violations = run(folder, given.minutes * 60, given.seed)
    for each in violations:
        print(f"VIOLATION {each}", file=sys.stderr)
    if violations:
        print(f"the logs and data are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
