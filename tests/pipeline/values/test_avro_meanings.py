"""Cases in which two schemas differ and Avro does not define the result: units of time, scales, and values
out of range."""

import datetime
import json
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("fastavro", reason="needs fastavro: pip install 'moldau[spark]'")

import pyarrow as pa
from avro_cases import encode

from moldau.client.errors import ToolError
from moldau.pipeline.values.avro import AvroSchemas, avro_type, decode_avro
from moldau.pipeline.values.ddl import render_ddl
from moldau.pipeline.values.evolution import storable

HEADER = b"\x00\x00\x00\x00\x07"
MOMENT = datetime.datetime(2026, 11, 22, 7, 13, 20, tzinfo=datetime.UTC)


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def record(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": schema, **more}]}


def read(written: Any, wanted: Any, *values: Any) -> list[Any]:
    """The values in the reader's column. If a value is rejected, the reason."""
    schemas = AvroSchemas(json.dumps(record(wanted)), {7: json.dumps(record(written))}, True)
    schemas.check()
    encoded = [HEADER + encode(record(written), {"x": value}) for value in values]
    found, rejected = decode_avro(pa.array(encoded, pa.binary()), avro_type(schemas.reader), schemas)
    return [rejected.get(row, one and one["x"]) for row, one in enumerate(found.to_pylist())]


def test_times_keep_their_meaning_in_another_unit() -> None:
    seconds = int(MOMENT.timestamp())
    units = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
    for local in ("", "local-"):
        expected = MOMENT.replace(tzinfo=None) if local else MOMENT
        for written, factor in units.items():
            for wanted in ("millis", "micros"):
                old, new = (logical("long", f"{local}timestamp-{unit}") for unit in (written, wanted))
                assert read(old, new, seconds * factor) == [expected]
            old, new = (logical("long", f"{local}timestamp-{unit}") for unit in (written, "nanos"))
            assert read(old, new, seconds * factor) == [seconds * 10**9]
    assert read(logical("int", "time-millis"), logical("long", "time-micros"), 1001) == [
        datetime.time(0, 0, 1, 1000)
    ]


def test_a_time_that_its_unit_cannot_represent_is_rejected() -> None:
    nanos, micros = (logical("long", f"timestamp-{unit}") for unit in ("nanos", "micros"))
    (exact, lossy) = read(nanos, micros, 1_000, 1_001)
    assert exact == datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)
    assert "would lose data" in lossy
    assert "out of bounds" in read(micros, nanos, 2**62)[0]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (logical("long", "timestamp-millis"), 2**60),
        (logical("long", "timestamp-micros"), -(2**62)),
        (logical("long", "local-timestamp-millis"), 253_402_300_800_000),
        (logical("int", "date"), 2**31 - 1),
        (logical("int", "time-millis"), 86_400_000),
        (logical("long", "time-micros"), -1),
        (logical("bytes", "decimal", precision=4, scale=2), b"\x7f\xff"),
        (logical("bytes", "decimal", precision=38, scale=2), b"\x7f" * 40),
        (logical("bytes", "decimal", precision=4, scale=2), b""),
    ],
)
def test_a_value_out_of_range_is_rejected_alone(schema: Any, value: Any) -> None:
    good = b"\x01" if schema["type"] == "bytes" else 1
    found = read(
        {"type": "array", "items": schema}, {"type": "array", "items": schema}, [good], [good, value]
    )
    assert isinstance(found[0], list)
    assert found[1].startswith("the column cannot hold it: ")


def test_a_number_without_a_logical_type_is_taken_as_the_readers() -> None:
    at = logical("long", "timestamp-millis")
    assert read("long", at, int(MOMENT.timestamp()) * 1000) == [MOMENT]
    assert read(at, "long", 5) == [5]


def test_decimals_keep_their_value_in_another_scale() -> None:
    def decimal(precision: int, scale: int) -> dict[str, Any]:
        return logical("bytes", "decimal", precision=precision, scale=scale)

    (longer,) = read(decimal(4, 2), decimal(9, 4), b"\x7d")
    assert str(longer) == "1.2500"
    (shorter, lossy) = read(
        decimal(9, 4), decimal(4, 2), (12500).to_bytes(2, "big"), (12501).to_bytes(2, "big")
    )
    assert str(shorter) == "1.25"
    assert "would cause data loss" in lossy


def test_other_meanings_are_refused_before_anything_is_read() -> None:
    date, moment = logical("int", "date"), logical("long", "timestamp-millis")
    for old, new in ((date, moment), (moment, logical("long", "local-timestamp-millis"))):
        with pytest.raises(
            ToolError, match=r"column value\.x\.element: a .* was written, which is not read as a "
        ):
            read({"type": "array", "items": old}, {"type": "array", "items": new}, [1])
    with pytest.raises(ToolError, match=r"column value\.x: the writer's union has several meanings"):
        read(["null", "int", logical("long", "timestamp-micros")], ["null", moment], 5)


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("int", "5"),
        ("int", 2**31),
        ("int", True),
        ("bytes", "ž"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc"),
        (["null", "int"], "x"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "array", "items": "int"}, ["x"]),
        (record("int"), {}),
    ],
)
def test_a_default_of_another_type_is_refused(schema: Any, default: Any) -> None:
    renamed = {**schema, "name": "S"} if isinstance(schema, dict) and "name" in schema else schema
    with pytest.raises(ToolError, match="this is no Avro schema"):
        AvroSchemas(json.dumps(record(renamed, default=default)), {}, False).check()


def test_a_schema_of_only_null_has_no_column() -> None:
    text = json.dumps(record({"type": "map", "values": "null"}))
    assert storable(avro_type(text)) is None
    both = {**record("null"), "fields": [*record("null")["fields"], {"name": "y", "type": "int"}]}
    found = storable(avro_type(json.dumps(both)))
    assert found is not None
    assert render_ddl(found) == "y INT"


