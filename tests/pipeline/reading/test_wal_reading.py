"""Diskless topics are read from their objects. A node runs in the test's own process, without Spark."""

import asyncio
import logging
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.client.cluster import connected
from moldau.client.errors import ToolError
from moldau.objects.storage import ObjectNotFoundError
from moldau.pipeline.reading import wal as wal_reading
from moldau.pipeline.reading.decoding import decode_found
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.reading.object_ranges import MappedFiles
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.snapshot import TopicRanges, pin

PARTITIONS = 3
RECORDS = 600


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node(diskless=True) as running:
        yield running


@pytest.fixture
def topic(node: moldau.testing.Node, request: pytest.FixtureRequest) -> str:
    """A topic for one test. Its :data:`RECORDS` records are in several objects and codecs."""
    name = request.node.name.split("[")[0].removeprefix("test_")
    create(node, name)
    for codec in ("none", "lz4"):
        produce(node, name, RECORDS // 2, codec)
    return name


def create(node: moldau.testing.Node, name: str, partitions: int = PARTITIONS, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    # The timestamps of records are in the past.
    given = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
    new = NewTopic(name, num_partitions=partitions, config=given)
    admin.create_topics([new])[name].result(60)


def produce(node: moldau.testing.Node, topic: str, count: int, codec: str = "none", **record: Any) -> None:
    producer = Producer(
        {"bootstrap.servers": node.bootstrap_servers, "compression.type": codec, "batch.num.messages": 50}
    )
    for number in range(count):
        producer.produce(topic, **{"value": b"%d" % number, "partition": number % PARTITIONS, **record})
    assert producer.flush(60) == 0


def delete_before(node: moldau.testing.Node, topic: str, partition: int, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    (done,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(60)


def pinned(node: moldau.testing.Node, **options: str) -> list[TopicRanges]:
    given = parse_options({"kafka.bootstrap.servers": node.bootstrap_servers, **options})

    async def look() -> list[TopicRanges]:
        async with connected(node.bootstrap_servers, 60.0) as client:
            return await pin(client, given)

    return asyncio.run(look())


def rows(found: TopicRanges) -> list[dict[str, Any]]:
    tables = decode_found(fetch_found(found.source, found.ranges), found.ranges)
    return [row for table in tables for row in table.to_pylist()]


def by_partition(found: TopicRanges) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    for row in rows(found):
        offsets.setdefault(row["partition"], []).append(row["offset"])
    return offsets


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every read of records from a broker fail."""
    monkeypatch.delattr(wal_reading, "BrokerReader")


def test_objects_have_the_same_records_as_the_responses_of_brokers(
    node: moldau.testing.Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (through_brokers,) = pinned(node, subscribe=topic, readFrom="brokers")
    expected = rows(through_brokers)
    monkeypatch.delattr(wal_reading, "BrokerReader")
    (found,) = pinned(node, subscribe=topic)
    assert found.source.wal is not None
    assert sorted(rows(found), key=lambda row: (row["partition"], row["offset"])) == expected
    assert len(expected) == RECORDS


@pytest.mark.usefixtures("no_broker")
def test_each_object_is_asked_for_once(
    node: moldau.testing.Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: Counter[str] = Counter()
    fetch = MappedFiles.fetch

    async def counted(files: MappedFiles, key: str, offset: int, size: int) -> memoryview:
        fetched[key] += 1
        return await fetch(files, key, offset, size)

    monkeypatch.setattr(MappedFiles, "fetch", counted)
    (found,) = pinned(node, subscribe=topic)
    assert len(rows(found)) == RECORDS
    assert set(fetched.values()) == {1}


@pytest.mark.usefixtures("no_broker")
def test_a_range_may_begin_and_end_inside_batches(node: moldau.testing.Node, topic: str) -> None:
    (found,) = pinned(node, subscribe=topic)
    part = TopicRanges(found.source, (OffsetRange(0, 7, 123), OffsetRange(2, 190, 191)))
    assert by_partition(part) == {0: list(range(7, 123)), 2: [190]}


@pytest.mark.usefixtures("no_broker")
def test_many_rounds_of_few_coordinates(
    node: moldau.testing.Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_reading, "FIRST_BATCHES", 1)
    monkeypatch.setattr(wal_reading, "ROUND_BATCHES", 2)
    (found,) = pinned(node, subscribe=topic)
    assert by_partition(found) == {partition: list(range(RECORDS // PARTITIONS)) for partition in range(3)}


@pytest.mark.usefixtures("no_broker")
def test_the_append_time_is_the_time_of_the_commit(node: moldau.testing.Node) -> None:
    create(node, "appended", 1, message_timestamp_type="LogAppendTime")
    produce(node, "appended", 10, partition=0, timestamp=5)
    (found,) = pinned(node, subscribe="appended")
    assert {row["timestampType"] for row in rows(found)} == {1}
    (through_brokers,) = pinned(node, subscribe="appended", readFrom="brokers")
    assert rows(found) == rows(through_brokers)
    assert min(row["timestamp"].timestamp() for row in rows(found)) > 5


def test_deleted_records_are_a_loss_unless_it_is_allowed(node: moldau.testing.Node, topic: str) -> None:
    (before,) = pinned(node, subscribe=topic)
    (allowed,) = pinned(node, subscribe=topic, failOnDataLoss="false")
    delete_before(node, topic, 1, 60)
    with pytest.raises(ToolError, match="offsets 0 to 59 were deleted meanwhile"):
        rows(before)
    assert by_partition(allowed)[1] == list(range(60, 200))
    (after,) = pinned(node, subscribe=topic)
    assert by_partition(after)[1] == list(range(60, 200))


def test_batches_of_a_deleted_object_are_looked_up_again_and_then_read_from_the_broker(
    node: moldau.testing.Node, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wal_reading, "RETRY_BACKOFF_S", 0)
    (found,) = pinned(node, subscribe=topic)
    gone: Counter[str] = Counter()
    fetch = MappedFiles.fetch

    async def vanished(files: MappedFiles, key: str, offset: int, size: int) -> memoryview:
        gone[key] += 1
        if len(gone) == 1 and gone[key] <= 2:
            raise ObjectNotFoundError(key)
        return await fetch(files, key, offset, size)

    monkeypatch.setattr(MappedFiles, "fetch", vanished)
    expected = {partition: list(range(RECORDS // PARTITIONS)) for partition in range(PARTITIONS)}
    assert by_partition(found) == expected

    async def never(files: MappedFiles, key: str, offset: int, size: int) -> memoryview:
        raise ObjectNotFoundError(key)

    monkeypatch.setattr(MappedFiles, "fetch", never)
    with caplog.at_level(logging.WARNING):
        assert by_partition(found) == expected
    assert "are read through the broker: no object wal/" in caplog.text


def test_a_store_that_cannot_be_read_leaves_the_broker(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = pathlib.Path(node.data) / "objects"
    copy = tmp_path / "objects"
    shutil.copytree(objects, copy)
    for path in copy.rglob("*"):
        if path.is_file():
            os.truncate(path, 10)
    (found,) = pinned(node, subscribe=topic, **{"diskless.storage.url": f"file://{copy}"})
    with caplog.at_level(logging.WARNING):
        assert len(rows(found)) == RECORDS
    assert "are read through the broker: wal/" in caplog.text


def test_topics_by_pattern_and_classic_ones(node: moldau.testing.Node) -> None:
    create(node, "pattern-a", 1)
    create(node, "pattern-b", 1, diskless_enable="false")
    for name in ("pattern-a", "pattern-b"):
        produce(node, name, 5, partition=0)
    first, second = pinned(node, subscribePattern="pattern-.*")
    assert (first.source.wal is None, second.source.wal is None) == (False, True)
    assert [len(rows(found)) for found in (first, second)] == [5, 5]


def test_offsets_by_time(node: moldau.testing.Node) -> None:
    create(node, "times", 1)
    for time in range(1000, 1010):
        produce(node, "times", 1, partition=0, timestamp=time)
    (found,) = pinned(node, subscribe="times", startingTimestamp="1003", endingTimestamp="1007")
    assert by_partition(found) == {0: [3, 4, 5, 6]}
    by_time = '{"times": {"0": 1008}}'
    (found,) = pinned(node, subscribe="times", startingOffsetsByTimestamp=by_time, endingTimestamp="5000")
    assert by_partition(found) == {0: [8, 9]}
    with pytest.raises(ToolError, match="no record at or after 5000 ms"):
        pinned(node, subscribe="times", startingTimestamp="5000")
    (found,) = pinned(
        node, subscribe="times", startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest"
    )
    assert found.ranges == ()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_are_read_as_from_brokers(node: moldau.testing.Node, isolation: str) -> None:
    name = f"transactions_{isolation}"
    create(node, name, 1)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(60)
    for outcome in ("committed", "aborted", "committed", "aborted"):
        producer.begin_transaction()
        producer.produce(name, f"{outcome} one")
        producer.flush(60)
        producer.produce(name, f"{outcome} two")
        if outcome == "aborted":
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    options = {"subscribe": name, "kafka.isolation.level": isolation}
    (through_brokers,) = pinned(node, **options, readFrom="brokers")
    (found,) = pinned(node, **options)
    values = [bytes(row["value"]).decode() for row in rows(found)]
    assert rows(found) == rows(through_brokers)
    outcomes = ["committed", "aborted"] if isolation == "read_uncommitted" else ["committed"]
    assert values == [f"{outcome} {part}" for outcome in outcomes for part in ("one", "two")] * 2
