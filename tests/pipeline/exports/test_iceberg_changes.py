"""Another tool changes a table between two rounds of its export. No Spark is needed."""

import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

import pyarrow as pa
from confluent_kafka import Producer
from exporting import create_topic, produce_values, read_dead_letters, run_here
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, StringType

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.export.catalogs import open_catalog
from moldau.pipeline.export.iceberg import dead_letters_name, table_name
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.export.layout import layout_of
from moldau.pipeline.values.formats import json_format

DAY_MS = 86_400_000
SCHEMA = "id INT, price FLOAT, tags ARRAY<STRING>, place STRUCT<city: STRING, zip: INT>"


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        yield running


@pytest.fixture
def job(node: moldau.testing.Node, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> ExportJob:
    topic = create_topic(node, f"t{abs(hash(request.node.name))}")
    return ExportJob(node.bootstrap_servers, topic, str(tmp_path), "iceberg", values=json_format(SCHEMA))


def produce(job: ExportJob, start: int, end: int) -> None:
    """Produce records. The day of record ``n`` is ``n`` % 3."""
    producer = Producer({"bootstrap.servers": job.bootstrap})
    for number in range(start, end):
        value = (
            f'{{"id": {number}, "price": {number}.5, "tags": ["a{number}", null],'
            f' "place": {{"city": "c{number}", "zip": {number}}}}}'
        )
        producer.produce(
            job.topic,
            key=b"k%d" % number,
            value=value,
            partition=number % 2,
            timestamp=(1 + number % 3) * DAY_MS,
            headers=[("h", b"%d" % number)],
        )
    assert producer.flush(60) == 0


def table_of(job: ExportJob) -> Table:
    return open_catalog(job.folder).load_table(table_name(job.topic))


def rows(job: ExportJob) -> list[dict[str, Any]]:
    found = table_of(job).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def rename(schema: Any) -> None:
    schema.rename_column("value.id", "number")
    schema.rename_column("value.place.city", "town")
    schema.rename_column("key", "customer")


def drop(schema: Any) -> None:
    schema.delete_column("value.place.zip")
    schema.delete_column("value.price")
    schema.delete_column("headers")


def widen(schema: Any) -> None:
    schema.update_column("value.id", LongType())
    schema.update_column("value.price", DoubleType())
    schema.update_column("value.place.zip", LongType())


def add_and_move(schema: Any) -> None:
    schema.add_column(("value", "note"), StringType())
    schema.add_column("loaded_by", StringType())
    schema.move_first("value")
    schema.move_first("value.place")


@pytest.mark.parametrize("change", [rename, drop, widen, add_and_move])
def test_columns_are_followed_by_their_ids(job: ExportJob, change: Callable[[Any], None]) -> None:
    produce(job, 0, 4)
    export_once(job, run_here)
    with table_of(job).update_schema() as schema:
        change(schema)
    produce(job, 4, 10)
    assert export_once(job, run_here).records == 6
    found = rows(job)
    assert len(found) == 10
    for row in found:
        number = 2 * row["offset"] + row["partition"]
        names = {"id": "number", "city": "town", "key": "customer"} if change is rename else {}
        value = row["value"]
        assert row[names.get("key", "key")] == b"k%d" % number
        assert value[names.get("id", "id")] == number
        assert value["place"][names.get("city", "city")] == f"c{number}"
        assert value["tags"] == [f"a{number}", None]
        if change is drop:
            assert "headers" not in row
            assert set(value) == {"id", "tags", "place"}
            assert set(value["place"]) == {"city"}
        else:
            assert value["price"] == number + 0.5
            assert value["place"]["zip"] == number
            assert row["headers"] == [{"key": "h", "value": b"%d" % number}]


def test_columns_are_added_to_a_table_that_was_renamed(node: moldau.testing.Node, job: ExportJob) -> None:
    inferring = ExportJob(job.bootstrap, job.topic, job.folder, "iceberg", values=json_format(None))
    produce_values(node, job.topic, [b'{"a": 1, "s": {"x": 1}}'])
    export_once(inferring, run_here)
    with table_of(job).update_schema() as schema:
        schema.rename_column("value.a", "b")
        schema.rename_column("value.s", "t")
    produce_values(node, job.topic, [b'{"a": 2, "c": 3, "s": {"x": 2, "y": 4}}'])
    export_once(inferring, run_here)
    assert [row["value"] for row in rows(job)] == [
        {"b": 1, "t": {"x": 1, "y": None}, "c": None},
        {"b": 2, "t": {"x": 2, "y": 4}, "c": 3},
    ]


def test_nulls_stay_nulls_in_a_table_that_was_renamed(node: moldau.testing.Node, job: ExportJob) -> None:
    export_once(job, run_here)
    with table_of(job).update_schema() as schema:
        rename(schema)
    produce_values(node, job.topic, [None, b'{"id": 1}', b'{"place": null, "tags": []}', b'{"place": {}}'])
    export_once(job, run_here)
    nothing = {"number": None, "price": None, "tags": None, "place": None}
    assert [row["value"] for row in rows(job)] == [
        None,
        {**nothing, "number": 1},
        {**nothing, "tags": []},
        {**nothing, "place": {"town": None, "zip": None}},
    ]


@pytest.mark.parametrize(
    ("source", "transform", "files"),
    [
        ("timestamp", DayTransform(), 6),
        ("partition", IdentityTransform(), 2),
        ("value.id", BucketTransform(2), 4),
        ("value.place.city", TruncateTransform(1), 2),
    ],
)
def test_the_partition_spec_of_now_is_followed(
    job: ExportJob, source: str, transform: Any, files: int
) -> None:
    produce(job, 0, 12)
    export_once(job, run_here)
    with table_of(job).update_spec() as spec:
        spec.add_field(source, transform, "made")
    produce(job, 12, 36)
    assert export_once(job, run_here).records == 24
    found = rows(job)
    assert [row["value"]["id"] for row in found] == [2 * row["offset"] + row["partition"] for row in found]
    assert len(found) == 36
    table = table_of(job)
    specs = Counter(task.file.spec_id for task in table.scan().plan_files())
    assert specs == {0: 2, 1: files}
    for task in table.scan().plan_files():
        if task.file.spec_id == 1:
            (value,) = task.file.partition
            assert value is not None
    # Iceberg evaluates a filter by the partition values of the files.
    assert table.scan("value.id = 13").to_arrow().num_rows == 1
    day = table.scan("timestamp >= '1970-01-03T00:00:00+00:00' AND timestamp < '1970-01-04T00:00:00+00:00'")
    assert day.to_arrow().num_rows == 12


def test_a_column_that_the_export_does_not_write_cannot_partition(job: ExportJob) -> None:
    produce(job, 0, 2)
    export_once(job, run_here)
    with table_of(job).update_schema() as schema:
        schema.add_column("region", StringType())
    with table_of(job).update_spec() as spec:
        spec.add_field("region", IdentityTransform(), "region")
    produce(job, 2, 4)
    with pytest.raises(
        ToolError, match="is partitioned by region of column region, which the export does not"
    ):
        export_once(job, run_here)
    with table_of(job).update_spec() as spec:
        spec.remove_field("region")
    assert export_once(job, run_here).records == 2


def test_a_change_that_cannot_be_followed_is_one_line(node: moldau.testing.Node, job: ExportJob) -> None:
    """Another tool has added a column with the name of a new member but with another type. Later this tool
    renames a column of the table of dead letters. Each of these two changes stops the export with an error of
    one line."""
    inferring = ExportJob(job.bootstrap, job.topic, job.folder, "iceberg", values=json_format(None))
    produce_values(node, job.topic, [b'{"a": 1}', b"oops"])
    export_once(inferring, run_here)
    with table_of(job).update_schema() as schema:
        schema.add_column(("value", "note"), LongType())
    produce_values(node, job.topic, [b'{"a": 2, "note": "text"}'])
    told = r"^table moldau\.t\d+ has columns or partitions that the export cannot follow; another tool has"
    with pytest.raises(ToolError, match=told):
        export_once(inferring, run_here)
    with table_of(job).update_schema() as schema:
        schema.delete_column("value.note")
    assert export_once(inferring, run_here).records == 1
    assert [row["value"] for row in rows(job)] == [{"a": 1, "note": None}, {"a": 2, "note": "text"}]
    dead = open_catalog(job.folder).load_table(dead_letters_name(job.topic))
    with dead.update_schema() as schema:
        schema.rename_column("reason", "why")
    produce_values(node, job.topic, [b"oops"])
    told = told.replace("d+", "d+_dead_letters")
    with pytest.raises(ToolError, match=told):
        export_once(inferring, run_here)
    with dead.update_schema() as schema:
        schema.rename_column("why", "reason")
    export_once(inferring, run_here)
    assert [row["offset"] for row in read_dead_letters(job)] == [1, 3]


def test_a_new_member_with_the_name_of_a_renamed_column(node: moldau.testing.Node, job: ExportJob) -> None:
    """Producers have a new member, and another tool has renamed a column to the same name. The export cannot
    know that both are the same column."""
    inferring = ExportJob(job.bootstrap, job.topic, job.folder, "iceberg", values=json_format(None))
    produce_values(node, job.topic, [b'{"lines": [{"qty": 1}]}'])
    export_once(inferring, run_here)
    with table_of(job).update_schema() as schema:
        schema.rename_column("value.lines.qty", "quantity")
    produce_values(node, job.topic, [b'{"lines": [{"quantity": 2}]}'])
    told = r"records have value\.lines\.element\.quantity now, .* that was value\.lines\.element\.qty: rename"
    with pytest.raises(ToolError, match=told):
        export_once(inferring, run_here)
    with table_of(job).update_schema() as schema:
        schema.rename_column("value.lines.quantity", "qty")
    assert export_once(inferring, run_here).records == 1
    assert [row["value"]["lines"] for row in rows(job)] == [
        [{"qty": 1, "quantity": None}],
        [{"qty": None, "quantity": 2}],
    ]


def test_a_table_that_was_set_back_is_refused_until_it_is_set_forward(job: ExportJob) -> None:
    """The table was set back to an older snapshot, but its properties name a later round of the export."""
    snapshots = []
    for first in (0, 2):
        produce(job, first, first + 2)
        export_once(job, run_here)
        table = table_of(job)
        table.overwrite(table.scan().to_arrow())  # a compaction by another tool creates a snapshot
        snapshots.append(table.current_snapshot().snapshot_id)
    table_of(job).manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    produce(job, 4, 6)
    told = r"was set back to round 1 of its export, and records of rounds up to 2 are missing: set it to a"
    for replay in (False, True):
        with pytest.raises(ToolError, match=told):
            export_once(replace(job, replay=replay), run_here)
    table_of(job).manage_snapshots().set_current_snapshot(snapshots[1]).commit()
    assert export_once(job, run_here).records == 2
    assert [row["value"]["id"] for row in rows(job)] == [0, 2, 4, 1, 3, 5]


def test_a_table_whose_old_snapshots_expired_is_extended(job: ExportJob) -> None:
    for first in (0, 2, 4):
        produce(job, first, first + 2)
        assert export_once(job, run_here).records == 2
        table = table_of(job)
        table.overwrite(table.scan().to_arrow())
        kept = table.current_snapshot().snapshot_id
        old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != kept]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(rows(job)) == 6


