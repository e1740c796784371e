"""*moves*: the time in which a partition cannot be used while its leader or its coordinator moves, or while a
broker is killed.

There is one coordinator. The leader of the measured partition is on another broker. The sizes are a new
partition, a partition with real records, and a partition with simulated records (``simulated.py``).
"""

import contextlib
import functools
import itertools
import pathlib
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.cluster.nodes import METADATA, wait_until
from bench.cluster.paced import PacedProducer
from bench.cluster.replication import Brokers, running
from bench.diskless_cluster.leadership import elect, prefer, wait_until_in_sync
from bench.diskless_cluster.nodes import COORDINATORS_TOPIC, RackNodes
from bench.diskless_cluster.simulated import fill
from bench.diskless_cluster.sizes import RECORD_SIZE, Sizes
from bench.measuring.measure import measure
from bench.measuring.report import Report, rounded
from bench.partitions import PRODUCE, Connection
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.errors import ErrorCode

FETCH: Final = (1, 11)
LEADER, OTHER, COORDINATOR = 1, 2, 3
"""The brokers: the partition's leader, the next leader, and the coordinator's broker."""
COORDINATOR_MOVE: Final = "planned move of the coordinator"
RATE: Final = 200
WARM_UP_S: Final = 1.0
BATCH: Final = build_batch([Record(0, 0, None, b"value", ())])


class Pause(NamedTuple):
    """The effects of one event, in seconds."""

    back_s: float
    """From the event until a record was produced and read at the new leader."""
    producer_s: float
    """The longest wait of the record of a producer that sends all the time."""
    reader_s: float
    """The longest time in which a consumer got no record."""


class TailReader:
    """A consumer at the end of partition 0. It notes when records arrive while the block runs."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "tail", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "auto.offset.reset": "latest", "log_level": 0})
        position = TopicPartition(topic, 0)
        position.offset = self._consumer.get_watermark_offsets(position, timeout=60)[1]
        self._consumer.assign([position])
        self._arrivals: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "TailReader":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._arrivals.append(time.perf_counter())

    def wait_for_a_record_after(self, moment_s: float) -> None:
        wait_until(lambda: bool(self._arrivals) and self._arrivals[-1] > moment_s)

    def longest_s(self, moment_s: float) -> float:
        """The longest time without a record that ended after this moment."""
        pairs = itertools.pairwise(list(self._arrivals))
        return max(second - first for first, second in pairs if second >= moment_s)


class MovesBench:
    """Events of one partition, whose nodes run."""

    def __init__(self, nodes: RackNodes, topic: str) -> None:
        self._nodes, self._topic = nodes, topic

    def planned_move(self) -> Pause:
        """The preferred replica becomes the leader."""
        prefer(self._nodes, self._topic, {0: (OTHER, COORDINATOR, LEADER)})
        pause = self._observed(lambda: elect(self._nodes, OTHER, self._topic, [0]), OTHER)
        self._restore()
        return pause

    def move_of_coordinator(self) -> Pause:
        """The coordinator of the partition moves to the partition's leader."""
        prefer(self._nodes, COORDINATORS_TOPIC, {0: (LEADER, COORDINATOR, OTHER)})
        pause = self._observed(self._elect_coordinator, LEADER)
        self._restore()
        return pause

    def _elect_coordinator(self) -> None:
        elect(self._nodes, LEADER, COORDINATORS_TOPIC, [0])
        wait_until(functools.partial(self._leads, COORDINATORS_TOPIC, LEADER))

    def kill(self, broker: int) -> Pause:
        """SIGKILL of a broker. If it is the leader, another broker becomes the leader."""
        prefer(self._nodes, self._topic, {0: (LEADER, OTHER, COORDINATOR)})
        pause = self._observed(lambda: self._nodes.kill(broker), OTHER if broker == LEADER else LEADER)
        self._nodes.start(broker)
        self._nodes.wait_for_brokers(*self._nodes.brokers)
        self._restore()
        return pause

    def nothing(self) -> Pause:
        """No event, for comparison."""
        return self._observed(lambda: None, LEADER)

    def _observed(self, event: Callable[[], None], leader: int) -> Pause:
        bootstrap = self._nodes.bootstrap
        with (
            TailReader(bootstrap, self._topic) as reader,
            PacedProducer(bootstrap, self._topic, 1, RATE, RECORD_SIZE) as producer,
        ):
            producer.wait_for_a_record_sent_after(time.perf_counter() + WARM_UP_S)
            reader.wait_for_a_record_after(time.perf_counter())
            start = time.perf_counter()
            event()
            wait_until(functools.partial(self._is_served_by, leader))
            back_s = time.perf_counter() - start
            producer.wait_for_a_record_sent_after(time.perf_counter() + WARM_UP_S)
            reader.wait_for_a_record_after(time.perf_counter())
        return Pause(back_s, producer.longest_s(start), reader.longest_s(start))

    def _is_served_by(self, leader: int) -> bool:
        """Whether a broker shows itself as the leader, and a record can be produced and read there."""
        connection = Connection(self._nodes.address(leader))
        try:
            wanted = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)])
            (found,) = connection.call(METADATA, wanted).topics
            if [each.leader_id for each in found.partitions] != [leader]:
                return False
            offset = self._produced(connection)
            return offset is not None and self._is_read(connection, offset)
        finally:
            connection.close()

    def _produced(self, connection: Connection) -> int | None:
        data = [PartitionProduceData(index=0, records=BATCH)]
        topic_data = [TopicProduceData(name=self._topic, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topic_data)
        (row,) = connection.call(PRODUCE, request).responses[0].partition_responses
        return row.base_offset if row.error_code is ErrorCode.none else None

    def _is_read(self, connection: Connection, offset: int) -> bool:
        part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=self._topic, topic_id=uuid.UUID(int=0), partitions=[part])],
        )
        (row,) = connection.call(FETCH, request).responses[0].partitions
        return row.error_code is ErrorCode.none and bool(row.records)

    def _restore(self) -> None:
        """Bring the leaders back to the brokers where they were before the event."""
        nodes = self._nodes
        for topic, order in (
            (COORDINATORS_TOPIC, (COORDINATOR, LEADER, OTHER)),
            (self._topic, (LEADER, OTHER, COORDINATOR)),
        ):
            wait_until_in_sync(nodes, topic)
            prefer(nodes, topic, {0: order})
            elect(nodes, LEADER, topic, [0])
            wait_until(functools.partial(self._leads, topic, order[0]))
        nodes.wait_until_cached()

    def _leads(self, topic: str, leader: int) -> bool:
        return bool(self._nodes.partitions_of(topic)[0].leader_id == leader)


