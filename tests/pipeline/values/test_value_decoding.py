"""Values are decoded into columns. The tests check the decoded and rejected values, and the columns."""

import io
import json
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("fastavro", reason="needs fastavro: pip install 'moldau[spark]'")

import fastavro
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.errors import ToolError
from moldau.pipeline.values.avro import AvroSchemas, avro_type, decode_avro
from moldau.pipeline.values.ddl import parse_ddl, render_ddl
from moldau.pipeline.values.evolution import add_columns
from moldau.pipeline.values.json import check_json_columns, decode_json
from moldau.pipeline.values.json_arrow import parse
from moldau.pipeline.values.json_rows import Rewriter

NAMES = st.text(st.characters(exclude_characters="`\x00", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name.strip() == name
)
SIMPLE_TYPES = st.sampled_from(
    [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
     pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.decimal128(12, 3)]
)  # fmt: skip
TYPES = st.recursive(
    SIMPLE_TYPES,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(lambda one: pa.map_(pa.string(), one))
        | st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3, unique_by=lambda one: one[0].lower()).map(
            pa.struct
        )
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=4, unique_by=lambda one: one[0].lower()))
def test_columns_are_read_back_from_their_text(columns: list[tuple[str, Any]]) -> None:
    assert parse_ddl(render_ddl(pa.struct(columns))) == pa.struct(columns)


def test_column_definitions_are_parsed() -> None:
    found = parse_ddl("total int, `odd name` LONG, lines ARRAY<STRUCT<sku: STRING, price DECIMAL(9,2)>>")
    line = pa.struct([("sku", pa.string()), ("price", pa.decimal128(9, 2))])
    assert found == pa.struct([("total", pa.int32()), ("odd name", pa.int64()), ("lines", pa.list_(line))])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a column's name at its end"),
        ("total", "a type at its end"),
        ("total NUMBER", "a type (BOOLEAN, INT"),
        ("total INT more", "',' or the end before 'more'"),
        ("lines ARRAY<INT", "'>' at its end"),
        ("a INT, A LONG", "column 'A' twice"),
        ("a DECIMAL(50, 2)", "no decimal type"),
        ("a ?", "before '?'"),
    ],
)
def test_an_invalid_schema_is_reported_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ToolError) as failure:
        parse_ddl(text)
    assert problem in str(failure.value)


COLUMNS = (
    "a INT, b STRING, c STRUCT<x: DOUBLE>, t TIMESTAMP, n TIMESTAMP_NTZ, f FLOAT, e DECIMAL(5, 2), y BINARY"
)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[1]",
        b"5",
        b'{"a":',
        b'{"a":1}{"a":2}',
        b'{"a":1} null',
        b'{"a":1},"w":5',
        b'{"a":"x"}',
        b'{"a":1,"a":2}',
        b'{"a":99999999999}',
        b'{"b":"\xff"}',
        b'{"c":[]}',
        b'{"t":"yesterday"}',
        b"\xff\xfe{\x00}\x00",
        b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":[',
        b'{"n":"2031-05-17T08:30:00+02:00"}',
        b'{"n":"2031-05-17T08:30:00Z"}',
        b'{"f":1e300}',
        b'{"c":{"x":9007199254740993}}',
        b'{"c":{"x":123456789012345678901234567890}}',
        b'{"c":{"x":1e999}}',
        b'{"e":1.255}',
        b'{"e":1000}',
        b'{"y":5}',
        b'{"t":1795330000}',
        b'{"c":{"x":1,"x":1}}',
    ],
    ids=range(28),
)
def test_a_value_that_is_no_row_is_rejected_alone(value: bytes) -> None:
    """Some of these values are incomplete. A decoder that joins all values into one text would accept them,
    because the text before or after such a value would complete it."""
    values = pa.array([b'{"a":1}', value, b",{}]}", b'{"a":2,"more":[{"deep":null}]}', None], pa.binary())
    found, rejected = decode_json(values, parse_ddl(COLUMNS))
    assert set(rejected) == {1, 2}
    assert all(reason and "\n" not in reason and "row" not in reason for reason in rejected.values())
    assert found.field("a").to_pylist()[0::3] == [1, 2]
    assert [one.as_py() is None for one in found] == [False, True, True, False, True]


