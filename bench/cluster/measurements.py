"""``python -m bench --only cluster``: three controllers and three brokers, of Moldau and of Apache Kafka.

A full run takes a long time and needs a machine without other work. The command also runs seeded histories of
Moldau's nodes.
"""

import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.brokers import JARS
from bench.cluster.image import SNAPSHOTS, measure_image
from bench.cluster.nodes import (
    DESCRIBE_QUORUM,
    METADATA,
    ClusterNodes,
    Figures,
    KafkaNodes,
    MoldauNodes,
    quorum_request,
    wait_until,
)
from bench.cluster.seeds import bench_seeds
from bench.measuring.report import Report, megabytes, rounded
from bench.partitions import CREATE_TOPICS, Connection
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.runtime.errors import ErrorCode

IDLE_RSS: Final = "RSS of an idle controller, MB"
PROPAGATION: Final = "a creation's answer until the last broker shows the topic, ms"
FAILOVER: Final = "SIGKILL of the active controller until a creation is accepted, s"
CREATION: Final = "create many partitions in two requests until all brokers show them, s"
GOALS: Final = {
    IDLE_RSS: "< 80",
    f"{PROPAGATION}, p99": "< 50",
    f"{FAILOVER}, p99": "< 2",
    CREATION: "< 10 (10,000 partitions)",
    "longest silence while a snapshot is written, ms": "< 20",
}
MANY_TOPICS: Final = 10
"""Number of topics over which the partitions are divided."""
TOPICS_A_REQUEST: Final = 5
"""Number of topics that one request creates. Kafka refuses a request that needs more than 10,000 records. A
topic needs one record, and each of its partitions needs one record."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The size of each measurement."""

    partitions: int
    image_partitions: int
    failovers: int
    propagations: int
    idle_s: float
    seeds_cpu_s: float
    """CPU time for each story of the simulation."""


FULL_CLUSTER: Final = ClusterPlan(10_000, 100_000, 20, 200, 5, 20)
QUICK_CLUSTER: Final = ClusterPlan(1_000, 10_000, 3, 50, 2, 3)


def bench_cluster(report: Report, folder: pathlib.Path, plan: ClusterPlan) -> None:
    """Measures both systems, one after the other. If Kafka's jars are missing, measures only Moldau."""
    kinds: list[type[ClusterNodes]] = [MoldauNodes, *([KafkaNodes] if JARS.is_dir() else [])]
    found: dict[str, Figures] = {}
    for kind in kinds:
        nodes = kind(folder / f"cluster-{kind.name}")
        try:
            found[kind.name] = _measure(nodes, plan)
        finally:
            nodes.stop()
    _add(report, "Three controllers and three brokers", found)
    for kind in kinds:
        nodes = kind(folder / f"image-{kind.name}", controllers=(101,), brokers=(), properties=SNAPSHOTS)
        try:
            found[kind.name] = measure_image(nodes, plan.image_partitions, plan.idle_s)
        finally:
            nodes.stop()
    _add(report, f"A controller with an image of {plan.image_partitions} partitions", found)
    bench_seeds(report, plan.seeds_cpu_s)


def _add(report: Report, title: str, found: Mapping[str, Figures]) -> None:
    """Add a row to the report for each measured value. The row has a column for each system."""
    for what in next(iter(found.values())):
        sides = {name: figures[what] for name, figures in found.items()}
        report.add(title, {"what": what, **sides, "goal": GOALS.get(what, "")})


def _measure(nodes: ClusterNodes, plan: ClusterPlan) -> Figures:
    figures: Figures = {}
    figures["start until all brokers are unfenced, s"] = rounded(timed(lambda: _start(nodes)))
    time.sleep(plan.idle_s)
    idle = max(nodes.usage(node_id).rss_bytes for node_id in nodes.controllers)
    figures[IDLE_RSS] = megabytes(idle)
    figures |= quantiles(PROPAGATION, propagations(nodes, plan), 1000)
    figures |= quantiles(FAILOVER, failovers(nodes, plan), 1)
    figures[CREATION] = rounded(timed(lambda: create_many(nodes, plan.partitions)))
    restarted = nodes.brokers[0]
    nodes.end(restarted)
    figures["restart of a broker with them, s"] = rounded(timed(lambda: _start(nodes, restarted)))
    return figures


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _start(nodes: ClusterNodes, *node_ids: int) -> None:
    nodes.start(*node_ids)
    nodes.wait_for_brokers(*nodes.brokers)


