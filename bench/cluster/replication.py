"""``python -m bench --only replication``: three brokers of Moldau and of Apache Kafka with three replicas of
each partition.

Both clusters have three controllers and the same properties, and run one after the other. If a value is for
all brokers, the CPU times of the three brokers are added. A full run needs a machine without other work.
"""

import contextlib
import pathlib
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.brokers import JARS, Usage
from bench.cluster.nodes import METADATA, ClusterNodes, Figures, KafkaNodes, MoldauNodes, wait_until
from bench.cluster.offsets import load_s
from bench.cluster.paced import PacedProducer, p99_ms
from bench.measuring.measure import MEGABYTE, Sample, measure, median_sample
from bench.measuring.plan import LATENCY_LINGER_MS, PARTITION_COUNTS, topic
from bench.measuring.report import Report, rounded
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.runtime.errors import ErrorCode

REPLICAS: Final = 3
RECORD_SIZE: Final = 1024
RATE: Final = 1_000
FAILOVER_RATE: Final = 200
ABSENCE_PARTITIONS: Final = 12
WARM_UP_S: Final = 1.0
PROPERTIES: Final = {"min.insync.replicas": "2", "auto.leader.rebalance.enable": "false"}
SHORT_SESSIONS: Final = {
    # With the default of 9 s, a killed broker of Kafka keeps its partitions for 9 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # One coordinator loads the offsets of all groups.
    "offsets.topic.num.partitions": "1",
}
KILL: Final = "SIGKILL"
TERMINATION: Final = "SIGTERM"
THROUGHPUT: Final = "produce, MB/s"
EFFICIENCY: Final = "produce, MB per CPU-second of all brokers"
FOLLOWING: Final = "CPU of a broker that only follows, ms per MB"
ACK: Final = "ack p99 at 1,000 records/s, ms"
IDLE: Final = "CPU of the busiest broker, idle, % of a core"
FAILOVER: Final = "of a leader, longest wait of a producer"
COPY: Final = "copy of a follower that was away, MB/s"
ACK_WHOLE: Final = "ack p99 before the follower was away and after the copy, ms"
ACK_AWAY: Final = "ack p99 while the follower was away, ms"
ACK_DURING: Final = "ack p99 during the copy, ms"
ACK_RATIO: Final = "ack p99 during the copy / before the follower was away and after the copy"
ACK_AWAY_RATIO: Final = "ack p99 during the copy / while the follower was away"
LOAD: Final = "load of committed offsets by a new coordinator, s"
GOALS: Final = {
    THROUGHPUT: "≥ 1.5 × Kafka",
    EFFICIENCY: "≥ 1.5 × Kafka",
    ACK: "≤ Kafka",
    IDLE: "< 3 (2,000 partitions)",
    f"{KILL} {FAILOVER}, p99, s": "< 3",
    f"{TERMINATION} {FAILOVER}, p99, s": "< 0.3",
    COPY: "≥ 300",
    ACK_RATIO: "≤ 1.5",
    LOAD: "< 5 (1,000,000 offsets)",
}


@dataclass(frozen=True, slots=True)
class ReplicationPlan:
    """The size of each measurement."""

    size_bytes: int
    repeats: int
    latency_s: float
    idle_partitions: int
    idle_s: float
    failovers: int
    absence_bytes: int
    """Bytes that a follower copies after it was away."""
    offsets: int


