"""Converts raw Avro values to columns, by applying logical types to whole Arrow arrays.

The writer's logical type determines the unit of a number; the reader's logical type determines the column. A
time that was written in milliseconds and is read in microseconds remains the same time. Avro itself does not
define this, and its libraries differ.
"""

import datetime
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from moldau.client.errors import ToolError
from moldau.pipeline.values.avro_schemas import RECORDS, Logical, Schema, logical_of
from moldau.pipeline.values.ddl import DECIMAL_DIGITS_MAX

_PRIMITIVE: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_EPOCH: Final = datetime.date(1970, 1, 1)
_DAYS: Final = ((datetime.date.min - _EPOCH).days, (datetime.date.max - _EPOCH).days)
_DAY_US: Final = 24 * 60 * 60 * 1_000_000
_MOMENTS_US: Final = (_DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1)

Convert = Callable[[pa.Array], pa.Array]


class Shape(NamedTuple):
    """The conversion of values to a column: the type of the raw values, and a conversion function if one is
    needed.

    The conversion raises ``pa.ArrowInvalid`` when one of the values does not fit.
    """

    raw: pa.DataType
    convert: Convert | None = None


def type_of(schema: Schema) -> pa.DataType:
    """The column type of a schema. Raises :class:`ToolError` for a schema that has no column type."""
    return _type_of(schema.root, schema, ())


def _type_of(declared: Any, schema: Schema, open_names: tuple[str, ...]) -> pa.DataType:
    found = schema.resolve(declared)
    if isinstance(found, list):
        return _type_of(_one_branch(found, schema), schema, open_names)
    if isinstance(found, str):
        return _PRIMITIVE[found]
    kind = found["type"]
    if kind in RECORDS:
        if found["name"] in open_names:
            raise ToolError(f"Avro type {found['name']} contains itself, and no column can have such a type")
        inside = (*open_names, found["name"])
        return pa.struct(
            [pa.field(one["name"], _type_of(one["type"], schema, inside)) for one in found["fields"]]
        )
    if kind == "array":
        return pa.list_(_type_of(found["items"], schema, open_names))
    if kind == "map":
        return pa.map_(pa.string(), _type_of(found["values"], schema, open_names))
    return _type_of_logical(logical_of(found)) or _PRIMITIVE[kind]


def _type_of_logical(logical: Logical | None) -> pa.DataType | None:
    if logical is None or logical.unit == "ns":
        return None  # some readers of tables do not support nanoseconds, so the column is a plain number
    match logical.family:
        case "decimal":
            if logical.precision > DECIMAL_DIGITS_MAX:
                raise ToolError(f"a column's decimals have at most {DECIMAL_DIGITS_MAX} digits")
            return pa.decimal128(logical.precision, logical.scale)
        case "date":
            return pa.date32()
        case "time":
            return pa.time64("us")
        case "timestamp":
            return pa.timestamp("us", tz="UTC")
    return pa.timestamp("us")


def _one_branch(union: list[Any], schema: Schema) -> Any:
    several = _branches(union, schema)
    if len(several) > 1:
        raise ToolError("an Avro union of several types has no column type: a column holds one type or null")
    return several[0] if several else "null"


def _branches(union: list[Any], schema: Schema) -> list[Any]:
    found = [schema.resolve(one) for one in union]
    return [one for one in found if _kind(one) != "null"]


def _kind(resolved: Any) -> str:
    return str(resolved if isinstance(resolved, str) else resolved["type"])


def shape_of(column: pa.DataType, reader: Schema, writer: Schema | None) -> Shape:
    """The conversion of the writer's values to the column. Raises :class:`ToolError` if a value has different
    meanings in the two schemas."""
    return _Shapes(reader, writer).of(column, reader.root, None if writer is None else writer.root, "value")


class _Shapes(NamedTuple):
    reader: Schema
    writer: Schema | None

    def of(self, column: pa.DataType, declared: Any, written: Any, path: str) -> Shape:
        found = self.reader.resolve(declared)
        if isinstance(found, list):
            found = _one_branch(found, self.reader)
        sources = self._sources(found, written)
        shapes = [self._of(column, found, source, path) for source in sources]
        for other in sources[1:]:
            if _meaning(sources[0]) != _meaning(other):
                raise ToolError(f"column {path}: the writer's union has several meanings for it")
        return shapes[0]

    def _sources(self, found: Any, written: Any) -> list[Any]:
        """The branches of the writer's type that can become the reader's type. The result is ``[None]`` if
        the writer's type is not known or no branch fits."""
        if written is None or self.writer is None:
            return [None]
        resolved = self.writer.resolve(written)
        several = _branches(resolved, self.writer) if isinstance(resolved, list) else [resolved]
        return [one for one in several if _fits(one, found)] or [None]

    def _of(self, column: pa.DataType, found: Any, source: Any, path: str) -> Shape:
        kind = _kind(found)
        if kind in RECORDS:
            return self._of_record(column, found, source, path)
        if kind == "array":
            inside = self.of(column.value_type, found["items"], _part(source, "items"), f"{path}.element")
            return _list_shape(column, inside)
        if kind == "map":
            inside = self.of(column.item_type, found["values"], _part(source, "values"), f"{path}.value")
            return _map_shape(column, inside)
        return _leaf(column, kind, logical_of(found), logical_of(source), path)

    def _of_record(self, column: pa.DataType, record: Any, source: Any, path: str) -> Shape:
        fields = {one["name"]: one for one in record["fields"]}
        written = {one["name"]: one["type"] for one in (source or {}).get("fields", ())}
        shapes: list[Shape] = []
        for one in column:
            field = fields.get(one.name)
            if field is None:  # the table has a column that the schema does not have
                shapes.append(Shape(one.type))
                continue
            names = [one.name, *field.get("aliases", ())]
            there = next((written[name] for name in names if name in written), None)
            shapes.append(self.of(one.type, field["type"], there, f"{path}.{one.name}"))
        raw = pa.struct([pa.field(one.name, shape.raw) for one, shape in zip(column, shapes, strict=True)])
        if all(shape.convert is None for shape in shapes):
            return Shape(raw)

        def convert(array: pa.Array) -> pa.Array:
            # ``flatten`` makes the fields of null structs null. Without ``flatten``, these fields contain
            # empty values.
            parts = [
                part if shape.convert is None else shape.convert(part)
                for part, shape in zip(array.flatten(), shapes, strict=True)
            ]
            return pa.StructArray.from_arrays(parts, fields=list(column), mask=array.is_null())

        return Shape(raw, convert)