def test_columns_that_a_table_has_beyond_the_schema_are_null() -> None:
    at = logical("long", "timestamp-millis")
    text = json.dumps(record(at))
    column = pa.struct([*avro_type(text), pa.field("y", pa.list_(pa.int32()))])
    value = encode(record(at), {"x": 0})
    found, rejected = decode_avro(pa.array([value, None], pa.binary()), column, AvroSchemas(text, {}, False))
    assert not rejected
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert found.to_pylist() == [{"x": epoch, "y": None}, None]


def test_rows_of_several_writers_keep_their_order() -> None:
    old, new = record("int"), record("long")
    schemas = AvroSchemas(json.dumps(new), {7: json.dumps(old), 8: json.dumps(new)}, True)
    values = [
        b"\x00\x00\x00\x00" + bytes([7 + row % 2]) + encode(new if row % 2 else old, {"x": row})
        for row in range(20)
    ]
    values[5] = b"oops"
    found, rejected = decode_avro(pa.array(values, pa.binary()), avro_type(schemas.reader), schemas)
    assert [one and one["x"] for one in found.to_pylist()] == [None if row == 5 else row for row in range(20)]
    assert set(rejected) == {5}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
INTS = {"type": "array", "items": "int"}


@pytest.mark.parametrize(
    ("schema", "encoded", "reason"),
    [
        (ENUM, "01", "an enum has no symbol -1"),
        (ENUM, "04", "an enum has no symbol 2"),
        (["null", "int"], "0102", "a union has no type -1"),
        (["null", "int"], "04", "a union has no type 2"),
        ("boolean", "02", "a boolean is 0 or 1, not 2"),
        ("int", "ffffffff1f", "a number has more than 32 bits"),
        ("int", "808080808000", "a number has more than 32 bits"),
        ("long", "ffffffffffffffffff03", "a number has more than 64 bits"),
        ("long", "80808080808080808000", None),
        ("string", "01", "a length is -1"),
        ("bytes", "0461", "the value ends early"),
        ("double", "00000000000000", "the value ends early"),
        (INTS, "0202", "the value ends early"),
        (INTS, "01020200", None),
        (INTS, "01040200", "the size of a block differs from its header"),
        ({"type": "map", "values": "int"}, "02036102", "a length is -2"),
    ],
)  # fmt: skip
def test_bytes_that_do_not_match_the_schema_are_rejected(
    schema: Any, encoded: str, reason: str | None
) -> None:
    """A value whose bytes do not match the schema is rejected, whether the member is read or skipped. For
    most of the tested bytes, the library fastavro returns a value instead of an error."""
    last = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "n", "type": "int"}, *record(schema)["fields"]],
    }
    only = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    expected = {} if reason is None else {0: f"not Avro: {reason}"}
    for reader in (last, only):
        schemas = AvroSchemas(json.dumps(reader), {7: json.dumps(last)}, True)
        value = HEADER + b"\x0a" + bytes.fromhex(encoded)
        found, rejected = decode_avro(pa.array([value], pa.binary()), avro_type(schemas.reader), schemas)
        assert rejected == expected
        assert reason or found[0]["n"].as_py() == 5


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_defaults_that_are_not_numbers_in_json(number: str) -> None:
    reader = record(["double", "null"], default=number)
    schemas = AvroSchemas(json.dumps(reader), {7: json.dumps(NOTHING | {"name": "R"})}, True)
    found, rejected = decode_avro(pa.array([HEADER], pa.binary()), avro_type(schemas.reader), schemas)
    assert not rejected
    assert str(found[0]["x"].as_py()) == str(float(number))


TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "left", "type": ["null", "Tree"]}, {"name": "v", "type": "int"}],
}
NOTHING: dict[str, Any] = {"type": "record", "name": "Nothing", "fields": []}


def with_number(schema: Any) -> dict[str, Any]:
    return {**record(schema), "fields": [*record(schema)["fields"], {"name": "n", "type": "int"}]}


def read_number(written: Any, encoded: bytes) -> Any:
    """The values of column ``n``, which follows a field that is not read. If a value is rejected,
    the reason."""
    reader = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    schemas = AvroSchemas(json.dumps(reader), {7: json.dumps(with_number(written))}, True)
    schemas.check()
    values = pa.array([HEADER + encoded], pa.binary())
    found, rejected = decode_avro(values, avro_type(schemas.reader), schemas)
    return rejected.get(0) or found[0]["n"].as_py()


def test_a_value_that_nests_without_end_is_rejected() -> None:
    """The recursion of the library would crash the process."""
    tree: Any = None
    for _ in range(90):
        tree = {"left": tree, "v": 1}
    written = with_number(TREE)
    assert read_number(TREE, encode(written, {"x": tree, "n": 5})) == 5
    assert read_number(TREE, b"\x02" * 1_000_000) == "not Avro: more than 200 levels deep"


@pytest.mark.parametrize("items", ["null", NOTHING, {"type": "fixed", "name": "F", "size": 0}])
def test_items_without_bytes_are_bounded(items: Any) -> None:
    array = {"type": "array", "items": items}
    assert read_number(array, b"\x14\x00\x0a") == 5
    reason = read_number(array, b"\xfe\xff\xff\xff\xff\xff\x01\x00\x0a")
    assert reason == "not Avro: 4398046511103 items of arrays in 14 bytes"
    nested = {"type": "array", "items": {"type": "map", "values": array}}
    assert "items of arrays in" in read_number(
        nested, b"\x02\x02\x02k\xfe\xff\xff\xff\xff\xff\x01\x00\x00\x00\x0a"
    )
