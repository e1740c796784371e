"""Decoded tables. A record that cannot be decoded is stored once in another table, with the reason. A replay
moves it to the table once."""

import contextlib
import io
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

import fastavro
from exporting import (
    FORMATS,
    Killed,
    create_topic,
    dying_after,
    produce_values,
    read_dead_letters,
    read_table,
    run_here,
)

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.export import iceberg as iceberg_export
from moldau.pipeline.export import units
from moldau.pipeline.export.catalogs import open_catalog
from moldau.pipeline.export.iceberg import table_name
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.export.progress import parse_start_at
from moldau.pipeline.values.formats import ValueFormat, avro_format, json_format

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
HEADER = b"\x00\x00\x00\x00\x07"


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        yield running


@pytest.fixture
def topic(node: moldau.testing.Node, request: pytest.FixtureRequest) -> str:
    return create_topic(node, f"t{abs(hash(request.node.name))}")


def job_of(
    node: moldau.testing.Node, topic: str, folder: pathlib.Path, table_format: str, values: ValueFormat
) -> ExportJob:
    return ExportJob(
        node.bootstrap_servers, topic, str(folder), table_format, unit_records_max=3, values=values
    )


def avro(number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, json.loads(SCHEMA), {"id": number})
    return stream.getvalue()


def told(job: ExportJob) -> list[tuple[int, bytes | None, str]]:
    return [(row["offset"], row["value"], row["reason"]) for row in read_dead_letters(job)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_json_with_a_schema(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    produce_values(
        node, topic, [b'{"total": 1}', b"oops", None, b'{"total": "x"}', b'{"total": 5, "more": 1}']
    )
    job = job_of(node, topic, tmp_path, table_format, json_format("total INT, note STRING"))
    done = export_once(job, run_here)
    assert (done.records, done.dead_letters, done.lag_records) == (3, 2, 0)
    assert [(row["offset"], row["value"]) for row in read_table(job)] == [
        (0, {"total": 1, "note": None}),
        (2, None),
        (4, {"total": 5, "note": None}),
    ]
    assert [(offset, value) for offset, value, _ in told(job)] == [(1, b"oops"), (3, b'{"total": "x"}')]
    assert "malformed" in told(job)[0][2]
    assert "total" in told(job)[1][2]
    assert {row["key"] for row in read_dead_letters(job)} == {b"k"}


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_round_of_nothing_but_dead_letters(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    produce_values(node, topic, [b"oops"] * 4)
    job = job_of(node, topic, tmp_path, table_format, json_format("total INT"))
    assert export_once(job, run_here).dead_letters == 4
    assert export_once(job, run_here).files == []
    assert (len(read_table(job)), len(told(job))) == (0, 4)


@pytest.mark.parametrize("table_format", FORMATS)
def test_columns_are_found_and_added(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = job_of(node, topic, tmp_path, table_format, json_format(None))
    produce_values(node, topic, [b"{}", b"[]"])
    assert export_once(job, run_here).records == 1
    assert "value" not in read_table(job)[0]
    produce_values(node, topic, [b'{"a": 1}'] * 4 + [b'{"b": {"c": "x"}}'])
    export_once(job, run_here)
    produce_values(node, topic, [b'{"a": "text", "b": {"d": 1}}', b'{"b": {"d": 2}}'])
    assert export_once(job, run_here).dead_letters == 1
    rows = {row["offset"]: row.get("value") for row in read_table(job)}
    assert [rows[number] and rows[number]["a"] for number in range(2, 6)] == [1, 1, 1, 1]
    assert rows[6]["b"]["c"] == "x"
    assert rows[8] == {"a": None, "b": {"c": None, "d": 2}}
    assert [offset for offset, _, _ in told(job)] == [1, 7]


@pytest.mark.parametrize("table_format", FORMATS)
def test_values_that_no_column_fits_do_not_end_the_export(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    """Values with members that cannot be columns become dead letters. Numbers larger than all floats are
    stored as text."""
    job = job_of(node, topic, tmp_path, table_format, json_format(None))
    produce_values(node, topic, [b'{"": 1, "a": {"b": 1}, "a.b": 2}', b'{"a": {"b": 3}}'])
    export_once(job, run_here)
    produce_values(node, topic, [b'{"A": 4, "a": {"B": 5, "b": 6}}', b'{"a": ' * 100 + b"1" + b"}" * 100])
    export_once(job, run_here)
    produce_values(node, topic, [b'{"big": 1e999}', b'{"a": {"b": 7}}'])
    export_once(job, run_here)
    rows = read_table(job)
    found = {row["offset"]: row["value"]["a"] and row["value"]["a"]["b"] for row in rows}
    assert found == {1: 3, 3: None, 4: None, 5: 7}
    assert {row["offset"]: row["value"].get("big") for row in rows}[4] == "1e999"
    assert [offset for offset, _, _ in told(job)] == [0, 2]
    names = {name for row in rows for name in [*row["value"], *(row["value"]["a"] or ())]}
    assert names == {"a", "b", "big"}


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_column_keeps_its_type(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = job_of(node, topic, tmp_path, table_format, json_format("a INT"))
    produce_values(node, topic, [b'{"a": 1, "b": "x"}'])
    export_once(job, run_here)
    with pytest.raises(ToolError, match=r"column value\.a is INT in the table and STRING in the schema"):
        export_once(replace(job, values=json_format("a STRING")), run_here)
    with pytest.raises(ToolError, match="was exported with --value json, not raw"):
        export_once(replace(job, values=ValueFormat()), run_here)
    produce_values(node, topic, [b'{"a": 2, "b": "y"}'])
    export_once(replace(job, values=json_format("b STRING")), run_here)
    assert [row["value"] for row in read_table(job)][-1] == {"a": 2, "b": "y"}


def test_columns_of_an_iceberg_table_become_wider(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    before = json_format("a INT, b STRUCT<c: FLOAT>, d ARRAY<INT>, e DECIMAL(4, 2)")
    after = json_format("a BIGINT, b STRUCT<c: DOUBLE>, d ARRAY<BIGINT>, e DECIMAL(9, 2), f INT")
    jobs = [job_of(node, topic, tmp_path, "iceberg", values) for values in (before, after)]
    small = {"a": 1, "b": {"c": 1.5}, "d": [2], "e": "12.25"}
    large = {"a": 2**40, "b": {"c": 1e300}, "d": [2**40], "e": "1234567.25", "f": 3}
    produce_values(node, topic, [json.dumps(one).encode() for one in (small, large)])
    assert export_once(jobs[0], run_here).dead_letters == 1
    produce_values(node, topic, [json.dumps(large).encode()])
    assert export_once(jobs[1], run_here).dead_letters == 0
    assert export_once(replace(jobs[1], replay=True), run_here).records == 1
    found = [{**row["value"], "e": str(row["value"]["e"])} for row in read_table(jobs[1])]
    assert found == [{**small, "f": None}, large, large]
    for narrower in ("a INT, b STRUCT<c: DOUBLE>", "a STRING", "e DECIMAL(12, 4)", "a DOUBLE"):
        with pytest.raises(ToolError, match="INT to BIGINT, FLOAT to DOUBLE, or to a longer DECIMAL"):
            export_once(job_of(node, topic, tmp_path, "iceberg", json_format(narrower)), run_here)


@pytest.mark.parametrize("table_format", FORMATS)
def test_dead_letters_are_replayed(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    """The option for the header was forgotten, and one record has no header. The headers of the other records
    refer to the schemas of two writers."""
    produce_values(node, topic, [HEADER + avro(number) for number in range(7)] + [avro(7), b"\x80"])
    job = job_of(node, topic, tmp_path, table_format, avro_format(SCHEMA, {}, framed=False))
    first = export_once(job, run_here)
    assert (first.records, first.dead_letters) == (1, 8)
    mended = replace(job, values=avro_format(SCHEMA, {}, framed=True), replay=True)
    replayed = export_once(mended, run_here)
    assert (replayed.records, replayed.dead_letters, replayed.dead_letters_left) == (7, 1, 1)
    assert [row["value"]["id"] for row in read_table(job)] == list(range(8))
    assert [value for _, value, _ in told(job)] == [b"\x80"]
    again = export_once(mended, run_here)
    assert again.records == 0
    produce_values(node, topic, [HEADER + avro(8), b"\x80"])
    assert export_once(replace(mended, replay=False), run_here).records == 1
    assert [row["value"]["id"] for row in read_table(job)] == list(range(9))
    assert [offset for offset, _, _ in told(job)] == [8, 10]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_driver_may_be_killed_in_a_replay(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    framed = replace(
        job_of(node, topic, tmp_path, table_format, avro_format(SCHEMA, {}, framed=True)), replay=True
    )
    job = replace(framed, values=avro_format(SCHEMA, {}, framed=False), replay=False)
    produce_values(node, topic, [HEADER + avro(number) for number in range(10)])
    export_once(job, run_here)
    for count in range(5):
        with contextlib.suppress(Killed):
            export_once(framed, dying_after(count))
    export_once(framed, run_here)
    assert [row["value"]["id"] for row in read_table(job)] == list(range(10))
    assert told(job) == []


def test_a_driver_may_be_killed_between_its_two_commits(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is killed after the first commit of a round, which contains the dead letters that the round
    has found. The next export or replay completes the round."""

    commit = iceberg_export._commit

    def commit_and_die(*given: Any, **more: Any) -> None:
        commit(*given, **more)
        raise Killed

    job = job_of(node, topic, tmp_path, "iceberg", json_format("a INT"))
    for number in range(3):
        produce_values(node, topic, [b'{"a": 1}', b"oops"])
        monkeypatch.setattr(iceberg_export, "_commit", commit_and_die)
        with pytest.raises(Killed):
            export_once(job, run_here)
        monkeypatch.setattr(iceberg_export, "_commit", commit)
        assert export_once(replace(job, replay=number == 2), run_here).records == 0
        assert len(read_table(job)) == len(told(job)) == number + 1


def test_only_one_of_two_concurrent_replays_commits(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    job = job_of(node, topic, tmp_path, "iceberg", avro_format(SCHEMA, {}, framed=False))
    produce_values(node, topic, [HEADER + avro(number) for number in range(5)])
    export_once(job, run_here)
    mended = replace(job, values=avro_format(SCHEMA, {}, framed=True), replay=True)

    def run(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        export_once(mended, run_here)
        return run_here(function, units)

    with pytest.raises(ToolError, match="another driver has committed"):
        export_once(mended, run)
    assert [row["value"]["id"] for row in read_table(job)] == list(range(5))
    assert told(job) == []


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_new_export_adds_the_records_before_the_start_of_the_table(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    """A table began at the end of its topic. A new export adds the earlier records, and adds no
    record twice."""
    job = job_of(node, topic, tmp_path, table_format, ValueFormat())
    latest = replace(job, start=parse_start_at("latest"))
    produce_values(node, topic, [b"%d" % number for number in range(6)])
    first = export_once(latest, run_here)
    assert (first.files, first.lag_records) == ([], 0)
    produce_values(node, topic, [b"6"])
    assert export_once(latest, run_here).records == 1
    assert export_once(replace(job, start=parse_start_at("0:4,1:0")), run_here).records == 2
    assert export_once(replace(job, start=parse_start_at("@0")), run_here).records == 4
    produce_values(node, topic, [b"7"])
    assert export_once(job, run_here).records == 1
    assert [row["value"] for row in read_table(job)] == [b"%d" % number for number in range(8)]
    with pytest.raises(ToolError, match="has no partition 7"):
        export_once(replace(job, start=parse_start_at("7:1")), run_here)


def test_lag_counts_what_is_not_in_the_table(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    job = job_of(node, topic, tmp_path, "parquet", ValueFormat())
    produce_values(node, topic, [b"x"] * 3)

    def run(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        produce_values(node, topic, [b"late"] * 5)
        return run_here(function, units)

    assert export_once(job, run).lag_records == 5
    assert export_once(job, run_here).lag_records == 0


def test_offsets_of_a_commit_are_in_its_snapshot(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    job = job_of(node, topic, tmp_path, "iceberg", ValueFormat())
    produce_values(node, topic, [b"x"] * 4)
    export_once(job, run_here)
    table = open_catalog(job.folder).load_table(table_name(topic))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["moldau.export.ranges"] == "[[0, 0, 2], [0, 2, 4]]"
    for name in ("batch-id", "offsets", "starts"):
        assert snapshot.summary[f"moldau.export.{name}"] == table.properties[f"moldau.export.{name}"]


def test_a_task_may_be_killed_between_its_two_files(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of records and the file of dead letters of a unit get their names one after the other. A task
    may be killed between these two steps."""
    publish = units.publish
    calls = 0

    def publish_or_die(attempt: str, final: str) -> bool:
        nonlocal calls
        calls += 1
        if calls % 3 != 2:
            return publish(attempt, final)
        raise Killed

    framed = job_of(node, topic, tmp_path, "parquet", avro_format(SCHEMA, {}, framed=True))
    job = replace(framed, values=avro_format(SCHEMA, {}, framed=False))
    produce_values(node, topic, [avro(0), HEADER + avro(1), avro(2), HEADER + avro(3), b"\x80", avro(5)])
    for round_of in (job, replace(framed, replay=True)):
        monkeypatch.setattr(units, "publish", publish_or_die)
        deaths = 0
        for _ in range(20):
            try:
                export_once(round_of, run_here)
                break
            except Killed:
                deaths += 1
        assert deaths
        monkeypatch.setattr(units, "publish", publish)
        expected = [0, 2, 5] if round_of is job else [0, 1, 2, 3, 5]
        assert [row["offset"] for row in read_table(job)] == expected
    assert [(offset, value) for offset, value, _ in told(job)] == [(4, b"\x80")]