MEMBERS = {
    "a": ["1", "-0", "2147483648", "1.0", "1e2", '"1"', "null", "true", "{}"],
    "b": ['"x"', "5", "1.50", "null", "true", '{"q": [1, 2]}', "[ ]", '"\\u0000"', '"\\ud800"', "1e999"],
    "c": ["null", "{}", '{"x": 1}', '{"x": 9007199254740993}', '{"x": 9007199254740992}', '{"x": 1e400}',
          '{"x": 1234567890.12345678901}', '{"x": -0}', '{"y": 1, "y": 2}', "[]", "5"],
    "t": ['"2031-05-17T08:30:00Z"', '"2031-05-17"', '"2031-05-17 08:30:00.123456+0200"', '"x"', "0"],
    "n": ['"2031-05-17T08:30:00"', '"2031-05-17T08:30:00Z"', '"2031-05-17 08:30+02"', '"2031-05-17"', '"z"'],
    "f": ["0.1", "1e38", "1e39", "-1e300", "16777217", "1e-60", '"1"'],
    "e": ["1.25", '"1.25"', "1.250", "1.255", "1e2", "999.99", "1000", "-0.00", "100e-4", '"x"', "0e9",
          '"+1"', '".5"', '"5."', "0e99999999999999999999", "1e-99999999999999999999", '"1e+2"', '""'],
    "y": ['"x"', "5", "null", '"\\u00ff"'],
    "z": ["1", "NaN", "1e999", '"\\ud800"', "[[]]", "null"],
}  # fmt: skip


@st.composite
def members(draw: st.DrawFn) -> bytes:
    """An object whose members fit their columns or do not fit. Some names occur twice."""
    names = draw(st.lists(st.sampled_from(sorted(MEMBERS)), max_size=3))
    texts = [f'"{name}": {draw(st.sampled_from(MEMBERS[name]))}' for name in names]
    return b"{" + ",".join(texts).encode() + b"}"


@settings(deadline=None)
@given(
    st.lists(
        st.none()
        | st.binary(max_size=12)
        | members()
        | st.from_regex(rb'\{"a": ?(1|2\}|"x"|null)[}\]]?', fullmatch=True)
    )
)
def test_a_value_among_others_is_decoded_as_if_it_were_alone(values: list[bytes | None]) -> None:
    columns = parse_ddl(COLUMNS)
    found, rejected = decode_json(pa.array(values, pa.binary()), columns)
    assert len(found) == len(values)
    for row, value in enumerate(values):
        alone, why = decode_json(pa.array([value], pa.binary()), columns)
        assert (found[row].as_py(), rejected.get(row)) == (alone[0].as_py(), why.get(0))


@pytest.mark.parametrize("name", MEMBERS)
def test_a_value_that_is_parsed_alone_is_accepted_if_arrow_accepts_it(name: str) -> None:
    """The slow path has the same rules as Arrow, except for values that Arrow would change."""
    columns = parse_ddl(COLUMNS)
    rewriter = Rewriter(columns, whole=False, seconds={})
    for text in MEMBERS[name]:
        value = b'{"%s":%s}\n' % (name.encode(), text.encode())
        if set(decode_json(pa.array([value], pa.binary()), columns)[1]) == set():
            rewritten = rewriter.rewrite(value)
            again = parse(pa.py_buffer(rewritten + b"\n"), 1, columns)
            assert decode_json(pa.array([value], pa.binary()), columns)[0].equals(again), text


def test_json_of_every_type() -> None:
    columns = parse_ddl(
        "a INT, b LONG, c DOUBLE, d STRING, e BOOLEAN, f ARRAY<INT>, g STRUCT<x: STRING>, h DECIMAL(5,2),"
        " i TIMESTAMP"
    )
    value = {"a": 1, "b": 2**40, "c": 1.5, "d": "ž", "e": True, "f": [1, None], "g": {"x": "y"}, "h": "1.25"}
    found, rejected = decode_json(
        pa.array([json.dumps({**value, "i": "2031-05-17T08:30:00Z"}).encode()], pa.binary()), columns
    )
    assert not rejected
    row = found[0].as_py()
    assert {**row, "h": str(row["h"]), "i": row["i"].isoformat()} == {
        **value,
        "i": "2031-05-17T08:30:00+00:00",
    }


