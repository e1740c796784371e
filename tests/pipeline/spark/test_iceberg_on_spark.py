"""Iceberg's own jar for Spark 4.0 reads and changes exported tables."""

import contextlib
import pathlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from spark_support import iceberg_jars, missing_jars, missing_spark

import moldau.testing

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

import pyspark
from exporting import create_topic, produce_values, read_table, run_here
from pyspark.sql import SparkSession

from moldau.client.errors import ToolError
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.values.column_changes import parse_column_change
from moldau.pipeline.values.formats import json_format

RECORDS = 40

pytestmark = [
    pytest.mark.java,
    pytest.mark.every_spark,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not pyspark.__version__.startswith("4.0."), reason="Iceberg's jar is for Spark 4.0, and this is newer"
    ),
]


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        yield running


@contextlib.contextmanager
def catalog(spark: SparkSession, folder: pathlib.Path) -> Iterator[SparkSession]:
    """A session with the folder's catalog. The catalog's connections lock the database until the session is
    closed."""
    session = spark.newSession()
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{folder}/catalog.db",
        ".jdbc.schema-version": "V1",
        ".warehouse": f"file://{folder}",
        ".cache-enabled": "false",
    }.items():
        session.conf.set(f"spark.sql.catalog.moldau{key}", value)
    try:
        yield session
    finally:
        manager = session._jsparkSession.sessionState().catalogManager()
        manager.catalog("moldau").icebergCatalog().close()


def values(start: int, end: int) -> list[bytes | None]:
    return [b'{"id": %d, "place": {"city": "c%d"}}' % (number, number) for number in range(start, end)]


def test_spark_reads_and_changes_what_is_exported(
    spark: SparkSession, node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    if not iceberg_jars():
        missing_jars("Iceberg's jar for Spark")
    topic = create_topic(node, "orders", 1)
    job = ExportJob(node.bootstrap_servers, topic, str(tmp_path), "iceberg", values=json_format(None))
    produce_values(node, topic, values(0, RECORDS))
    export_once(job, run_here)
    table = "moldau.moldau.orders"
    totals = "SELECT count(*), sum(value.id), count(DISTINCT value.place.city), max(offset) FROM "
    with catalog(spark, tmp_path) as session:
        rows = session.sql(totals + table).collect()
        session.sql(f"ALTER TABLE {table} RENAME COLUMN value.id TO number")
        session.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(4, value.number)")
    assert [tuple(row) for row in rows] == [(RECORDS, sum(range(RECORDS)), RECORDS, RECORDS - 1)]
    produce_values(node, topic, values(RECORDS, 2 * RECORDS))
    assert export_once(job, run_here).records == RECORDS
    with catalog(spark, tmp_path) as session:
        rows = session.sql(f"SELECT value.number, value.place.city, offset FROM {table} ORDER BY 3").collect()
        found = session.sql(f"SELECT * FROM {table} WHERE value.number = 70").count()
        specs = session.sql(
            f"SELECT spec_id, sum(record_count) FROM {table}.partitions GROUP BY 1 ORDER BY 1"
        )
        counts = specs.collect()
    assert [tuple(row) for row in rows] == [(number, f"c{number}", number) for number in range(2 * RECORDS)]
    assert found == 1
    assert [tuple(row) for row in counts] == [(0, RECORDS), (1, RECORDS)]


def test_dead_letters_that_spark_has_deleted_are_not_replayed(
    spark: SparkSession, node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    if not iceberg_jars():
        missing_jars("Iceberg's jar for Spark")
    topic = create_topic(node, "deleted", 1)
    job = ExportJob(node.bootstrap_servers, topic, str(tmp_path), "iceberg", values=json_format(None))
    produce_values(node, topic, values(0, RECORDS))
    export_once(job, run_here)
    produce_values(node, topic, [b'{"id": "a"}', b'{"id": "b"}'])
    assert export_once(job, run_here).dead_letters == 2
    table = "moldau.moldau.deleted_dead_letters"
    with catalog(spark, tmp_path) as session:
        session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
        session.sql(f"DELETE FROM {table} WHERE offset = {RECORDS}")
    again = replace(job, replay=True, changes=[parse_column_change("id STRING")])
    with pytest.raises(ToolError, match="rewrite its data files first"):
        export_once(again, run_here)
    with catalog(spark, tmp_path) as session:
        session.sql(
            "CALL moldau.system.rewrite_data_files(table => 'moldau.moldau.deleted_dead_letters',"
            " options => map('delete-file-threshold', '1'))"
        )
    assert export_once(again, run_here).records == 1
    assert read_table(job)[-1]["value"]["id_string"] == "b"
