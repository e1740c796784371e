"""Columns of JSON values get another type, so that dead letters can be decoded."""

import json
import pathlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

import pyarrow as pa
from exporting import FORMATS, create_topic, produce_values, read_dead_letters, read_table, run_here

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.values.column_changes import parse_column_change
from moldau.pipeline.values.ddl import render_ddl, render_type
from moldau.pipeline.values.formats import RAW, ValueFormat, json_format
from moldau.pipeline.values.json import decode_json


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        yield running


@pytest.fixture
def topic(node: moldau.testing.Node, request: pytest.FixtureRequest) -> str:
    return create_topic(node, f"t{abs(hash(request.node.name))}")


def job_of(
    node: moldau.testing.Node, topic: str, folder: pathlib.Path, table_format: str, schema: str | None = None
) -> ExportJob:
    return ExportJob(
        node.bootstrap_servers,
        topic,
        str(folder),
        table_format,
        unit_records_max=4,
        values=json_format(schema),
    )


def produce(node: moldau.testing.Node, topic: str, *values: Any) -> None:
    produce_values(node, topic, [json.dumps(value).encode() for value in values])


def changed(columns: str, *changes: str, promote: bool = False) -> ValueFormat:
    found = json_format(columns)
    for change in changes:
        found = parse_column_change(change).apply(found, "the table", promote=promote)
    return found


def columns_of(found: ValueFormat) -> str:
    assert found.type is not None
    return render_ddl(found.type)


@pytest.mark.parametrize(
    ("text", "path", "type_text"),
    [
        ("qty STRING", ("qty",), "STRING"),
        (" customer.age  decimal(9, 2)", ("customer", "age"), "DECIMAL(9, 2)"),
        (
            "`unit price`.`a.b`.`c``d` ARRAY<STRUCT<x: INT>>",
            ("unit price", "a.b", "c`d"),
            "ARRAY<STRUCT<x: INT>>",
        ),
    ],
)
def test_a_column_change_is_parsed(text: str, path: tuple[str, ...], type_text: str) -> None:
    found = parse_column_change(text)
    assert (found.path, render_type(found.type)) == (path, type_text)


@pytest.mark.parametrize(
    "text", ["", "qty", "qty NUMBER", "qty DATE", "a INT, b INT", ".a INT", "qty STRING x"]
)
def test_an_invalid_column_change_is_refused(text: str) -> None:
    with pytest.raises(ToolError):
        parse_column_change(text)


@pytest.mark.parametrize(
    ("change", "in_iceberg", "elsewhere"),
    [
        ("a BIGINT", "a BIGINT", "a INT, a_bigint BIGINT"),
        ("a DOUBLE", "a INT, a_double DOUBLE", "a INT, a_double DOUBLE"),
        ("a INT", "a INT", "a INT"),
        ("A BIGINT", "a BIGINT", "a INT, a_bigint BIGINT"),
        ("b STRING", "a INT, b STRING", "a INT, b STRING"),
    ],
)
def test_changes_that_widen_a_column_and_changes_that_need_a_new_column(
    change: str, in_iceberg: str, elsewhere: str
) -> None:
    assert columns_of(changed("a INT", change, promote=True)) == in_iceberg
    assert columns_of(changed("a INT", change)) == elsewhere
    # If the same change is requested again, the columns stay unchanged.
    assert columns_of(changed("a INT", change, change)) == elsewhere


def test_changes_inside_of_columns() -> None:
    found = changed(
        "c STRUCT<age: INT>, l ARRAY<STRUCT<q: INT, q_string: BOOLEAN>>, n ARRAY<INT>",
        "c.age STRING", "l.element.q STRING", "n ARRAY<STRING>",
    )  # fmt: skip
    assert columns_of(found) == (
        "c STRUCT<age: INT, age_string: STRING>,"
        " l ARRAY<STRUCT<q: INT, q_string: BOOLEAN, q_string_2: STRING>>, n ARRAY<INT>, n_array ARRAY<STRING>"
    )
    assert ValueFormat.of_json(json.loads(json.dumps(found.to_json()))) == found
    value = b'{"c": {"age": "x"}, "l": [{"q": 1}, {"q": 1.5}], "n": [1, "a"]}'
    column, rejected = decode_json(pa.array([value], pa.binary()), found.type, seconds=found.seconds)
    assert not rejected
    assert column[0].as_py() == {
        "c": {"age": None, "age_string": "x"},
        "l": [
            {"q": 1, "q_string": None, "q_string_2": None},
            {"q": None, "q_string": None, "q_string_2": "1.5"},
        ],
        "n": None,
        "n_array": ["1", "a"],
    }


