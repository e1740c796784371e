"""The planning and reading half of streaming queries, on a node and without a JVM."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from confluent_kafka.admin import AdminClient
from exporting import create_topic, produce_values
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.stream import MoldauStreamReader

TIMEOUT_S = 120.0
SCHEMA = StructType().add("offset", LongType())


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node(diskless=True) as running:
        yield running


def reader_of(node: moldau.testing.Node, **options: str) -> MoldauStreamReader:
    given = {"kafka.bootstrap.servers": node.bootstrap_servers, "startingOffsets": "earliest", **options}
    return MoldauStreamReader(SCHEMA, parse_options(given))


def delete(node: moldau.testing.Node, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    eventually(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics)


def eventually(probe: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def latest(reader: MoldauStreamReader, start: dict[str, Any], topic: str, count: int) -> dict[str, Any]:
    """The next end, when the leader of the topic's only partition has heard of all records."""
    ends: list[dict[str, Any]] = []

    def look() -> bool:
        ends.append(reader.latestOffset(start, ReadAllAvailable()))
        return bool(ends[-1][topic]["0"] == count)

    eventually(look)
    return ends[-1]


def rows_of(reader: MoldauStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Offsets of a batch."""
    return sorted(
        offset
        for partition in reader.partitions(start, end)
        for found in reader.read(partition)
        for offset in found.column("offset").to_pylist()
    )


def test_a_query_outlives_a_topic_that_may_be_lost(
    node: moldau.testing.Node, caplog: pytest.LogCaptureFixture
) -> None:
    kept, lost = create_topic(node, "kept", 1), create_topic(node, "lost", 2)
    for topic in (kept, lost):
        produce_values(node, topic, [b"v"] * 3)
    reader = reader_of(node, subscribe=f"{kept},{lost}", failOnDataLoss="false")
    start = reader.initialOffset()
    latest(reader, start, kept, 3)
    first = latest(reader, start, lost, 3)
    assert rows_of(reader, start, first) == [0, 0, 1, 1, 2, 2]
    delete(node, lost)
    produce_values(node, kept, [b"v"] * 2)
    second = latest(reader, first, kept, 5)
    assert rows_of(reader, first, second) == [3, 4]
    assert "data was lost: partitions that do not exist any more: lost-0, lost-1" in caplog.text
    caplog.clear()
    assert reader.latestOffset(second, ReadAllAvailable()) == second
    assert caplog.text == ""
    create_topic(node, "lost", 1)
    produce_values(node, "lost", [b"v"])
    assert rows_of(reader, second, latest(reader, second, "lost", 1)) == [
        0
    ]  # what has its name is a topic like any new one


def test_a_deleted_topic_ends_a_query_with_one_message(node: moldau.testing.Node) -> None:
    topic = create_topic(node, "needed", 1)
    produce_values(node, topic, [b"v"] * 3)
    reader = reader_of(node, subscribe=topic)
    end = latest(reader, reader.initialOffset(), topic, 3)
    delete(node, topic)
    told = r"^partitions that do not exist any more: needed-0 \(option failOnDataLoss=false goes on\)$"
    with pytest.raises(ToolError, match=told):
        reader.latestOffset(end, ReadAllAvailable())


@pytest.mark.parametrize("read_from", ["objects", "brokers"])
@pytest.mark.parametrize("may_lose", [True, False])
def test_a_topic_may_be_deleted_while_a_batch_is_read(
    node: moldau.testing.Node, read_from: str, may_lose: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = create_topic(node, f"{read_from}-{may_lose}", 1)
    produce_values(node, topic, [b"v"] * 3)
    options = {"failOnDataLoss": str(not may_lose).lower(), "readFrom": read_from}
    reader = reader_of(node, subscribe=topic, **options)
    start = reader.initialOffset()
    end = latest(reader, start, topic, 3)
    (unit,) = reader.partitions(start, end)
    delete(node, topic)
    if may_lose:
        # The coordinator hears of it a moment later, and the objects are there for an hour.
        eventually(lambda: not list(reader.read(unit)))
        assert f"data was lost: topic {topic} was deleted" in caplog.text
        assert reader_of(node, subscribe=topic, **options).partitions(start, end) == []
    else:
        with pytest.raises(ToolError, match=rf"^topic {topic} was deleted \(option failOnDataLoss=false"):
            eventually(lambda: not list(reader.read(unit)))
        with pytest.raises(ToolError, match=f"not exist any more: {topic}-0"):
            reader_of(node, subscribe=topic, **options).partitions(start, end)


def test_a_query_does_not_begin_with_a_topic_that_is_not_there(node: moldau.testing.Node) -> None:
    with pytest.raises(Exception, match="topic nowhere does not exist"):
        reader_of(node, subscribe="nowhere", failOnDataLoss="false").initialOffset()


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
