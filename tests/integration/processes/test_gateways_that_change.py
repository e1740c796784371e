"""Idempotent producers of four client libraries on a diskless topic of three brokers in three racks.

Each producer names its rack, so its gateway is the only broker of this rack. The gateways are paused with
SIGSTOP and resumed, or killed with SIGKILL and started again. A paused gateway is fenced, and clients send
their next batches to a broker of another rack, while the gateway still has earlier batches. Nevertheless each
record must be stored exactly once, and in order.
"""

import asyncio
import json
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from cluster_processes import LIMIT_S, QUIET, Processes, wait_for
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import Java
from kafka import KafkaProducer

pytestmark = [pytest.mark.real_time, pytest.mark.java]

RACKS: Final = {1: "a", 2: "b", 3: "c"}
CONTROLLER: Final = 101
ROLES: Final = dict.fromkeys(RACKS, "broker") | {CONTROLLER: "controller"}
PROPERTIES: Final = {
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": 2,
    "diskless.metadata.topic.replication.factor": 3,
    "broker.session.timeout.ms": 2_500,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 2_000,
}
RECORDS_A_SECOND: Final = 50
REQUEST_TIMEOUT_MS: Final = 6_000
"""Longer than a pause. So requests to a paused broker are in flight until it is resumed."""
METADATA_AGE_MS: Final = 300


class SteadyProducer(ABC):
    """A producer in a thread. It writes the numbers 0, 1, 2, ... to a topic of its own until it is ended."""

    partitions = 2

    def __init__(self, name: str, bootstrap: str, rack: str) -> None:
        self.name, self.bootstrap, self.rack = name, bootstrap, rack
        self.acknowledged: dict[int, list[int]] = {index: [] for index in range(self.partitions)}
        """The numbers by partition, in the order of the acknowledgements."""
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def client_id(self) -> str:
        return f"{self.name},rack={self.rack}"

    @property
    def count(self) -> int:
        """Number of acknowledged records."""
        return sum(len(numbers) for numbers in self.acknowledged.values())

    @abstractmethod
    def write(self) -> None:
        """Write until :meth:`turns` ends, and wait for all acknowledgements."""

    def turns(self) -> Iterator[int]:
        number = 0
        while not self._is_over.wait(1 / RECORDS_A_SECOND):
            yield number
            number += 1

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        assert self.errors == [], self.name

    def abandon(self) -> None:
        """Called at the end of a test that may have failed. The producer must not go on."""
        self._is_over.set()

    def _run(self) -> None:
        try:
            self.write()
        except BaseException as error:
            self.errors.append(repr(error))


class Librdkafka(SteadyProducer):
    """The default of five requests in flight."""

    def write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": self.client_id,
                "enable.idempotence": True,
                "linger.ms": 5,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
                **QUIET,
            }
        )
        for number in self.turns():
            where = number % self.partitions
            producer.produce(self.name, b"%d" % number, partition=where, on_delivery=self._delivered)
            producer.poll(0)
        assert producer.flush(LIMIT_S) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition()].append(int(message.value()))
        else:
            self.errors.append(str(error))


