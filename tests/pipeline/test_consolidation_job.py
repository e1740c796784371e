"""Consolidation by tasks outside of the broker, with a driver that is killed at any step. The tests do not
need Spark."""

import logging
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.client.cluster import Client
from moldau.client.consolidation import ClusterPlan, give_up, plan_everywhere
from moldau.client.errors import ToolError
from moldau.pipeline.consolidation import job as consolidate
from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once
from moldau.pipeline.consolidation.units import BuildUnits, CopiedUnit
from moldau.pipeline.reading.decoding import decode_found
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.snapshot import pin
from moldau.pipeline.source.units import ask

PARTITIONS, RECORDS = 2, 300
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    properties = {
        "diskless.metadata.topic.num.partitions": "2",
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.topic.num.partitions": "2",
        "remote.log.metadata.topic.replication.factor": "1",
        "diskless.consolidation.enable": "false",
        "diskless.consolidation.segment.bytes": "5000",
        "diskless.consolidation.max.age.ms": "0",
        "rsm.config.prefix": "elsewhere",
    }
    with moldau.testing.Node(diskless=True, properties=properties) as running:
        yield running


@pytest.fixture
def topic(node: moldau.testing.Node, request: pytest.FixtureRequest) -> str:
    """A topic for one test, with many small batches."""
    name = re.sub("[^a-z]+", "_", request.node.name)
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "batch.num.messages": 10})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(name, value_of(partition, number), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    wait_until_planned(node, name)
    return name


def wait_until_planned(node: moldau.testing.Node, topic: str) -> None:
    """Wait until a plan of the leader contains all partitions of a new topic. A leader leaves a partition out
    until it knows the partition's remote segments, and a node that has just started may not know them."""

    async def planned(client: Client) -> int:
        plan = await plan_everywhere(client, "a test", max_bytes=2**30, topics=[topic])
        await give_up(client, plan)
        return len({one.segment.partition for each in plan.plans.values() for one in each.work})

    deadline = time.monotonic() + TIMEOUT_S
    while ask(node.bootstrap_servers, planned) < PARTITIONS:
        assert time.monotonic() < deadline, f"{topic} cannot be planned"


def value_of(partition: int, number: int) -> bytes:
    return b"%d-%d-" % (partition, number) + b"v" * 50


def job_of(node: moldau.testing.Node, topic: str, **more: Any) -> ConsolidateJob:
    return ConsolidateJob(node.bootstrap_servers, (topic,), unit_bytes=20_000, timeout_s=TIMEOUT_S, **more)


def in_place(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
    return [function(unit) for unit in units]


def read_all(node: moldau.testing.Node, topic: str) -> dict[int, list[bytes]]:
    """Read a topic through the broker from offset 0 to its end. Returns all values."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
        }
    )
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        deadline = time.monotonic() + TIMEOUT_S
        while sum(map(len, found.values())) < RECORDS * PARTITIONS:
            assert time.monotonic() < deadline, {partition: len(rows) for partition, rows in found.items()}
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None
                assert message.offset() == len(found[message.partition()])
                found[message.partition()].append(message.value())
    finally:
        consumer.close()
    return found


def check(node: moldau.testing.Node, topic: str) -> None:
    """Check that there is no more work to plan, and that every record is read once."""
    assert consolidate_once(job_of(node, topic), in_place)["segments"] == 0
    assert read_all(node, topic) == {
        partition: [value_of(partition, number) for number in range(RECORDS)]
        for partition in range(PARTITIONS)
    }


def test_all_of_a_topic_leaves_the_wal(node: moldau.testing.Node, topic: str) -> None:
    report = consolidate_once(job_of(node, topic), in_place)
    assert report["segments"] >= 2 * PARTITIONS
    assert report["units"] >= 2
    assert report["failures"] == []
    assert report["bytes"] > RECORDS * PARTITIONS * 50
    # The objects have the prefix of the leader's storage, because the leader names its storage in the plan.
    objects = pathlib.Path(node.data) / "objects"
    assert len(list(objects.glob(f"elsewhere/{topic}-*/*/*.log"))) == report["segments"]
    check(node, topic)


def test_a_unit_has_partitions_of_several_coordinators(node: moldau.testing.Node, topic: str) -> None:
    """A unit has segments of partitions with different coordinators. In the first round, the test removes the
    reports about partition 0. The segments of the other partitions are published anyway."""
    options = parse_options({"kafka.bootstrap.servers": node.bootstrap_servers, "subscribe": topic})
    (found,) = ask(node.bootstrap_servers, lambda client: pin(client, options))
    assert found.source.wal is not None
    assert len(set(found.source.wal.coordinators.values())) == PARTITIONS
    spans: list[set[int]] = []

    def watched(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        built: list[CopiedUnit] = in_place(function, units)
        is_first = not spans
        for number, (unit, one) in enumerate(zip(units, built, strict=True)):
            spans.append({segment.partition.partition for segment in unit.segments})
            if is_first:
                kept = {segment.segment_id for segment in unit.segments if segment.partition.partition}
                built[number] = replace(
                    one, segments=tuple(copy for copy in one.segments if copy.segment_id in kept)
                )
        return built

    assert consolidate_once(job_of(node, topic), watched)["segments"] > 0
    assert set(range(PARTITIONS)) in spans
    check(node, topic)


def test_tasks_that_run_twice_leave_each_record_once(node: moldau.testing.Node, topic: str) -> None:
    def speculating(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        first = in_place(function, units)
        second = in_place(function, reversed(units))[::-1]
        return [
            one if number % 2 else other
            for number, (one, other) in enumerate(zip(first, second, strict=True))
        ]

    assert consolidate_once(job_of(node, topic), speculating)["segments"] > 0
    check(node, topic)


def test_jobs_also_read_records_that_have_left_the_wal(node: moldau.testing.Node, topic: str) -> None:
    assert consolidate_once(job_of(node, topic), in_place)["segments"] > 0
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for number in range(RECORDS, RECORDS + 20):
        producer.produce(topic, value_of(1, number), partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    options = parse_options({"kafka.bootstrap.servers": node.bootstrap_servers, "subscribe": topic})
    (found,) = ask(node.bootstrap_servers, lambda client: pin(client, options))
    assert found.source.wal is not None
    tables = decode_found(fetch_found(found.source, found.ranges), found.ranges)
    rows = [(row["partition"], row["offset"], row["value"]) for table in tables for row in table.to_pylist()]
    assert sorted(rows) == [
        (partition, number, value_of(partition, number))
        for partition, count in enumerate((RECORDS, RECORDS + 20))
        for number in range(count)
    ]


class Killed(BaseException):
    """A test raises this exception to simulate a kill of the driver."""


@pytest.mark.parametrize("step", ["before tasks", "after tasks", "after publishing"])
def test_another_driver_continues_the_work_of_a_killed_driver(
    node: moldau.testing.Node, topic: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        if step != "before tasks":
            found = in_place(function, units)
            if step == "after publishing":
                return found
        raise Killed

    publish = consolidate._publish

    def publish_and_die(*told: Any) -> Any:
        publish(*told)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(consolidate, "_publish", publish_and_die)
        # A killed process does not release its lease. The next driver must wait until the lease has expired.
        patch.setattr(consolidate, "_ask_quietly", lambda *told: None)
        with pytest.raises(Killed):
            consolidate_once(job_of(node, topic, lease_ms=300), dying)
    deadline = time.monotonic() + TIMEOUT_S
    done = 0
    while not done and step != "after publishing":
        assert time.monotonic() < deadline, "the lease never ends"
        done = consolidate_once(job_of(node, topic), in_place)["segments"]
    consolidate_once(job_of(node, topic), in_place)
    check(node, topic)


def test_two_concurrent_drivers_consolidate_each_record_once(node: moldau.testing.Node, topic: str) -> None:
    reports: list[dict[str, Any]] = []
    problems: list[BaseException] = []

    def drive() -> None:
        try:
            reports.append(consolidate_once(job_of(node, topic), in_place))
        except BaseException as problem:
            problems.append(problem)

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(TIMEOUT_S)
    assert problems == []
    assert sum(report["segments"] for report in reports) > 0
    consolidate_once(job_of(node, topic), in_place)
    check(node, topic)


def test_a_unit_that_fails_is_built_by_a_later_plan(
    node: moldau.testing.Node, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[Any] = []

    def failing_once(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        if failed:
            return in_place(function, units)
        failed.append(units[0])
        return [CopiedUnit((), failure="no object a"), *in_place(function, units[1:])]

    with caplog.at_level(logging.WARNING):
        report = consolidate_once(job_of(node, topic), failing_once)
    assert "no object a" in report["failures"]
    check(node, topic)


def test_the_reason_is_reported_if_no_segment_can_be_built(node: moldau.testing.Node, topic: str) -> None:
    elsewhere = job_of(node, topic, storage={"diskless.storage.url": "file:///nowhere"})
    with pytest.raises(ToolError, match="nothing could be consolidated: no object wal/"):
        pytest.fail(f"the job did not fail: {consolidate_once(elsewhere, in_place)}")
    assert consolidate_once(job_of(node, topic), in_place)["segments"] > 0
    check(node, topic)


def test_a_task_returns_coordinates_only(node: moldau.testing.Node, topic: str) -> None:
    seen: list[CopiedUnit] = []

    def watched(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        assert isinstance(function, BuildUnits)
        made = in_place(function, units)
        seen.extend(made)
        return made

    consolidate_once(job_of(node, topic), watched)
    assert all(len(one.custom_metadata or b"") < 100 for unit in seen for one in unit.segments)


def test_the_lease_of_a_killed_driver_is_named(node: moldau.testing.Node, topic: str) -> None:
    job = job_of(node, topic)

    async def plan(client: Client) -> ClusterPlan:
        return await plan_everywhere(client, "a driver that died", max_bytes=2**30, topics=[topic])

    left = ask(node.bootstrap_servers, plan)
    report = consolidate_once(job, in_place)
    assert (report["segments"], report["units"]) == (0, 0)
    (until_ms,) = {one.until_ms for one in left.plans.values()}
    assert report["held"] == [
        {"engine": "a driver that died", "until_ms": until_ms, "partitions": PARTITIONS}
    ]
    ask(node.bootstrap_servers, lambda client: give_up(client, left))
    report = consolidate_once(job, in_place)
    assert report["segments"] > 0
    assert report["held"] == []
    check(node, topic)