def test_values_go_to_the_first_column_that_holds_them() -> None:
    found = changed("q BIGINT, at TIMESTAMP", "q DOUBLE", "q STRING", "at STRING")
    assert columns_of(found) == "q BIGINT, at TIMESTAMP, q_double DOUBLE, q_string STRING, at_string STRING"
    members = [b'"q": 1', b'"q": 1.5', b'"q": "x"', b'"q": null', b'"at": "2031-05-17"', b'"at": "soon"']
    values = [b"{%s}" % one for one in [*members, b'"q_string": "a member of that name"']]
    column, rejected = decode_json(pa.array(values, pa.binary()), found.type, seconds=found.seconds)
    assert not rejected
    rows = [{name: one for name, one in row.items() if one is not None} for row in column.to_pylist()]
    assert rows[:4] == [{"q": 1}, {"q_double": 1.5}, {"q_string": "x"}, {}]
    assert rows[4]["at"].isoformat() == "2031-05-17T00:00:00+00:00"
    assert rows[5:] == [{"at_string": "soon"}, {}]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("a.b INT", "column a is INT: it has no column b inside"),
        ("x.b INT", "there is no column x"),
        ("s BIGINT", r"column s is STRING, which holds every value: query CAST\(s AS BIGINT\)"),
        ("l.element INT", "column l is ARRAY<INT>: it has no column element inside"),
    ],
)
def test_impossible_column_changes_are_refused(change: str, problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        changed("a INT, s STRING, l ARRAY<INT>", change)
    with pytest.raises(ToolError, match="tables of JSON values"):
        parse_column_change(change).apply(RAW, "the table", promote=True)


@pytest.mark.parametrize("table_format", FORMATS)
def test_dead_letters_find_their_place_by_another_type(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = job_of(node, topic, tmp_path, table_format)
    produce(node, topic, *({"id": one, "qty": one} for one in range(6)))
    export_once(job, run_here)
    produce(
        node,
        topic,
        {"id": 6, "qty": "3 pcs"},
        {"id": 7, "qty": 1.5},
        {"id": 8, "qty": 8},
        {"id": 9, "qty": [9]},
    )
    done = export_once(job, run_here)
    assert (done.records, done.dead_letters) == (1, 3)
    assert [row["reason"] for row in read_dead_letters(job)] == [
        'qty: "3 pcs" is no BIGINT',
        "qty: 1.5 is no BIGINT",
        "qty: [9] is no BIGINT",
    ]
    change = replace(job, replay=True, changes=[parse_column_change("qty DOUBLE")])
    assert export_once(change, run_here).records == 1
    change = replace(job, replay=True, changes=[parse_column_change("qty STRING")])
    assert export_once(change, run_here).records == 2
    assert export_once(change, run_here).records == 0
    assert read_dead_letters(job) == []
    produce(
        node, topic, {"id": 10, "qty": 10}, {"id": 11, "qty": "4 pcs"}, {"id": 12, "QTY": 12, "new": True}
    )
    assert export_once(job, run_here).dead_letters == 0
    rows = [row["value"] for row in read_table(job)]
    found = {row["id"]: (row["qty"], row.get("qty_double"), row.get("qty_string")) for row in rows}
    assert found == {
        **{number: (number, None, None) for number in (*range(6), 8, 10, 12)},
        6: (None, None, "3 pcs"),
        7: (None, 1.5, None),
        9: (None, None, "[9]"),
        11: (None, None, "4 pcs"),
    }


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_configured_column_becomes_wider_or_a_second_column_is_added(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = job_of(node, topic, tmp_path, table_format, "a INT")
    produce(node, topic, {"a": 1, "unwanted": 1}, {"a": 2**40, "unwanted": 1})
    assert export_once(job, run_here).dead_letters == 1
    change = replace(job, values=json_format(None), replay=True, changes=[parse_column_change("a BIGINT")])
    assert export_once(change, run_here).records == 1
    expected = (
        [{"a": 1}, {"a": 2**40}] if table_format == "iceberg" else [{"a": 1}, {"a": None, "a_bigint": 2**40}]
    )
    assert [row["value"] for row in read_table(job)] == expected
    if table_format == "parquet":
        produce(node, topic, {"a": 3}, {"a": 2**41})
        assert export_once(job, run_here).dead_letters == 0


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_first_value_decides_nothing(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    """A thousand records are numbers, and one record has another value. This value is the only dead letter,
    whether it comes before, between or after the numbers."""
    numbers = [{"qty": one} for one in range(1_000)]
    found = []
    for place in (0, 500, 1_000):
        name = create_topic(node, f"{topic}-{place}")
        produce(node, name, *numbers[:place], {"qty": "3 pcs"}, *numbers[place:])
        job = replace(job_of(node, name, tmp_path / str(place), table_format), unit_records_max=300)
        export_once(job, run_here)
        assert [row["value"] for row in read_dead_letters(job)] == [b'{"qty": "3 pcs"}']
        found.append(sorted(row["value"]["qty"] for row in read_table(job)))
    assert found == [list(range(1_000))] * 3


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_replay_stores_no_value_in_part(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = job_of(node, topic, tmp_path, table_format)
    produce(node, topic, {"a": {"b": 1}}, {"a": {"b": 2}, "a.b": 3})
    assert export_once(job, run_here).dead_letters == 1
    replayed = export_once(replace(job, replay=True), run_here)
    assert (replayed.records, replayed.dead_letters_at) == (0, export_once(job, run_here).dead_letters_at)
    assert [row["value"] for row in read_dead_letters(job)] == [b'{"a": {"b": 2}, "a.b": 3}']
    declared = replace(job, values=json_format("a STRUCT<b: BIGINT>"), replay=True)
    assert export_once(declared, run_here).records == 1


def test_a_value_with_very_many_names_makes_the_column_text(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    """Values with very many names become one text column, and the column stays text."""
    produce(node, topic, *({f"k{one}_{number}": 1 for number in range(100)} for one in range(11)))
    job = job_of(node, topic, tmp_path, "iceberg")
    assert export_once(job, run_here).dead_letters == 0
    produce(node, topic, {"a": 1})
    assert export_once(job, run_here).records == 1
    assert [json.loads(row["value"]) for row in read_table(job)][-1] == {"a": 1}


def test_formats_of_earlier_rounds_are_read() -> None:

    old = {"kind": "json", "columns": "value STRUCT<a: INT>", "reader": "", "writers": {}, "framed": False}
    assert ValueFormat.of_json(old) == replace(json_format("a INT"), declared=False)