class KafkaPython(SteadyProducer):
    """The default of five requests in flight."""

    def write(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            client_id=self.client_id,
            enable_idempotence=True,
            linger_ms=5,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=3 * LIMIT_S * 1000,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        for number in self.turns():
            sent = producer.send(self.name, b"%d" % number, partition=number % self.partitions)
            sent.add_callback(lambda row, number=number: self.acknowledged[row.partition].append(number))
            sent.add_errback(lambda error: self.errors.append(repr(error)))
        producer.flush(LIMIT_S)
        producer.close()


class Aiokafka(SteadyProducer):
    """aiokafka sends at most one batch of a partition at a time."""

    def write(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            client_id=self.client_id,
            enable_idempotence=True,
            linger_ms=5,
            # This is also the time after which a batch fails.
            request_timeout_ms=LIMIT_S * 1000,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        sent = []
        async with producer:
            turns = self.turns()
            while (number := await asyncio.to_thread(next, turns, None)) is not None:
                where = number % self.partitions
                future = await producer.send(self.name, b"%d" % number, partition=where)
                sent.append(asyncio.ensure_future(self._acknowledge(future, where, number)))
            await asyncio.gather(*sent)

    async def _acknowledge(self, future: "asyncio.Future[Any]", partition: int, number: int) -> None:
        try:
            await future
            self.acknowledged[partition].append(number)
        except Exception as error:
            self.errors.append(repr(error))


class JavaVerifiable(SteadyProducer):
    """Kafka's VerifiableProducer with retries and five requests in flight."""

    def __init__(self, name: str, bootstrap: str, rack: str, java: Java, folder: Path) -> None:
        super().__init__(name, bootstrap, rack)
        self._java = java
        self._process: subprocess.Popen[str] | None = None
        self._config = folder / "java.properties"
        self._config.write_text(
            f"client.id={self.client_id}\nenable.idempotence=true\nretries=2147483647\nlinger.ms=5\n"
            f"request.timeout.ms={REQUEST_TIMEOUT_MS}\nmetadata.max.age.ms={METADATA_AGE_MS}\n"
        )

    def write(self) -> None:
        options = ["--bootstrap-server", self.bootstrap, "--topic", self.name, "--acks", "-1"]
        options += ["--throughput", str(RECORDS_A_SECOND), "--producer.config", str(self._config)]
        command = self._java.command("org.apache.kafka.tools.VerifiableProducer", *options)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            self._process = process
            threading.Thread(target=self._terminate, daemon=True).start()
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("name") == "producer_send_success":
                    self.acknowledged[event["partition"]].append(int(event["value"]))
                elif event.get("name") == "producer_send_error":
                    self.errors.append(line)
        if not self._is_over.is_set():
            self.errors.append(f"the program has ended with exit code {process.returncode}")

    def abandon(self) -> None:
        super().abandon()
        if self._process is not None:
            self._process.kill()

    def _terminate(self) -> None:
        self._is_over.wait()
        assert self._process is not None
        self._process.terminate()


class GatewayWatch:
    """Notes which broker each rack's clients are shown as the leader of a partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.shown: dict[str, list[int]] = {rack: [] for rack in RACKS.values()}
        """The leaders of partition 0 by rack, each time that the leader has changed."""
        self._bootstrap, self._topic = bootstrap, topic

    def wait_for(self, rack: str, *, home: int, at_home: bool) -> None:
        """Wait until clients of a rack are shown their own broker, or another broker."""

        def is_there() -> bool:
            leader = self._leader(rack)
            if leader < 0:
                return False
            if [leader] != self.shown[rack][-1:]:
                self.shown[rack].append(leader)
            return (leader == home) is at_home

        wait_for(is_there)

    def _leader(self, rack: str) -> int:
        # A new client asks any broker. A client that is connected to a paused broker would wait for it.
        admin = AdminClient(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": f"watch,rack={rack}",
                "socket.timeout.ms": 1_000,
                **QUIET,
            }
        )
        # A broker that has just started may not know the topic.
        row = admin.list_topics(self._topic, timeout=3).topics[self._topic].partitions.get(0)
        return -1 if row is None else int(row.leader)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    objects = tmp_path / "objects"
    objects.mkdir()
    properties = {**PROPERTIES, "diskless.storage.url": f"file://{objects}"}
    found = Processes(tmp_path, ROLES, properties, racks=RACKS)
    found.start(*ROLES)
    try:
        yield found
    finally:
        found.kill_all()


@pytest.fixture
def producers(cluster: Processes, java: Java, tmp_path: Path) -> Iterator[list[SteadyProducer]]:
    """A producer of each library, and its topic."""
    found: list[SteadyProducer] = [
        Librdkafka("librdkafka", cluster.bootstrap, "a"),
        KafkaPython("kafka-python", cluster.bootstrap, "b"),
        Aiokafka("aiokafka", cluster.bootstrap, "b"),
        JavaVerifiable("java", cluster.bootstrap, "c", java, tmp_path),
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for each in found:
        wait_for(lambda each=each: is_created(admin, each))
    try:
        yield found
    finally:
        for each in found:
            each.abandon()


def is_created(admin: AdminClient, producer: SteadyProducer) -> bool:
    """Create the topic of a producer. While brokers are starting, this raises ``KafkaException``."""
    new = NewTopic(producer.name, producer.partitions, 3, config={"diskless.enable": "true"})
    if producer.name in admin.list_topics(timeout=10).topics:
        return True
    admin.create_topics([new])[producer.name].result(LIMIT_S)
    return False


def test_no_record_is_lost_or_doubled_while_gateways_change(
    cluster: Processes, producers: list[SteadyProducer]
) -> None:
    watch = GatewayWatch(cluster.bootstrap, "java")
    for node_id, rack in RACKS.items():
        watch.wait_for(rack, home=node_id, at_home=True)
    for producer in producers:
        producer.start()
    wait_for_more(producers)
    for node_id, rack in RACKS.items():
        cluster.pause(node_id)
        try:
            watch.wait_for(rack, home=node_id, at_home=False)
            # Producers of the rack may have to wait for their records in the paused broker.
            wait_for_more([each for each in producers if each.rack != rack])
        finally:
            cluster.resume(node_id)
        watch.wait_for(rack, home=node_id, at_home=True)
        wait_for_more(producers)
        cluster.kill(node_id)
        watch.wait_for(rack, home=node_id, at_home=False)
        wait_for_more(producers)
        cluster.start(node_id)
        watch.wait_for(rack, home=node_id, at_home=True)
        wait_for_more(producers)
    for producer in producers:
        producer.end()
    for producer in producers:
        # A later batch may be acknowledged first, by another broker. The order in the log is another matter.
        acknowledged = {index: sorted(producer.acknowledged[index]) for index in range(producer.partitions)}
        assert read_all(cluster.bootstrap, producer) == acknowledged, producer.name
        everything = sorted(number for each in producer.acknowledged.values() for number in each)
        assert everything == list(range(producer.count)), producer.name
    for node_id, rack in RACKS.items():
        assert watch.shown[rack].count(node_id) >= 3, watch.shown


def wait_for_more(producers: list[SteadyProducer]) -> None:
    """Wait until each producer has got acknowledgements of records that were not acknowledged before."""
    wanted = [each.count + RECORDS_A_SECOND // 2 for each in producers]
    wait_for(
        lambda: all(each.count >= count or each.errors for each, count in zip(producers, wanted, strict=True))
    )
    assert [each.errors for each in producers] == [[] for _ in producers]


def read_all(bootstrap: str, producer: SteadyProducer) -> dict[int, list[int]]:
    """The numbers in the topic of a producer, by partition and in the order of their offsets. All records up
    to the end of each partition are read."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.partition.eof": True, **QUIET}
    )
    found: dict[int, list[int]] = {index: [] for index in range(producer.partitions)}
    consumer.assign([TopicPartition(producer.name, index, OFFSET_BEGINNING) for index in found])
    ends = {
        index: consumer.get_watermark_offsets(TopicPartition(producer.name, index), timeout=LIMIT_S)[1]
        for index in found
    }
    left, deadline_s = set(found), time.monotonic() + LIMIT_S
    while left:
        assert time.monotonic() < deadline_s, f"{producer.name} cannot be read"
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                found[message.partition()].append(int(message.value()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left -= {index for index in left if len(found[index]) >= ends[index]}
    consumer.close()
    return found
