"""``format("moldau")`` and Spark's own Kafka connector on the topics of one node."""

import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from spark_support import connector_jars, missing_jars, missing_spark, spark_jar

import moldau.testing

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once
from moldau.pipeline.session import SparkPool
from moldau.pipeline.spark_versions import HAS_FILTERS, HAS_READ_LIMITS

RECORDS = 900
TIER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.metadata.topic.replication.factor": "1",
    "diskless.consolidation.enable": "false",
    "diskless.consolidation.segment.bytes": "2000",
    "diskless.consolidation.max.age.ms": "0",
}

pytestmark = [
    pytest.mark.timeout(1500),
    # Spark's own code does not close some sockets. This project cannot fix that.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node(diskless=True, properties=TIER) as running:
        create(running, "diskless", 3)
        create(running, "classic", 3, {"diskless.enable": "false"})
        for topic in ("diskless", "classic"):
            produce(running, topic, 0, RECORDS)
        yield running


def create(
    node: moldau.testing.Node, name: str, partitions: int, config: dict[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_topics(
        [NewTopic(name, num_partitions=partitions, config={"retention.ms": "-1", **(config or {})})]
    )[name].result(60)


def produce(node: moldau.testing.Node, topic: str, start: int, end: int, partitions: int = 3) -> None:
    """Produce records. Record ``n`` has ``n`` as its key, value and timestamp. It has a header if ``n`` is
    odd."""
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "compression.type": "zstd"})
    for number in range(start, end):
        headers: list[tuple[str, Any]] = [("odd", b"yes")] if number % 2 else []
        producer.produce(
            topic,
            b"%d" % number,
            b"%d" % number,
            partition=number % partitions,
            timestamp=1_000_000 + number,
            headers=headers,
        )
    assert producer.flush(60) == 0


@pytest.fixture(params=["python", "jvm"])
def decode_in(request: pytest.FixtureRequest) -> str:
    """Where records are decoded: in Python, or in the JVM, which needs a jar."""
    if request.param == "jvm" and spark_jar() is None:
        missing_jars("moldau-spark.jar")
    return str(request.param)


def reader(
    spark: SparkSession, node: moldau.testing.Node, source: str = "moldau", **options: Any
) -> DataFrame:
    given = spark.read.format(source).option("kafka.bootstrap.servers", node.bootstrap_servers)
    return given.options(**options).load()


@pytest.mark.every_spark
def test_filters_are_pushed_and_change_nothing(
    spark: SparkSession, node: moldau.testing.Node, decode_in: str
) -> None:
    frame = reader(spark, node, subscribe="diskless", includeHeaders="true", decodeIn=decode_in)
    condition = (
        "partition IN (0, 2) AND offset >= 10 AND offset < 250"
        " AND timestamp >= timestamp_millis(1000300) AND timestamp < timestamp_millis(1000600)"
    )
    found = {(row.partition, row.offset): row for row in frame.where(condition).collect()}
    expected = {(n % 3, n // 3) for n in range(300, 600) if n % 3 != 1}
    assert set(found) == expected
    row = found[0, 101]
    assert (bytes(row.key), bytes(row.value), row.topic, row.timestampType) == (b"303", b"303", "diskless", 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("odd", b"yes")]
    assert frame.where("partition = 1 AND offset = 7").count() == 1


@pytest.mark.every_spark
def test_each_query_of_a_dataframe_has_its_own_filters(
    spark: SparkSession, node: moldau.testing.Node, decode_in: str
) -> None:
    frame = reader(spark, node, subscribe="diskless", decodeIn=decode_in)
    assert frame.count() == RECORDS
    assert frame.where("offset < 10").count() == 30
    assert frame.count() == RECORDS
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert {row.partition: row["count"] for row in both.groupBy("partition").count().collect()} == {
        0: 300,
        1: 300,
    }
    again = frame.where("partition = 2").join(frame.select("key"), "key")
    assert again.count() == 300


@pytest.mark.every_spark
def test_all_actions_see_the_records_of_the_load(
    spark: SparkSession, node: moldau.testing.Node, decode_in: str
) -> None:
    topic = f"growing-{decode_in}"
    create(node, topic, 2)
    produce(node, topic, 0, 60, 2)
    frame = reader(spark, node, subscribe=topic, decodeIn=decode_in)
    assert frame.count() == 60
    produce(node, topic, 60, 90, 2)
    assert frame.count() == 60
    assert frame.select("value").union(frame.select("key")).count() == 120
    assert reader(spark, node, subscribe=topic, decodeIn=decode_in).count() == 90


@pytest.mark.every_spark
def test_fields_of_headers_are_read(spark: SparkSession, node: moldau.testing.Node, decode_in: str) -> None:
    frame = reader(spark, node, subscribe="diskless", includeHeaders="true", decodeIn=decode_in)
    names = [row[0] for row in frame.where("headers IS NOT NULL").select("headers.key").collect()]
    assert names == [["odd"]] * (RECORDS // 2)
    assert frame.where("headers[0].key = 'odd'").count() == RECORDS // 2
    values = frame.where("partition = 1").selectExpr("CAST(headers[0].value AS STRING) AS value").collect()
    assert {row.value for row in values} == {None, "yes"}


@pytest.mark.every_spark
@pytest.mark.parametrize("decode_in", ["jvm"], indirect=True)
def test_a_plan_shows_columns_and_filters(
    spark: SparkSession, node: moldau.testing.Node, decode_in: str
) -> None:
    frame = reader(spark, node, subscribe="diskless", decodeIn=decode_in)
    query: Any = frame.where("offset >= 10 AND partition = 1").select("value")
    plan = query._jdf.queryExecution().executedPlan().toString()
    if HAS_FILTERS:
        assert "GreaterThanOrEqual(offset,10)" in plan
        assert "ReadSchema: struct<value:binary>" in plan
    else:
        assert "ReadSchema: struct<value:binary,partition:int,offset:bigint>" in plan


def run_once(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query until it has no more work."""
    for left in reversed(range(10)):
        query = start()
        try:
            query.awaitTermination(400)
        except StreamingQueryException as error:
            # Spark waits ten seconds for the start of the process that plans a query, and this time cannot be
            # configured. If the process did not start in time, the query had no effect, so the test can run
            # it again.
            if left == 0 or "failed to connect back" not in str(error):
                raise
        else:
            break
    assert not query.isActive
    return query


@pytest.mark.every_spark
def test_a_stream_continues_where_its_checkpoint_says(
    spark: SparkSession, node: moldau.testing.Node, tmp_path: pathlib.Path, decode_in: str
) -> None:
    topic = f"stream-{decode_in}"
    create(node, topic, 2)
    produce(node, topic, 0, 100, 2)

    def run() -> StreamingQuery:
        stream = spark.readStream.format("moldau").option("kafka.bootstrap.servers", node.bootstrap_servers)
        frame = stream.options(
            subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="60", decodeIn=decode_in
        ).load()
        writer = frame.selectExpr("partition", "offset", "CAST(value AS STRING) AS value").writeStream
        writer = writer.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return run_once(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "table")))

    first = run()
    counts = [progress["numInputRows"] for progress in first.recentProgress if progress["numInputRows"]]
    assert counts == ([60, 40] if HAS_READ_LIMITS else [100])
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    produce(node, topic, 100, 150, 3)
    run()
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row.value) for row in rows) == list(range(150))
    assert {row.partition for row in rows} == {0, 1, 2}


@pytest.mark.every_spark
def test_a_stream_that_continues_keeps_to_its_limit(
    spark: SparkSession, node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    create(node, "limited", 2)
    stream = spark.readStream.format("moldau").option("kafka.bootstrap.servers", node.bootstrap_servers)
    frame = stream.options(subscribe="limited", startingOffsets="earliest", maxOffsetsPerTrigger="20").load()
    writer = frame.select("value").writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    produce(node, "limited", 0, 10, 2)
    run_once(lambda: writer.trigger(availableNow=True).start())
    produce(node, "limited", 10, 60, 2)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        counts = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()
    assert counts == [20, 20, 10]


@pytest.mark.every_spark
def test_a_stream_writes_each_batch_once(
    spark: SparkSession, node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    create(node, "sunk", 2)

    def run() -> None:
        stream = spark.readStream.format("moldau").option("kafka.bootstrap.servers", node.bootstrap_servers)
        frame = stream.options(subscribe="diskless", startingOffsets="earliest", includeHeaders="true").load()
        sink = frame.select("key", "value", "headers").writeStream.format("moldau").trigger(availableNow=True)
        options = {"topic": "sunk", "kafka.bootstrap.servers": node.bootstrap_servers}
        run_once(sink.options(checkpointLocation=str(tmp_path / "checkpoint"), **options).start)

    run()
    # For Spark it looks as if the driver was killed before it recorded the end of the batch. So Spark runs
    # the batch again.
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    run()
    rows = reader(spark, node, subscribe="sunk", includeHeaders="true").collect()
    assert sorted(int(row.key) for row in rows) == list(range(RECORDS))
    assert {int(row.value) % 2 for row in rows if row.headers} == {1}
    assert {row.partition for row in rows} == {0, 1}


@pytest.mark.every_spark
@pytest.mark.parametrize("topic", ["batch-diskless", "batch-classic"])
def test_a_batch_job_writes_rows(spark: SparkSession, node: moldau.testing.Node, topic: str) -> None:
    create(node, topic, 2, {"diskless.enable": str(topic == "batch-diskless").lower()})
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 2 AS INT) AS partition")
    writer = rows.write.format("moldau").mode("append")
    writer.options(**{"kafka.bootstrap.servers": node.bootstrap_servers, "topic": topic}).save()
    found = reader(spark, node, subscribe=topic).collect()
    assert sorted((int(row.value), row.partition) for row in found) == [(n, n % 2) for n in range(100)]


@pytest.mark.every_spark
def test_records_that_spark_has_consolidated_are_read_as_before(
    spark: SparkSession, node: moldau.testing.Node, decode_in: str
) -> None:
    topic = f"consolidated-{decode_in}"
    create(node, topic, 3)
    for start in range(0, RECORDS, 100):
        produce(node, topic, start, start + 100)
    job = ConsolidateJob(node.bootstrap_servers, (topic,), unit_bytes=4_000)
    report = consolidate_once(job, SparkPool("local[2,2]").units("consolidate"))
    assert report["segments"] > 3
    assert report["units"] > 1
    assert report["failures"] == []
    produce(node, topic, RECORDS, RECORDS + 90)
    rows = reader(spark, node, subscribe=topic, decodeIn=decode_in).collect()
    assert sorted(int(row.value) for row in rows) == list(range(RECORDS + 90))
    assert len({(row.partition, row.offset) for row in rows}) == RECORDS + 90


def connector() -> None:
    """Skip the test if the jars of the connector were not fetched. With ``CI=true``, the test
    fails instead."""
    if not connector_jars():
        message = "Spark's Kafka connector is missing: python tools/fetch_clients.py"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


@pytest.mark.java
@pytest.mark.parametrize("topic", ["diskless", "classic"])
def test_the_kafka_connector_reads_the_same(
    spark: SparkSession, node: moldau.testing.Node, topic: str, decode_in: str
) -> None:
    connector()
    options = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    theirs = reader(spark, node, "kafka", **options)
    ours = reader(spark, node, **options, decodeIn=decode_in)
    assert theirs.schema.simpleString() == ours.select(theirs.columns).schema.simpleString()
    rows = {tuple(map(str, row)) for row in theirs.collect()}
    assert rows == {tuple(map(str, row)) for row in ours.select(theirs.columns).collect()}
    assert len(rows) == RECORDS


@pytest.mark.java
@pytest.mark.parametrize("kind", ["diskless", "classic"])
def test_the_kafka_connector_writes_and_streams(
    spark: SparkSession, node: moldau.testing.Node, tmp_path: pathlib.Path, kind: str
) -> None:
    connector()
    for name in ("written", "streamed"):
        create(node, f"{name}-{kind}", 2, {"diskless.enable": str(kind == "diskless").lower()})
    rows = spark.range(200).selectExpr(
        "CAST(id AS STRING) AS key", "CAST(id * 2 AS STRING) AS value", "CAST(id % 2 AS INT) AS partition"
    )
    target = rows.write.format("kafka").option("kafka.bootstrap.servers", node.bootstrap_servers)
    target.option("topic", f"written-{kind}").save()
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", node.bootstrap_servers)
    source = stream.options(subscribe=f"written-{kind}", startingOffsets="earliest").load()
    sink = source.writeStream.format("kafka").option("kafka.bootstrap.servers", node.bootstrap_servers)
    run_once(
        sink.options(topic=f"streamed-{kind}", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start
    )
    found = reader(spark, node, subscribe=f"streamed-{kind}").collect()
    assert {(bytes(row.key), bytes(row.value)) for row in found} == {
        (b"%d" % n, b"%d" % (2 * n)) for n in range(200)
    }
    assert len(found) == 200
