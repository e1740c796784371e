"""The whole path of records: librdkafka produces them, and Spark exports and reads them."""

import gc
import json
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from spark_support import missing_spark

import moldau.testing
from moldau.pipeline.requirements import missing_packages

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from moldau.cli.main import main
from moldau.client.errors import ToolError
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.session import SparkPool, check_master
from moldau.pipeline.tasks import settle

RECORDS = 2_000

pytestmark = [
    pytest.mark.timeout(1500),
    # Spark's own code does not close some sockets. This project cannot fix that.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        admin.create_topics([NewTopic("orders", num_partitions=3)])["orders"].result(60)
        produce(running, 0, RECORDS)
        yield running


def produce(node: moldau.testing.Node, start: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "compression.type": "lz4"})
    for number in range(start, start + count):
        headers: list[tuple[str, Any]] = [("source", b"web"), ("empty", None)] if number % 2 else []
        value = json.dumps({"total": number}).encode()
        producer.produce("orders", key=f"k{number}", value=value, headers=headers, partition=number % 3)
    assert producer.flush(60) == 0


def reader(spark: SparkSession, node: moldau.testing.Node, **options: Any) -> Any:
    found = spark.read.format("moldau").option("kafka.bootstrap.servers", node.bootstrap_servers)
    return found.options(**options)


