"""Avro records with their writers' and readers' schemas. The schemas contain each type in each position, as a
value and as a default.

``golden/avro.json`` has the results of Avro's Java library for these records.
"""

import io
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fastavro


class Case(NamedTuple):
    """A record as its writer has encoded it. The schemas are JSON texts."""

    name: str
    writer: str
    reader: str
    encoded: bytes


class Leaf(NamedTuple):
    """A type, a raw value, and a default in the JSON of a schema."""

    name: str
    schema: Any
    value: Any
    default: Any


def _logical(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


def _fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


def _latin(first: int) -> str:
    """Bytes in the JSON of a schema, where each character is a byte of 0 to 255."""
    return bytes(range(first, 256)).decode("latin-1")


_UUID = "00000000-0000-4000-8000-000000000001"
_DECIMAL = {"logicalType": "decimal", "precision": 9, "scale": 2}
LEAVES = [
    Leaf("boolean", "boolean", True, False),
    Leaf("int", "int", -(2**31), 7),
    Leaf("long", "long", 2**63 - 1, 2**40),
    Leaf("float", "float", 1.5, 2),
    Leaf("double", "double", 1e300, 2),
    Leaf("bytes", "bytes", b"\xff\x00", "\u00ff\u0000a"),
    Leaf("string", "string", "ž\x00", "ÿ"),
    Leaf("fixed", _fixed(3), b"\xffab", "\u00ff\u0080c"),
    Leaf("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "A"),
    Leaf("date", _logical("int", "date"), -719162, 20780),
    Leaf("time-millis", _logical("int", "time-millis"), 86_399_999, 45_296_789),
    Leaf("time-micros", _logical("long", "time-micros"), 86_399_999_999, 45_296_789_012),
    Leaf("timestamp-millis", _logical("long", "timestamp-millis"), -1, 1_795_330_000_000),
    Leaf("timestamp-micros", _logical("long", "timestamp-micros"), -1, 1_795_330_000_000_123),
    Leaf("timestamp-nanos", _logical("long", "timestamp-nanos"), -1, 1_795_330_000_000_123_456),
    Leaf("local-timestamp-millis", _logical("long", "local-timestamp-millis"), -1, 1_795_330_000_000),
    Leaf("local-timestamp-micros", _logical("long", "local-timestamp-micros"), -1, 1_795_330_000_000_123),
    Leaf("local-timestamp-nanos", _logical("long", "local-timestamp-nanos"), -1, 1_795_330_000_000_123_456),
    Leaf("decimal-bytes", {"type": "bytes", **_DECIMAL}, b"\xff\x7d", "\u0001\u00e2@"),
    Leaf("decimal-fixed", _fixed(5, **_DECIMAL), b"\xff\xff\xff\xff\x7d", "\u0000\u0000\u0001\u00e2@"),
    Leaf("uuid-string", _logical("string", "uuid"), "6f1f3a0e-0000-4000-8000-00000000000a", _UUID),
    Leaf("uuid-fixed", _fixed(16, logicalType="uuid"), bytes(range(16)), _latin(240)),
    Leaf("duration", _fixed(12, logicalType="duration"), bytes(range(12)), _latin(244)),
    Leaf("unknown-logical", _logical("int", "moon-phase"), 5, 6),
    Leaf("invalid-decimal", _logical("bytes", "decimal", precision=2, scale=5), b"\x05", "\u0006"),
]  # fmt: skip


def _record(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def _field(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": schema, **more}


Position = Callable[[Any, Any], tuple[Any, Any]]
POSITIONS: dict[str, Position] = {
    "plain": lambda schema, one: (schema, one),
    "nested": lambda schema, one: (_record("Inner", _field("x", schema)), {"x": one}),
    "null-first": lambda schema, one: (["null", schema], one),
    "null-last": lambda schema, one: ([schema, "null"], one),
    "array": lambda schema, one: ({"type": "array", "items": schema}, [one, one]),
    "map": lambda schema, one: ({"type": "map", "values": schema}, {"k": one}),
    "deep": lambda schema, one: (
        {
            "type": "array",
            "items": _record("Inner", _field("m", {"type": "map", "values": ["null", schema]})),
        },
        [{"m": {"k": one}}],
    ),
}
_N = _field("n", "int")


def raw(schema: Any) -> Any:
    """A schema without logical types, so that the library writes the values unchanged."""
    if isinstance(schema, list):
        return [raw(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: one for name, one in schema.items() if name not in ("logicalType", "precision", "scale")}
    return {
        name: raw(one) if name in ("type", "items", "values", "fields") else one for name, one in kept.items()
    }


def encode(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(raw(schema)), value)
    return stream.getvalue()


def _case(name: str, writer: Any, reader: Any, value: Any) -> Case:
    return Case(name, json.dumps(writer), json.dumps(reader), encode(writer, value))


def _values_and_defaults() -> Iterator[Case]:
    for leaf, (position, place) in itertools.product(LEAVES, POSITIONS.items()):
        schema, value = place(leaf.schema, leaf.value)
        both = _record("R", _N, _field("x", schema))
        yield _case(f"value {leaf.name} {position}", both, both, {"n": 1, "x": value})
        grown = _record("R", _field("added", "int", default=3), _field("x", schema), _N)
        yield _case(f"resolved {leaf.name} {position}", both, grown, {"n": 1, "x": value})
        schema, default = place(leaf.schema, leaf.default)
        with_default = _record("R", _N, _field("x", schema, default=default))
        yield _case(f"default {leaf.name} {position}", _record("R", _N), with_default, {"n": 1})
        yield _case(f"skipped {leaf.name} {position}", both, _record("R", _N), {"n": 1, "x": value})


_PROMOTIONS = [
    ("int", "long", -5), ("int", "float", 16_777_217), ("int", "double", 2**31 - 1), ("long", "float", 2**62),
    ("long", "float", 2**40), ("long", "double", 2**53 + 1), ("float", "double", 1.5),
    ("string", "bytes", "ž"), ("bytes", "string", "ž".encode()), ("long", "int", 5), ("double", "float", 1.5),
    ("string", "int", "5"),
]  # fmt: skip


def _promotions() -> Iterator[Case]:
    for (old, new, value), (position, place) in itertools.product(_PROMOTIONS, POSITIONS.items()):
        written, given = place(old, value)
        name = f"promotion {old} {new} {value!r:.9} {position}"
        yield _case(
            name,
            _record("R", _field("x", written)),
            _record("R", _field("x", place(new, 0)[0])),
            {"x": given},
        )


_LINE = _record("shop.Line", _field("sku", "string"))
_TREE = _record("Tree", _field("left", ["null", "Tree"]), _field("v", "int"))
_OLD_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
_NEW_ENUM = {"type": "enum", "name": "E", "symbols": ["B", "A"]}
_DEFAULT_ENUM = {**_NEW_ENUM, "default": "A"}
_AT = _logical("long", "timestamp-millis")


def _resolutions() -> Iterator[Case]:
    """Cases in which the schema of the reader differs in its enums, unions, names or defaults, and not only
    in one type."""

    def pair(name: str, old: Any, new: Any, *values: Any, **more: Any) -> Iterator[Case]:
        for value in values:
            yield _case(
                f"{name} {value!r:.40}",
                _record("R", _field("x", old)),
                _record("R", _field("x", new, **more)),
                {"x": value},
            )

    yield from pair("enum grows smaller", _OLD_ENUM, _NEW_ENUM, "A", "B", "C")
    yield from pair("enum with default", _OLD_ENUM, _DEFAULT_ENUM, "A", "B", "C")
    yield from pair(
        "enums in an array",
        {"type": "array", "items": _OLD_ENUM},
        {"type": "array", "items": _DEFAULT_ENUM},
        ["C", "B"],
    )
    yield from pair("union of many to one", ["null", "int", "string"], "long", 5, "x", None)
    yield from pair(
        "union of many to nullable", ["null", "int", "string", "float"], ["null", "double"], 5, 1.5, "x", None
    )
    yield from pair(
        "union of records",
        ["null", _record("A", _field("a", "int")), _record("B", _field("a", "int"))],
        ["null", _record("A", _field("a", "long"))],
        {"a": 5},
        None,
    )
    yield from pair("one to union", "int", ["null", "long"], 5)
    yield from pair("union to one", ["null", "int"], "int", 5, None)
    yield from pair("logical to union", _AT, ["null", _AT], 5)
    yield from pair(
        "names differ",
        _record("A", _field("a", "int")),
        _record("B", _field("a", "int"), aliases=["A"]),
        {"a": 5},
    )
    yield from pair(
        "namespaces",
        _record("A", _field("a", "int"), namespace="one"),
        _record("A", _field("a", "int"), namespace="one"),
        {"a": 5},
    )
    yield from pair("fixed sizes differ", _fixed(3), _fixed(4), b"abc")
    yield from pair(
        "fixed under another name", _fixed(3), {**_fixed(3), "name": "G", "aliases": ["F"]}, b"abc"
    )
    yield from pair(
        "missing without default",
        _record("A", _field("a", "int")),
        _record("A", _field("b", "int")),
        {"a": 5},
    )
    two = _record(
        "R",
        _field("one", _LINE),
        _field("two", ["null", "shop.Line"]),
        _field("more", {"type": "array", "items": "shop.Line"}),
    )
    value = {"one": {"sku": "a"}, "two": {"sku": "b"}, "more": [{"sku": "c"}]}
    grown = _record("shop.Line", _field("sku", "string"), _field("at", _AT, default=1_795_330_000_000))
    reader = _record(
        "R",
        _field("more", {"type": "array", "items": grown}),
        _field("one", ["null", "shop.Line"]),
        _field("two", ["null", "shop.Line"]),
    )
    yield _case("types by name", two, two, value)
    yield _case("types by name, grown", two, reader, value)
    only = _record("R", _field("two", ["null", grown]))
    yield _case("a definition that is not read", two, only, value)
    by_alias = _record("R", _field("first", _LINE, aliases=["one"]))
    yield _case("fields by alias", two, by_alias, value)
    tree = {"left": {"left": None, "v": 1}, "v": 2}
    yield _case(
        "a recursive type is skipped",
        _record("R", _field("t", _TREE), _N),
        _record("R", _N),
        {"t": tree, "n": 5},
    )
    yield _case("one level of a recursive type", _TREE, _record("Tree", _field("v", "long")), tree)
    inner = _record(
        "Inner",
        _field("a", "int"),
        _field("at", _AT, default=1_795_330_000_000),
        _field("b", "bytes", default="\u00ff"),
    )
    for name, default in (
        ("with all", {"a": 1, "at": 5, "b": "\u00fe"}),
        ("with some", {"a": 1}),
        ("of few", {"a": 2, "b": "\u00fe"}),
    ):
        yield _case(
            f"a record's default {name}",
            _record("R", _N),
            _record("R", _N, _field("i", inner, default=default)),
            {"n": 1},
        )
    many = _record("R", _N, _field("u", ["null", {"type": "array", "items": inner}], default=[{"a": 1}]))
    yield _case("a default of a later branch", _record("R", _N), many, {"n": 1})
    yield _case("an alias of a record", _record("Old", _N), _record("R", _N, aliases=["Old"]), {"n": 1})


def cases() -> list[Case]:
    return [*_values_and_defaults(), *_promotions(), *_resolutions()]


def random_cases(seed: int, count: int) -> Iterator[Case]:
    """Records of several fields, some of which the reader has removed, moved, made optional or added."""
    dice = random.Random(seed)
    for number in range(count):
        written, read, value = [], [], {}
        for at in range(dice.randint(1, 5)):
            leaf, name = dice.choice(LEAVES), f"f{at}"
            schema, given = _nest(dice, leaf.schema, leaf.value, f"{name}_")
            added, default = _nest(dice, leaf.schema, leaf.default, f"{name}_")
            fate = dice.choice(["kept", "kept", "optional", "renamed", "lost", "added"])
            if fate == "added":
                read.append(_field(name, added, default=default))
                continue
            written.append(_field(name, schema))
            value[name] = given
            if fate == "kept":
                read.append(_field(name, schema))
            elif fate == "renamed":
                read.append(_field(f"new_{name}", schema, aliases=[name]))
            elif fate == "optional":
                read.append(_field(name, schema if isinstance(schema, list) else ["null", schema]))
        dice.shuffle(read)
        yield _case(f"seed {seed}, number {number}", _record("R", *written), _record("R", *read), value)


def damaged_cases(seed: int, count: int) -> Iterator[Case]:
    """Records in which some bytes were changed, added or removed. The schemas stay the same."""
    dice = random.Random(seed)
    whole = [*cases(), *random_cases(seed, count // 10)]
    for number in range(count):
        case = dice.choice(whole)
        content = bytearray(case.encoded or b"\0")
        for _ in range(dice.randint(1, 2)):
            at = dice.randrange(len(content) or 1)
            inserted = dice.choice([b"", b"", b"\1", b"\2", b"\xff", b"\x80\0", b"\xff\xff\xff\xff\x0f"])
            content[at : at + dice.randint(0, 1)] = inserted
        yield Case(f"{case.name}, damage {number}", case.writer, case.reader, bytes(content))


def _nest(dice: random.Random, schema: Any, value: Any, prefix: str) -> tuple[Any, Any]:
    if isinstance(schema, dict) and "name" in schema:
        schema = {**schema, "name": prefix + schema["name"]}
    for level in range(dice.randint(0, 3)):
        match dice.choice(["record", "array", "map", "null"]):
            case "record":
                schema, value = _record(f"{prefix}{level}", _field("x", schema)), {"x": value}
            case "array":
                schema, value = {"type": "array", "items": schema}, [value] * dice.randint(1, 3)
            case "map":
                schema, value = {"type": "map", "values": schema}, {"k": value}
            case _ if not isinstance(schema, list):
                schema = ["null", schema]
    return schema, value
