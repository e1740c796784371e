"""Idempotent producers of four client libraries, which write numbers at a steady rate."""

import asyncio
import json
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from cluster_processes import LIMIT_S, QUIET, wait_for
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import Java
from kafka import KafkaProducer

RECORDS_A_SECOND: Final = 50
REQUEST_TIMEOUT_MS: Final = 6_000
"""Longer than a test pauses a broker. So requests to a paused broker are in flight until it is resumed."""
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


@contextmanager
def one_of_each(
    bootstrap: str, java: Java, folder: Path, racks: tuple[str, str, str, str]
) -> Iterator[list[SteadyProducer]]:
    """A producer of each library, with its rack and its diskless topic. At the end, no producer goes on."""
    producers: list[SteadyProducer] = [
        Librdkafka("librdkafka", bootstrap, racks[0]),
        KafkaPython("kafka-python", bootstrap, racks[1]),
        Aiokafka("aiokafka", bootstrap, racks[2]),
        JavaVerifiable("java", bootstrap, racks[3], java, folder),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for producer in producers:
        wait_for(lambda producer=producer: _is_created(admin, producer))
    try:
        yield producers
    finally:
        for producer in producers:
            producer.abandon()


def _is_created(admin: AdminClient, producer: SteadyProducer) -> bool:
    """Create the topic of a producer. While brokers are starting, this raises ``KafkaException``."""
    new = NewTopic(producer.name, producer.partitions, -1, config={"diskless.enable": "true"})
    if producer.name in admin.list_topics(timeout=10).topics:
        return True
    admin.create_topics([new])[producer.name].result(LIMIT_S)
    return False


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


def check_records(bootstrap: str, producers: list[SteadyProducer]) -> None:
    """Check that each acknowledged record is stored once, and that the numbers are in order."""
    for producer in producers:
        # A later batch may be acknowledged first, by another broker. The order in the log is another matter.
        acknowledged = {index: sorted(producer.acknowledged[index]) for index in range(producer.partitions)}
        assert read_all(bootstrap, producer) == acknowledged, producer.name
        everything = sorted(number for each in producer.acknowledged.values() for number in each)
        assert everything == list(range(producer.count)), producer.name