def quantiles(what: str, seconds: list[float], factor: float) -> Figures:
    """Median and 99th percentile. With up to a hundred values, the 99th percentile is the maximum."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {
        f"{what}, p50": rounded(statistics.median(ordered) * factor),
        f"{what}, p99": rounded(p99 * factor),
    }


def propagations(nodes: ClusterNodes, plan: ClusterPlan) -> list[float]:
    """Seconds from the response to a creation until the last broker shows the topic with its leader."""
    connections = [Connection(nodes.address(node_id)) for node_id in nodes.brokers]
    found = []
    for number in range(plan.propagations):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=f"propagated-{number}")])
        _expect_created(connections[0], [f"propagated-{number}"], 1)
        start = time.perf_counter()
        for connection in connections:
            while not _all_led(connection, request, 1):
                pass
        found.append(time.perf_counter() - start)
    for connection in connections:
        connection.close()
    return found


def failovers(nodes: ClusterNodes, plan: ClusterPlan) -> list[float]:
    """Seconds from SIGKILL of the active controller until the creation of a topic is accepted."""
    found = []
    for number in range(plan.failovers):
        leader = nodes.leader()
        start = time.perf_counter()
        nodes.kill(leader)
        attempt = 0
        while not _try_to_create(nodes, f"failover-{number}-{attempt}"):
            attempt += 1
        found.append(time.perf_counter() - start)
        nodes.start(leader)
        wait_until(lambda: _all_follow(nodes))
    return found


def create_many(nodes: ClusterNodes, partitions: int) -> None:
    """Create topics with two requests. Returns when each broker shows the leaders of all partitions."""
    names = [f"many-{number}" for number in range(MANY_TOPICS)]
    count = partitions // MANY_TOPICS
    connection = Connection(nodes.address(nodes.brokers[0]))
    for first in range(0, MANY_TOPICS, TOPICS_A_REQUEST):
        _expect_created(connection, names[first : first + TOPICS_A_REQUEST], count)
    connection.close()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    for node_id in nodes.brokers:
        connection = Connection(nodes.address(node_id))
        wait_until(functools.partial(_all_led, connection, request, count))
        connection.close()


def _creation(names: list[str], partitions: int) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=300_000)


def _expect_created(connection: Connection, names: list[str], partitions: int) -> None:
    answer = connection.call(CREATE_TOPICS, _creation(names, partitions))
    refused = [topic for topic in answer.topics if topic.error_code is not ErrorCode.none]
    if refused:
        raise RuntimeError(f"not created: {refused[0]}")


def _try_to_create(nodes: ClusterNodes, name: str) -> bool:
    try:
        answer = nodes.ask(nodes.brokers[0], CREATE_TOPICS, _creation([name], 1))
    except (OSError, EOFError):
        return False
    return answer.topics[0].error_code is ErrorCode.none


def _all_led(connection: Connection, request: MetadataRequest, partitions: int) -> bool:
    topics = connection.call(METADATA, request).topics
    return all(
        topic.error_code is ErrorCode.none
        and len(topic.partitions) == partitions
        and all(partition.leader_id >= 0 for partition in topic.partitions)
        for topic in topics
    )


def _all_follow(nodes: ClusterNodes) -> bool:
    """Whether every voter has all records that the active controller has committed."""
    try:
        answer = nodes.ask(nodes.leader(), DESCRIBE_QUORUM, quorum_request())
        quorum = answer.topics[0].partitions[0]
    except (OSError, EOFError, IndexError):
        return False
    ends = [voter.log_end_offset for voter in quorum.current_voters]
    return len(ends) == len(nodes.controllers) and min(ends) >= quorum.high_watermark