FULL_REPLICATION: Final = ReplicationPlan(600_000_000, 3, 10, 2_000, 20, 20, 2_000_000_000, 1_000_000)
QUICK_REPLICATION: Final = ReplicationPlan(100_000_000, 1, 2, 200, 3, 2, 200_000_000, 20_000)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a follower that was away, and the 99th percentiles of the waits of a producer in ms."""

    mb_per_s: float
    whole_ms: float
    """Before the follower was away, and after the copy. All three replicas are then in sync."""
    away_ms: float
    """While the follower was away. A record then waits for one other replica instead of two."""
    during_ms: float


class Brokers:
    """Some brokers of a cluster (by default all brokers). Their used resources are added."""

    def __init__(self, nodes: ClusterNodes, node_ids: Sequence[int] = ()) -> None:
        self._nodes = nodes
        self._node_ids = node_ids or nodes.brokers

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self._nodes.address, self._node_ids))

    def usage(self) -> Usage:
        found = [self._nodes.usage(node_id) for node_id in self._node_ids]
        return Usage(
            sum(each.user_s for each in found),
            sum(each.system_s for each in found),
            sum(each.rss_bytes for each in found),
        )


class ReplicationBench:
    """The measurements of one cluster, whose nodes run."""

    def __init__(self, nodes: ClusterNodes, plan: ReplicationPlan) -> None:
        self._nodes, self._plan = nodes, plan
        self._brokers = Brokers(nodes)
        self.samples: dict[str, list[Sample]] = {}
        """The runs of a measurement, by its name."""

    def figures(self) -> Figures:
        """The measurements without failures of brokers, each with its name."""
        figures: Figures = {}
        for partitions in PARTITION_COUNTS:
            figures |= self._throughput(partitions)
        for partitions in PARTITION_COUNTS:
            figures |= self._latency(partitions)
        return figures | self._idle() | self._absence()

    def failovers(self) -> Figures:
        """The measurements of a cluster with short sessions."""
        loaded: Figures = {LOAD: rounded(load_s(self._nodes, self._plan.offsets))}
        return self._failovers(KILL) | self._failovers(TERMINATION) | loaded

    def _throughput(self, partitions: int) -> Figures:
        """Produce to topics with three replicas. The first run is not counted, because it warms up the
        brokers."""
        runs = [self._produced(partitions, number) for number in range(self._plan.repeats + 1)][1:]
        samples = [sample for sample, _ in runs]
        self.samples[named(THROUGHPUT, partitions)] = samples
        sample = median_sample(samples)
        found: Figures = {
            named(THROUGHPUT, partitions): rounded(sample.mb_per_s),
            named(EFFICIENCY, partitions): rounded(sample.mb_per_cpu_s),
        }
        if partitions == 1:
            found[named(FOLLOWING, 1)] = rounded(statistics.median(following for _, following in runs))
        return found

    def _produced(self, partitions: int, number: int) -> tuple[Sample, float]:
        """Make one run. Returns the run, and the milliseconds of CPU time for each MB on a broker that leads
        no partition."""
        with topic(self._brokers, f"produce-{partitions}-{number}", partitions, REPLICAS) as name:
            self._wait_until_in_sync(name)
            leaders = self._leaders(name)
            following = Brokers(self._nodes, [each for each in self._nodes.brokers if each not in leaders])
            before_s = following.usage().cpu_s
            sample = measure(
                self._brokers,
                "produce",
                topic=name,
                partitions=partitions,
                record_size=RECORD_SIZE,
                records=self._plan.size_bytes // RECORD_SIZE,
            )
            self._wait_until_in_sync(name)
            spent_s = following.usage().cpu_s - before_s
        return sample, spent_s / (REPLICAS - 1) / (sample.size_bytes / MEGABYTE) * 1000

    def _latency(self, partitions: int) -> Figures:
        with topic(self._brokers, f"latency-{partitions}", partitions, REPLICAS) as name:
            self._wait_until_in_sync(name)
            sample = measure(
                self._brokers,
                "latency",
                topic=name,
                partitions=partitions,
                record_size=RECORD_SIZE,
                rate=RATE,
                seconds=self._plan.latency_s,
                linger_ms=LATENCY_LINGER_MS,
            )
        self.samples[named(ACK, partitions)] = [sample]
        return {named(ACK, partitions): rounded(sample.detail["ack_p99_ms"])}

    def _idle(self) -> Figures:
        partitions = self._plan.idle_partitions
        with topic(self._brokers, "idle", partitions, REPLICAS) as name:
            self._wait_until_in_sync(name)
            time.sleep(self._plan.idle_s / 2)
            before_s = [self._nodes.usage(node_id).cpu_s for node_id in self._nodes.brokers]
            start = time.perf_counter()
            time.sleep(self._plan.idle_s)
            wall_s = time.perf_counter() - start
            after_s = [self._nodes.usage(node_id).cpu_s for node_id in self._nodes.brokers]
        spent_s = max(after - before for before, after in zip(before_s, after_s, strict=True))
        return {named(IDLE, partitions): rounded(spent_s / wall_s * 100)}

    def _failovers(self, signal_name: str) -> Figures:
        """The waits of a producer while the leader of its only partition ends. With up to a hundred values,
        the 99th percentile is the maximum."""
        with topic(self._brokers, f"failover-{signal_name}", 1, REPLICAS) as name:
            waits_s = sorted(self._failover_s(name, signal_name) for _ in range(self._plan.failovers))
        return {
            f"{signal_name} {FAILOVER}, p50, s": rounded(statistics.median(waits_s)),
            f"{signal_name} {FAILOVER}, p99, s": rounded(
                waits_s[min(len(waits_s) - 1, len(waits_s) * 99 // 100)]
            ),
        }

    def _failover_s(self, name: str, signal_name: str) -> float:
        """End the leader. Returns the longest wait for a record, and starts the node again."""
        self._wait_until_in_sync(name)
        (leader,) = self._leaders(name)
        with PacedProducer(self._brokers.bootstrap, name, 1, FAILOVER_RATE, RECORD_SIZE) as producer:
            producer.wait_for_a_record_sent_after(time.perf_counter() + WARM_UP_S)
            start = time.perf_counter()
            if signal_name == KILL:
                self._nodes.kill(leader)
            else:
                self._nodes.end(leader)
            producer.wait_for_a_record_sent_after(time.perf_counter() + WARM_UP_S)
        self._nodes.start(leader)
        self._nodes.wait_for_brokers(*self._nodes.brokers)
        return producer.longest_s(start)

    def _absence(self) -> Figures:
        """Medians of some copies of a follower that was away. The quotients are medians of each copy's
        quotient."""
        copies = [self._copy(f"absence-{number}") for number in range(self._plan.repeats)]
        found: dict[str, list[float]] = {
            COPY: [each.mb_per_s for each in copies],
            ACK_WHOLE: [each.whole_ms for each in copies],
            ACK_AWAY: [each.away_ms for each in copies],
            ACK_DURING: [each.during_ms for each in copies],
            ACK_RATIO: [each.during_ms / each.whole_ms for each in copies],
            ACK_AWAY_RATIO: [each.during_ms / each.away_ms for each in copies],
        }
        return {what: rounded(statistics.median(values)) for what, values in found.items()}

    def _copy(self, name: str) -> "Copy":
        """Stop a follower, so that it misses records. Then measure how fast it copies these records while a
        producer goes on."""
        *others, away = self._nodes.brokers
        with topic(self._brokers, name, ABSENCE_PARTITIONS, REPLICAS):
            self._wait_until_in_sync(name)
            with self._paced(name) as producer:
                start = time.perf_counter() + WARM_UP_S
                producer.wait_for_a_record_sent_after(start + self._plan.latency_s)
            whole_s = producer.waits_s(start, start + self._plan.latency_s)
            self._nodes.end(away)
            wait_until(lambda: self._leaders(name) <= set(others))
            measure(
                Brokers(self._nodes, others),
                "produce",
                topic=name,
                partitions=ABSENCE_PARTITIONS,
                record_size=RECORD_SIZE,
                records=self._plan.absence_bytes // RECORD_SIZE,
            )
            return self._copied(name, away, whole_s)

    def _copied(self, name: str, away: int, whole_s: list[float]) -> "Copy":
        """Start the follower. ``whole_s`` are the waits for records before it was away."""
        had_bytes = self._size_bytes(away, name)
        with self._paced(name) as producer:
            first = time.perf_counter() + WARM_UP_S
            producer.wait_for_a_record_sent_after(first + self._plan.latency_s)
            started = time.perf_counter()
            self._nodes.start(away)
            wait_until(lambda: self._size_bytes(away, name) > had_bytes)
            begun = time.perf_counter()
            self._wait_until_in_sync(name)
            ended = time.perf_counter()
            size_bytes = self._size_bytes(away, name) - had_bytes
            settled = ended + WARM_UP_S
            producer.wait_for_a_record_sent_after(settled + self._plan.latency_s)
        return Copy(
            size_bytes / (ended - begun) / MEGABYTE,
            p99_ms(whole_s + producer.waits_s(settled, settled + self._plan.latency_s)),
            p99_ms(producer.waits_s(first, started)),
            p99_ms(producer.waits_s(begun, ended)),
        )

    def _paced(self, name: str) -> PacedProducer:
        others = Brokers(self._nodes, self._nodes.brokers[:-1])
        return PacedProducer(others.bootstrap, name, ABSENCE_PARTITIONS, RATE, RECORD_SIZE)

    def _size_bytes(self, node_id: int, name: str) -> int:
        files = (self._nodes.folder / str(node_id)).glob(f"{name}-*/*.log")
        return sum(path.stat().st_size for path in files)

    def _partitions(self, name: str) -> Sequence[Any]:
        """The partitions of a topic according to the first broker that responds."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        for node_id in self._nodes.brokers:
            try:
                (found,) = self._nodes.ask(node_id, METADATA, request).topics
            except (OSError, EOFError):
                continue  # the node is down
            return list(found.partitions) if found.error_code is ErrorCode.none else []
        return []

    def _leaders(self, name: str) -> set[int]:
        return {partition.leader_id for partition in self._partitions(name)}

    def _wait_until_in_sync(self, name: str) -> None:
        wait_until(lambda: self._is_in_sync(name))

    def _is_in_sync(self, name: str) -> bool:
        found = self._partitions(name)
        return bool(found) and all(len(each.isr_nodes) == REPLICAS and each.leader_id >= 0 for each in found)


