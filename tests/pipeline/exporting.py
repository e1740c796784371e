"""Helpers for tests of exports: topics to export, drivers that crash, and a reader of tables."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.pipeline.export.catalogs import open_catalog
from moldau.pipeline.export.iceberg import dead_letters_name, table_name
from moldau.pipeline.export.job import ExportJob
from moldau.pipeline.unit_runs import RunUnits

FORMATS = ["parquet", "iceberg"]


class Killed(BaseException):
    """A test raises this exception to simulate a kill of the driver. The driver runs no error handlers."""


def run_here(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
    return [function(unit) for unit in units]


def dying_after(count: int) -> RunUnits:
    def run(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        done = run_here(function, units[:count])
        if count <= len(units):
            raise Killed
        return done

    return run


def create_topic(node: moldau.testing.Node, name: str, partitions: int = 2) -> str:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(60)
    return name


def produce_values(
    node: moldau.testing.Node, topic: str, values: Sequence[bytes | None], partition: int = 0
) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for value in values:
        producer.produce(topic, key=b"k", value=value, partition=partition)
    assert producer.flush(60) == 0


def read_table(job: ExportJob) -> list[dict[str, Any]]:
    """The rows of the table. The key is partition and offset."""
    if job.table_format == "iceberg":
        found = open_catalog(job.folder).load_table(table_name(job.topic)).scan().to_arrow()
        return _sorted([found])
    return _sorted(
        [pq.ParquetFile(file).read() for file in sorted(pathlib.Path(job.folder).glob("*.parquet"))]
    )


def read_dead_letters(job: ExportJob) -> list[dict[str, Any]]:
    if job.table_format == "iceberg":
        catalog = open_catalog(job.folder)
        if not catalog.table_exists(dead_letters_name(job.topic)):
            return []
        return _sorted([catalog.load_table(dead_letters_name(job.topic)).scan().to_arrow()])
    files = sorted(pathlib.Path(job.folder).glob("_dead_letters/*/*.parquet"))
    return _sorted([pq.ParquetFile(file).read() for file in files])


def _sorted(tables: list[pa.Table]) -> list[dict[str, Any]]:
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))
