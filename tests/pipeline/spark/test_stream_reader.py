"""The planning and reading parts of streaming queries, with a node but without a JVM."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from confluent_kafka.admin import AdminClient
from exporting import create_topic, produce_values
from pyspark.sql.types import LongType, StructType

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.source.older_stream import MoldauOlderStreamReader
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.stream_offsets import StreamOffsets, StreamPlace
from moldau.pipeline.source.stream_plan import StreamPlanner
from moldau.pipeline.spark_versions import note_missing

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2 or newer")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

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
    """The end of the next batch. Waits until the leader of the topic's only partition returns the end of all
    records."""
    ends: list[dict[str, Any]] = []

    def look() -> bool:
        ends.append(reader.latestOffset(start, ReadAllAvailable()))
        return bool(ends[-1][topic]["0"] == count)

    eventually(look)
    return ends[-1]


def rows_of(
    reader: MoldauStreamReader | MoldauOlderStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[int]:
    """The offsets of a batch."""
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
    ]  # a topic that was created again with the same name is a new topic


def test_a_deleted_topic_ends_a_query_with_one_message(node: moldau.testing.Node) -> None:
    topic = create_topic(node, "needed", 1)
    produce_values(node, topic, [b"v"] * 3)
    reader = reader_of(node, subscribe=topic)
    end = latest(reader, reader.initialOffset(), topic, 3)
    delete(node, topic)
    told = r"^partitions that do not exist any more: needed-0 \(failOnDataLoss=false skips these records\)$"
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
        # The coordinator learns of the deletion a moment later. Until then reads succeed, because the objects
        # are kept for an hour.
        eventually(lambda: not list(reader.read(unit)))
        assert f"data was lost: topic {topic} was deleted" in caplog.text
        assert reader_of(node, subscribe=topic, **options).partitions(start, end) == []
    else:
        with pytest.raises(ToolError, match=rf"^topic {topic} was deleted \(failOnDataLoss=false"):
            eventually(lambda: not list(reader.read(unit)))
        with pytest.raises(ToolError, match=f"not exist any more: {topic}-0"):
            reader_of(node, subscribe=topic, **options).partitions(start, end)


def test_a_query_does_not_begin_with_a_topic_that_is_not_there(node: moldau.testing.Node) -> None:
    with pytest.raises(Exception, match="topic nowhere does not exist"):
        reader_of(node, subscribe="nowhere", failOnDataLoss="false").initialOffset()


def options_of(node: moldau.testing.Node, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": node.bootstrap_servers, "startingOffsets": "earliest", **options}


def ends_of(*offsets: int) -> StreamOffsets:
    """Offsets of a topic ``t``, one for each partition."""
    return StreamOffsets(
        {StreamPlace("t", number): offset for number, offset in enumerate(offsets)}, {"t": "id"}
    )


def test_a_batch_waits_for_enough_records_and_not_for_ever(node: moldau.testing.Node) -> None:
    now_s = 1000.0
    given = {"subscribe": "t", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1m"}
    planner = StreamPlanner(parse_options(options_of(node, **given)), lambda: now_s)
    begin = ends_of(0, 0)
    # the first batch is available immediately
    assert planner.end_of_batch(begin, ends_of(2, 1), None) == ends_of(2, 1)
    begin = ends_of(2, 1)
    assert planner.end_of_batch(begin, ends_of(8, 4), None) == begin
    assert planner.end_of_batch(begin, ends_of(8, 5), None) == ends_of(8, 5)
    begin = ends_of(8, 5)
    now_s += 59
    assert planner.end_of_batch(begin, ends_of(9, 5), None) == begin
    assert planner.end_of_batch(begin, ends_of(9, 5), None, may_wait=False) == ends_of(9, 5)
    now_s += 1
    assert planner.end_of_batch(begin, ends_of(9, 5), None) == ends_of(9, 5)


def test_a_query_of_available_records_does_not_wait_for_more_records(node: moldau.testing.Node) -> None:
    topic = create_topic(node, "little", 1)
    produce_values(node, topic, [b"v"] * 3)
    latest(reader_of(node, subscribe=topic), reader_of(node, subscribe=topic).initialOffset(), topic, 3)
    reader = reader_of(node, subscribe=topic, minOffsetsPerTrigger="1000", maxOffsetsPerTrigger="2000")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    reader.latestOffset(start, ReadMaxRows(1))
    assert reader.latestOffset(start, ReadMaxRows(2))[topic] == {"0": 2}


def test_before_spark_4_2_a_batch_is_limited_where_the_position_is_known(
    node: moldau.testing.Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Ranges are planned in the order in which Spark 4.0 calls the methods, for a new query and for a query
    that continues."""
    note_missing.cache_clear()
    topic = create_topic(node, "older", 1)
    produce_values(node, topic, [b"v"] * 5)
    latest(reader_of(node, subscribe=topic), reader_of(node, subscribe=topic).initialOffset(), topic, 5)
    options = parse_options(options_of(node, subscribe=topic, maxOffsetsPerTrigger="2"))
    reader = MoldauOlderStreamReader(SCHEMA, options)
    first = reader.latestOffset()
    start = reader.initialOffset()
    assert (start[topic], first[topic]) == ({"0": 0}, {"0": 5})
    assert "needs Spark 4.2, and this is " in caplog.text
    assert rows_of(reader, start, first) == [0, 1, 2, 3, 4]
    assert reader.latestOffset() == first
    restarted = MoldauOlderStreamReader(SCHEMA, options)
    seen = {**first, topic: {"0": 1}}
    assert restarted.partitions(seen, seen) == []
    second = restarted.latestOffset()
    assert rows_of(restarted, seen, second) == [1, 2]
    assert rows_of(restarted, second, restarted.latestOffset()) == [3, 4]


def test_before_spark_4_2_no_partition_begins_after_the_end_that_was_returned_first(
    node: moldau.testing.Node,
) -> None:
    topic = create_topic(node, "racing", 1)
    options = parse_options(options_of(node, subscribe=topic, startingOffsets="latest"))
    reader = MoldauOlderStreamReader(SCHEMA, options)
    first = reader.latestOffset()
    produce_values(node, topic, [b"v"] * 3)
    latest(reader_of(node, subscribe=topic), reader_of(node, subscribe=topic).initialOffset(), topic, 3)
    start = reader.initialOffset()
    assert start == first
    assert rows_of(reader, start, first) == []
    assert rows_of(reader, first, reader.latestOffset()) == [0, 1, 2]


def test_before_spark_4_2_a_deleted_topic_is_reported_when_the_first_batch_is_planned(
    node: moldau.testing.Node,
) -> None:
    kept, lost = create_topic(node, "kept-older", 1), create_topic(node, "lost-older", 1)
    options = parse_options(options_of(node, subscribe=f"{kept},{lost}"))
    seen = MoldauOlderStreamReader(SCHEMA, options).latestOffset()
    delete(node, lost)
    reader = MoldauOlderStreamReader(SCHEMA, options)
    end = reader.latestOffset()
    with pytest.raises(ToolError, match="not exist any more: lost-older-0"):
        reader.partitions(seen, end)


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