@pytest.mark.every_spark
def test_a_data_frame_has_each_record_once(spark: SparkSession, node: moldau.testing.Node) -> None:
    frame = reader(spark, node, subscribe="orders", includeHeaders="true", minPartitions="6").load()
    assert frame.rdd.getNumPartitions() >= 6
    frame.createOrReplaceTempView("orders")
    rows = spark.sql(
        "WITH decoded AS (SELECT *, CAST(get_json_object(CAST(value AS STRING), '$.total') AS LONG) AS total"
        " FROM orders WHERE topic = 'orders' AND timestampType = 0)"
        " SELECT count(*), count(DISTINCT partition, offset), count(headers), sum(total) FROM decoded"
        f" WHERE total < {RECORDS}"
    ).collect()
    assert [tuple(row) for row in rows] == [(RECORDS, RECORDS, RECORDS // 2, sum(range(RECORDS)))]
    (one,) = frame.where("partition = 1 AND offset = 0").collect()
    assert (bytes(one.key), bytes(one.value)) == (b"k1", b'{"total": 1}')
    assert [(header.key, header.value) for header in one.headers] == [("source", b"web"), ("empty", None)]


def test_a_data_frame_stays_as_it_was_loaded(spark: SparkSession, node: moldau.testing.Node) -> None:
    frame = reader(
        spark, node, subscribe="orders", endingOffsets='{"orders": {"0": 5, "1": -1, "2": 0}}'
    ).load()
    before = frame.count()
    produce(node, RECORDS, 3)
    assert frame.count() == before


def test_a_range_and_some_columns(spark: SparkSession, node: moldau.testing.Node) -> None:
    options = {
        "assign": '{"orders": [2]}',
        "startingOffsets": '{"orders": {"2": 10}}',
        "endingOffsets": '{"orders": {"2": 13}}',
    }
    found = reader(spark, node, **options).schema("offset LONG, topic STRING").load().collect()
    assert [tuple(row) for row in found] == [(10, "orders"), (11, "orders"), (12, "orders")]


@pytest.mark.every_spark
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "orders", "kafka.sasl.mechanism": "PLAIN"}, "'kafka.sasl.mechanism' is not supported"),
        ({"subscribe": "orders", "subscribePattern": "o.*"}, "one of the options 'subscribe', "),
        ({"subscribe": "absent"}, "topic absent does not exist"),
        ({"assign": '{"orders": [7]}'}, "no partition 7"),
        (
            {"assign": '{"orders": [1]}', "startingOffsets": '{"orders": {"1": 0, "2": 0}}'},
            "name orders-2, which is not read",
        ),
    ],
)
def test_impossible_requests_are_reported(
    spark: SparkSession, node: moldau.testing.Node, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(Exception, match=f"(?i){problem}") as failure:
        reader(spark, node, **options).load()
    assert "Traceback" not in str(failure.value)


@pytest.mark.every_spark
@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_each_record_is_in_the_table_once_after_two_exports(
    spark: SparkSession, node: moldau.testing.Node, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = ExportJob(node.bootstrap_servers, "orders", str(tmp_path), table_format, unit_records_max=300)
    run = SparkPool("local[2,2]").units("test")
    total = reader(spark, node, subscribe="orders").load().count()
    assert export_once(job, run).records == total
    assert export_once(job, run).files == []
    produce(node, 10_000, 30)
    assert export_once(job, run).records == 30
    files = tmp_path if table_format == "parquet" else tmp_path / "moldau" / "orders" / "data"
    row = spark.sql(
        f"SELECT count(*), count(DISTINCT partition, offset), count(DISTINCT key) FROM parquet.`{files}`"
    ).first()
    assert row is not None
    assert tuple(row)[:2] == (total + 30, total + 30)


@pytest.mark.every_spark
def test_a_failed_task_is_one_sentence(spark: SparkSession) -> None:
    # This function is defined inside the test, because workers cannot import this file.
    def fail(unit: OffsetRange) -> None:
        raise ToolError(f"offset {unit.start} is gone")

    with pytest.raises(ToolError) as failure:
        SparkPool("local[2,2]").units("test")(fail, [OffsetRange(0, 5, 6)])
    assert str(failure.value) == "a task failed: offset 5 is gone"


def test_workers_do_not_collect_garbage_in_their_modules_after_each_task(spark: SparkSession) -> None:
    def frozen(_: int) -> int:
        return gc.get_freeze_count()

    ours = frozen(0)
    counts = SparkPool("local[2,2]").units("test")(frozen, [1, 2])
    assert min(counts) > 10_000
    settle()
    assert frozen(0) == ours  # only tasks freeze objects, and this process is not a task


def test_planners_do_not_collect_garbage_in_their_modules_after_each_plan(spark: SparkSession) -> None:
    class Planned(DataSource):
        """A data source with one column. The name of the column shows whether the planning process has frozen
        objects."""

        @classmethod
        def name(cls) -> str:
            return "planned"

        def schema(self) -> str:
            settle()
            return f"c{gc.get_freeze_count()} INT"

    spark.dataSource.register(Planned)
    (column,) = spark.read.format("planned").load().columns
    assert int(column[1:]) > 10_000


def test_a_master_that_does_not_listen_is_one_line() -> None:
    with socket.socket() as bound:  # the socket is bound, so that no other process listens on its port
        bound.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ToolError, match=f"^Spark's master {master} cannot be reached: .*refused"):
            check_master(master)


@pytest.mark.parametrize(
    ("master", "problem"),
    [
        (
            "sparks://h:7077",
            "Spark has no master 'sparks://h:7077': it is one of local, spark://, k8s://, yarn",
        ),
        ("yarn", "Spark's master yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR in the environment"),
    ],
)
def test_a_master_that_cannot_be_is_one_line(
    master: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the function ``check_master``, Spark's launcher would print a Java stack trace."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ToolError) as failure:
        check_master(master)
    assert str(failure.value) == problem
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    check_master("yarn")
    check_master("local[2]")


def test_missing_java_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["pipeline", "export", "--topic", "t", "--to", "x", "--once"]) == 1
    error = capsys.readouterr().err
    assert error == "moldau: JAVA_HOME is /nowhere, where there is no bin/java: install Java 17 or newer\n"


def test_missing_packages_are_one_line() -> None:
    assert missing_packages(["numpy", "no_such_package"]) == (
        "the pipeline needs no_such_package: pip install 'moldau[spark]'"
    )