def named(what: str, partitions: int) -> str:
    return f"{what}, {partitions:,} {'partition' if partitions == 1 else 'partitions'}"


@contextlib.contextmanager
def running(nodes: ClusterNodes) -> Iterator[ClusterNodes]:
    """Run the nodes during the block. Their data are then removed."""
    try:
        nodes.start()
        nodes.wait_for_brokers(*nodes.brokers)
        yield nodes
    finally:
        nodes.stop()
        shutil.rmtree(nodes.folder)


def bench_replication(report: Report, folder: pathlib.Path, plan: ReplicationPlan) -> None:
    """Measures both systems. If Kafka's jars are missing, measures only Moldau."""
    kinds: list[type[ClusterNodes]] = [MoldauNodes, *([KafkaNodes] if JARS.is_dir() else [])]
    found: dict[str, Figures] = {}
    samples: dict[str, list[Sample]] = defaultdict(list)
    for kind in kinds:
        with running(kind(folder / f"replication-{kind.name}", properties=PROPERTIES)) as nodes:
            bench = ReplicationBench(nodes, plan)
            found[kind.name] = bench.figures()
        for what, runs in bench.samples.items():
            samples[what] += runs
        sessions = PROPERTIES | SHORT_SESSIONS
        with running(kind(folder / f"failover-{kind.name}", properties=sessions)) as nodes:
            found[kind.name] |= ReplicationBench(nodes, plan).failovers()
    for what in found[MoldauNodes.name]:
        sides = {name: figures[what] for name, figures in found.items()}
        goal = next((goal for key, goal in GOALS.items() if what.startswith(key)), "")
        row = {"what": what, **sides, "goal": goal}
        report.add("Three brokers, three replicas, acks=all, 1 KiB", row, samples[what])