def _part(source: Any, name: str) -> Any:
    return None if source is None else source[name]


def _meaning(source: Any) -> Any:
    """A key for the meaning of a type. If two branches of the writer match one type of the reader, their keys
    must be equal."""
    return logical_of(source) if _kind(source) in _PRIMITIVE else id(source)


def _fits(written: Any, found: Any) -> bool:
    kind, wanted = _kind(written), _kind(found)
    if kind != wanted:
        return wanted in _PROMOTED.get(kind, ())
    if kind in (*RECORDS, "enum", "fixed"):
        name = _unqualified(written["name"])
        return name in (_unqualified(one) for one in (found["name"], *found.get("aliases", ())))
    return True


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _list_shape(column: pa.DataType, inside: Shape) -> Shape:
    convert = inside.convert
    if convert is None:
        return Shape(pa.list_(inside.raw))
    return Shape(
        pa.list_(inside.raw),
        lambda array: pa.ListArray.from_arrays(
            array.offsets, convert(array.values), type=column, mask=array.is_null()
        ),
    )


def _map_shape(column: pa.DataType, inside: Shape) -> Shape:
    convert = inside.convert
    raw = pa.map_(pa.string(), inside.raw)
    if convert is None:
        return Shape(raw)
    return Shape(
        raw,
        lambda array: pa.MapArray.from_arrays(
            array.offsets, array.keys, convert(array.items), type=column, mask=array.is_null()
        ),
    )


def _leaf(
    column: pa.DataType, kind: str, wanted: Logical | None, written: Logical | None, path: str
) -> Shape:
    if wanted is None:
        return Shape(column)
    source = written or wanted
    if source.family != wanted.family:
        raise ToolError(
            f"column {path}: a {source.family} was written, which is not read as a {wanted.family}"
        )
    raw = _PRIMITIVE[kind]
    match wanted.family:
        case "decimal":
            return Shape(raw, lambda array: _decimals(array, source.scale, column))
        case "date":
            return Shape(raw, lambda array: _within(array, _DAYS, "a date").cast(column))
        case "time":
            return Shape(raw, lambda array: _times(array, source.unit, column))
    if wanted.unit == "ns":
        return Shape(raw, lambda array: _moments(array, source.unit, "ns"))
    return Shape(
        raw,
        lambda array: _within(_moments(array, source.unit, "us"), _MOMENTS_US, "a timestamp").cast(column),
    )


def _moments(array: pa.Array, source: str, unit: str) -> pa.Array:
    """Convert numbers to another unit. Raises an error for values that the unit cannot represent exactly."""
    return array.cast(pa.timestamp(source)).cast(pa.timestamp(unit)).cast(pa.int64())


def _times(array: pa.Array, source: str, column: pa.DataType) -> pa.Array:
    numbers = array.cast(pa.int64())
    if source == "ms":
        numbers = pc.multiply_checked(numbers, 1000)
    return _within(numbers, (0, _DAY_US - 1), "a time of day").cast(column)


def _within(array: pa.Array, bounds: tuple[int, int], meaning: str) -> pa.Array:
    """Reject times that readers of tables do not support. Such readers support the years 1 to 9999 and days
    of 24 hours."""
    ends = pc.min_max(array)
    for end in (ends["min"].as_py(), ends["max"].as_py()):
        if end is not None and not bounds[0] <= end <= bounds[1]:
            raise pa.ArrowInvalid(f"{end} is beyond the range of {meaning}")
    return array


def _decimals(array: pa.Array, scale: int, column: pa.DataType) -> pa.Array:
    """Make decimals from their unscaled numbers. The bytes of such a number are in two's complement, big
    endian."""
    if pc.any(pc.equal(pc.binary_length(array), 0)).as_py():
        raise pa.ArrowInvalid("a decimal has no bytes")
    digits = [None if one is None else int.from_bytes(one, "big", signed=True) for one in array.to_pylist()]
    unscaled = pa.array(digits, pa.decimal128(DECIMAL_DIGITS_MAX, 0))
    scaled = pa.Array.from_buffers(
        pa.decimal128(DECIMAL_DIGITS_MAX, scale), len(unscaled), unscaled.buffers(), unscaled.null_count
    )
    return scaled.cast(column)
