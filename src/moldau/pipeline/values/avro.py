"""Values in Avro's binary encoding, as a column.

The schema that is given is the reader's: it makes the columns. Records that were written with others name
them by the id in the header that Confluent's serializers write (a zero byte, then four bytes, big endian);
where the writer's schema of an id is given, too, Avro's own rules resolve the difference.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from moldau.client.errors import ToolError
from moldau.pipeline.values.ddl import DECIMAL_DIGITS_MAX
from moldau.pipeline.values.json import Rejected

MAGIC: Final = 0
HEADER_BYTES: Final = 5
_PRIMITIVE: Final = {
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
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    """The reader's schema as JSON text, and writers' schemas by id. ``framed``: values have the header."""

    reader: str
    writers: Mapping[int, str]
    framed: bool

    def check(self) -> None:
        """Raises :class:`ToolError` for a schema that is none, or has no columns here."""
        for text in (self.reader, *self.writers.values()):
            _parsed(text)
        avro_type(self.reader)


@cache
def _parsed(text: str) -> Any:
    try:
        return fastavro.parse_schema(_known_logical_types(json.loads(text)))
    except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError) as error:
        raise ToolError(f"this is no Avro schema: {type(error).__name__}: {error}") from error


def _known_logical_types(schema: Any) -> Any:
    """Without logical types that would become objects no column takes (uuid stays text)."""
    if isinstance(schema, list):
        return [_known_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kind, logical = str(schema.get("type")), schema.get("logicalType")
    known = logical == "decimal" or (kind, logical) in _LOGICAL
    return {
        name: _known_logical_types(one) if name in ("type", "items", "values", "fields") else one
        for name, one in schema.items()
        if name != "logicalType" or known
    }


def avro_type(text: str) -> pa.DataType:
    """The column type of an Avro schema. Raises :class:`ToolError` for what has none."""
    return _type_of(_parsed(text), {}, ())


def _type_of(schema: Any, named: dict[str, Any], open_names: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, list):
        return _type_of_union(schema, named, open_names)
    if isinstance(schema, str):
        if schema in open_names:
            raise ToolError(f"Avro type {schema} contains itself, which no column can")
        return _PRIMITIVE[schema] if schema in _PRIMITIVE else _type_of(named[schema], named, open_names)
    kind = schema["type"]
    if not isinstance(kind, str):
        return _type_of(kind, named, open_names)
    if "name" in schema:
        named[schema["name"]] = schema
    match kind:
        case "record" | "error":
            inside = (*open_names, schema["name"])
            return pa.struct(
                [pa.field(one["name"], _type_of(one["type"], named, inside)) for one in schema["fields"]]
            )
        case "array":
            return pa.list_(_type_of(schema["items"], named, open_names))
        case "map":
            return pa.map_(pa.string(), _type_of(schema["values"], named, open_names))
    logical = schema.get("logicalType")
    if logical == "decimal":
        if schema["precision"] > DECIMAL_DIGITS_MAX:
            raise ToolError(f"a column's decimals have at most {DECIMAL_DIGITS_MAX} digits")
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    found = _LOGICAL.get((kind, logical)) or _PRIMITIVE.get(kind)
    if found is None:
        return _type_of(kind, named, open_names)
    return found


def _type_of_union(schema: list[Any], named: dict[str, Any], open_names: tuple[str, ...]) -> pa.DataType:
    several = [one for one in schema if one != "null" and not _is_null(one)]
    if len(several) != 1:
        raise ToolError("an Avro union of several types has no column type: a column holds one type or null")
    return _type_of(several[0], named, open_names)


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def decode_avro(values: pa.Array, column: pa.DataType, schemas: AvroSchemas) -> tuple[pa.Array, Rejected]:
    """A value for each, null for null and for what is rejected."""
    decoded: list[Any] = []
    rejected: Rejected = {}
    for row, value in enumerate(values.to_pylist()):
        found = None
        if value is not None:
            try:
                found = _decode(value, schemas)
            # The library raises what it happens to meet in bytes that are no Avro.
            except Exception as error:
                rejected[row] = f"not Avro: {_text(error)}"
        decoded.append(found)
    pieces: list[pa.Array] = []
    _columns(decoded, 0, column, pieces, rejected)
    return pa.concat_arrays(pieces) if pieces else pa.array([], column), rejected


class _NotAvroError(ValueError):
    pass


def _decode(value: bytes, schemas: AvroSchemas) -> Any:
    reader = _parsed(schemas.reader)
    writer = reader
    stream = io.BytesIO(value)
    if schemas.framed:
        header = stream.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or header[0] != MAGIC:
            raise _NotAvroError("the header with the schema's id is missing")
        schema_id = int.from_bytes(header[1:], "big")
        if schemas.writers:
            if schema_id not in schemas.writers:
                raise _NotAvroError(f"the writer's schema {schema_id} was not given")
            writer = _parsed(schemas.writers[schema_id])
    found = fastavro.schemaless_reader(stream, writer, None if writer is reader else reader)
    if left := len(value) - stream.tell():
        raise _NotAvroError(f"{left} bytes are left behind the record")
    return found


def _text(error: Exception) -> str:
    reason = " ".join(str(error).split())
    if isinstance(error, _NotAvroError):
        return reason
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def _columns(
    decoded: list[Any], first: int, column: pa.DataType, pieces: list[pa.Array], rejected: Rejected
) -> None:
    """What Python has and a column cannot hold (a decimal that is too long) is rejected, too."""
    if not decoded:
        return
    try:
        pieces.append(pa.array(decoded, column))
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError, OverflowError, ValueError) as error:
        if len(decoded) == 1:
            rejected[first] = f"the column cannot hold it: {_text(error)}"
            pieces.append(pa.nulls(1, column))
            return
        middle = len(decoded) // 2
        _columns(decoded[:middle], first, column, pieces, rejected)
        _columns(decoded[middle:], first + middle, column, pieces, rejected)