def measure_kills(report: Report, folder: pathlib.Path, sizes: Sizes) -> None:
    """Kill the coordinator's broker many times, for the 99th percentile of the pause."""
    with _prepared(folder / "kills") as nodes:
        _create(nodes, "new")
        bench = MovesBench(nodes, "new")
        pauses = [bench.kill(COORDINATOR) for _ in range(sizes.kills)]
    row: dict[str, Any] = {"SIGKILL of the coordinator's broker, times": len(pauses)}
    for number, column in enumerate(("back", "producer", "reader")):
        values = sorted(pause[number] for pause in pauses)
        row[f"{column}, p50; p99; max, s"] = "; ".join(
            str(rounded(value))
            for value in (statistics.median(values), values[ceil(0.99 * len(values)) - 1], values[-1])
        )
    row["goal"] = "producer, p99 < 3"
    report.add("Kills of the coordinator's broker", row)


def measure_moves(report: Report, folder: pathlib.Path, sizes: Sizes) -> None:
    with _prepared(folder / "moves") as nodes:
        fillings: dict[str, Callable[[RackNodes, Sizes, str], str]] = {
            "new": lambda nodes, sizes, topic: "a new partition",
            "real": _fill_for_real,
            "simulated": _fill_simulated,
        }
        for name, filling in fillings.items():
            _create(nodes, name)
            size = filling(nodes, sizes, name)
            _measure_events(report, MovesBench(nodes, name), size, sizes.moves)


@contextlib.contextmanager
def _prepared(folder: pathlib.Path) -> Iterator[RackNodes]:
    """A cluster with one coordinator, at its broker."""
    with running(RackNodes(folder, coordinators=1)) as nodes:
        assert isinstance(nodes, RackNodes)
        prefer(nodes, COORDINATORS_TOPIC, {0: (COORDINATOR, LEADER, OTHER)})
        elect(nodes, LEADER, COORDINATORS_TOPIC, [0])
        yield nodes


def _create(nodes: RackNodes, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})
    new = NewTopic(topic, 1, replica_assignment=[[LEADER, OTHER, COORDINATOR]])
    admin.create_topics([new])[topic].result(60)


def _fill_for_real(nodes: RackNodes, sizes: Sizes, topic: str) -> str:
    load: dict[str, Any] = {"topic": topic, "partitions": 1, "record_size": RECORD_SIZE}
    measure(Brokers(nodes), "produce", records=sizes.moved_bytes // RECORD_SIZE, **load)
    nodes.wait_until_cached()
    return f"{sizes.moved_bytes / 1e9:g} GB"


def _fill_simulated(nodes: RackNodes, sizes: Sizes, topic: str) -> str:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    (found,) = nodes.ask(LEADER, METADATA, request).topics
    count = fill(nodes, found.topic_id, sizes.simulated_bytes)
    return f"{sizes.simulated_bytes / 1e9:g} GB, simulated ({count:,} objects)"


def _measure_events(report: Report, bench: MovesBench, size: str, count: int) -> None:
    events: dict[str, Callable[[], Pause]] = {
        "none": bench.nothing,
        "planned move": bench.planned_move,
        COORDINATOR_MOVE: bench.move_of_coordinator,
        "SIGKILL of the leader": functools.partial(bench.kill, LEADER),
        "SIGKILL of the coordinator's broker": functools.partial(bench.kill, COORDINATOR),
    }
    for event, run in events.items():
        pauses = [run() for _ in range(count)]
        row: dict[str, Any] = {"partition": size, "event": event}
        for number, column in enumerate(("back", "producer", "reader")):
            values = sorted(pause[number] for pause in pauses)
            row[f"{column}, p50, s"] = rounded(statistics.median(values))
            row[f"{column}, max, s"] = rounded(values[-1])
        row["goal"] = {"planned move": "back < 1", COORDINATOR_MOVE: "producer < 1"}.get(event, "")
        report.add("The leader of a partition moves, or a broker is killed", row)