def test_a_new_table_does_not_get_the_dead_letters_of_a_dropped_table(
    node: moldau.testing.Node, job: ExportJob
) -> None:
    """A new table counts its rounds from 1. If the table of dead letters of a dropped table still exists, it
    names rounds that the new table does not have yet."""
    inferring = ExportJob(job.bootstrap, job.topic, job.folder, "iceberg", values=json_format(None))
    produce_values(node, job.topic, [b'{"a": 1}', b"oops"])
    export_once(inferring, run_here)
    catalog = open_catalog(job.folder)
    catalog.drop_table(table_name(job.topic))
    produce_values(node, job.topic, [b"oops again"])
    told = (
        r"table moldau\.t\d+_dead_letters has dead letters of a table moldau\.t\d+ that is gone: drop it, too"
    )
    with pytest.raises(ToolError, match=told):
        export_once(inferring, run_here)
    catalog.drop_table(dead_letters_name(job.topic))
    assert export_once(inferring, run_here).dead_letters == 2
    assert [row["offset"] for row in read_dead_letters(job)] == [1, 2]


def test_records_for_an_unchanged_table_are_not_rearranged(job: ExportJob) -> None:
    produce(job, 0, 4)
    export_once(job, run_here)
    layout = layout_of(table_of(job).metadata, job.values.schema, "t")
    nothing: dict[str, list[Any]] = {name: [] for name in job.values.schema.names}
    records = pa.RecordBatch.from_pydict(nothing, schema=job.values.schema)
    arranged = layout.arranged(records)
    assert [mine.type == theirs.type for mine, theirs in zip(arranged, records, strict=True)] == [True] * 7