@pytest.mark.parametrize("text", ["a DATE", "a MAP<STRING, INT>", "a ARRAY<STRUCT<b: DATE>>"])
def test_types_that_json_does_not_have(text: str) -> None:
    with pytest.raises(ToolError, match="column a: JSON values are not decoded as DATE, TIME or MAP"):
        check_json_columns(parse_ddl(text))


def test_columns_can_be_added_and_not_changed() -> None:
    old = parse_ddl("a INT, b STRUCT<c: STRING>, d ARRAY<STRUCT<e: INT>>")
    new = parse_ddl("d ARRAY<STRUCT<f: STRING>>, g LONG, b STRUCT<h: INT, c: STRING>")
    found = add_columns(old, new)
    assert found is not None
    assert (
        render_ddl(found)
        == "a INT, b STRUCT<c: STRING, h: INT>, d ARRAY<STRUCT<e: INT, f: STRING>>, g BIGINT"
    )
    with pytest.raises(ToolError, match=r"column value\.b\.c is STRING in the table and INT in the schema"):
        add_columns(old, parse_ddl("b STRUCT<c: INT>"))


ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]},
            },
        },
        {"name": "first", "type": ["null", "Line"], "default": None},
    ],
}


def encode(schema: Any, value: Any, header: bytes = b"") -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return header + stream.getvalue()


def order(number: int) -> dict[str, Any]:
    return {"id": number, "price": b"\x7d", "at": 0, "key": "k", "tags": {"a": 1}, "lines": [{"sku": "s"}]}


def test_avro_values_are_decoded_into_columns() -> None:
    text = json.dumps(ORDER)
    column = avro_type(text)
    assert render_ddl(column) == (
        "id BIGINT, note STRING, price DECIMAL(6, 2), at TIMESTAMP, key STRING, tags MAP<STRING, INT>,"
        " lines ARRAY<STRUCT<sku: STRING>>, first STRUCT<sku: STRING>"
    )
    plain = {**ORDER, "fields": [{**field, "type": _plain(field["type"])} for field in ORDER["fields"]]}  # type: ignore[union-attr]
    good = encode(plain, order(7))
    found, rejected = decode_avro(
        pa.array([good, None, good[:-3], good + b"x", b""], pa.binary()), column, AvroSchemas(text, {}, False)
    )
    assert (found[0]["id"].as_py(), str(found[0]["price"].as_py()), found[0]["tags"].as_py()) == (
        7,
        "1.25",
        [("a", 1)],
    )
    assert [one.as_py() is None for one in found] == [False, True, True, True, True]
    assert set(rejected) == {2, 3, 4}
    assert rejected[3] == "not Avro: 1 bytes are left after the record"


def _plain(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) and "logicalType" in schema else schema


def test_writers_schemas_are_resolved_by_their_ids() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "string", "default": "?"}],
    }
    schemas = AvroSchemas(json.dumps(new), {7: json.dumps(old), 8: json.dumps(new)}, True)
    values = [
        encode(old, {"id": 1}, b"\x00\x00\x00\x00\x07"),
        encode(new, {"id": 2, "n": "x"}, b"\x00\x00\x00\x00\x08"),
        encode(new, {"id": 3, "n": "x"}, b"\x00\x00\x00\x00\x09"),
        encode(new, {"id": 4, "n": "x"}),
    ]
    found, rejected = decode_avro(pa.array(values, pa.binary()), avro_type(schemas.reader), schemas)
    assert found.to_pylist() == [{"id": 1, "n": "?"}, {"id": 2, "n": "x"}, None, None]
    assert rejected == {
        2: "not Avro: the writer's schema 9 was not given",
        3: "not Avro: the header with the schema's id is missing",
    }


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("{", "no Avro schema"),
        ('{"type": "nope"}', "no Avro schema"),
        ('["string", "int"]', "union of several types"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 60}', "at most 38 digits"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}', "contains itself"),
    ],
)
def test_avro_schemas_without_columns(schema: str, problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        AvroSchemas(schema, {}, False).check()
