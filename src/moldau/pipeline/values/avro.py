"""Decodes values in Avro's binary encoding to a column.

The given schema is the reader's schema, which determines the columns. Records may be written with other
schemas. Such a record begins with the header of Confluent's serializers: a zero byte, then the id of the
writer's schema in four bytes, big endian. If the caller gives the writer's schema with this id, Avro's own
rules resolve the difference between the two schemas.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from moldau.pipeline.values.avro_bounds import NotAvroError, check_value
from moldau.pipeline.values.avro_columns import Shape, shape_of, type_of
from moldau.pipeline.values.avro_schemas import parse, parse_array
from moldau.pipeline.values.json import RejectedRows

MAGIC: Final = 0
HEADER_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    """The reader's schema as JSON text, and the writers' schemas by id. ``framed`` means that values begin
    with the header."""

    reader: str
    writers: Mapping[int, str]
    framed: bool

    def check(self) -> None:
        """Raises :class:`ToolError` for an invalid schema, or a schema that cannot be converted to
        columns."""
        column = avro_type(self.reader)
        for text in (self.reader, *self.writers.values()):
            parse_array(text)
            shape_of(column, parse(self.reader), parse(text))


def avro_type(text: str) -> pa.DataType:
    """The column type of an Avro schema. Raises :class:`ToolError` for a schema that has no column type."""
    return type_of(parse(text))


def decode_avro(values: pa.Array, column: pa.DataType, schemas: AvroSchemas) -> tuple[pa.Array, RejectedRows]:
    """A column with one entry for each value. The entry is null if the value is null or was rejected."""
    rejected: RejectedRows = {}
    rows: dict[str, list[int]] = {}
    bodies: dict[str, list[bytes | None]] = {}
    for row, value in enumerate(values.to_pylist()):
        writer, body = schemas.reader, None
        if value is not None:
            try:
                writer, start = _writer_of(value, schemas)
                check_value(value, start, writer)
                body = value[start:]
            except NotAvroError as error:
                rejected[row] = f"not Avro: {_text(error)}"
        rows.setdefault(writer, []).append(row)
        bodies.setdefault(writer, []).append(body)
    decoded = {
        writer: _decode(found, writer, schemas.reader, rows[writer], rejected)
        for writer, found in bodies.items()
    }
    pieces: list[pa.Array] = []
    for writer, found in decoded.items():
        shape = shape_of(column, parse(schemas.reader), parse(writer))
        _columns(found, rows[writer], column, shape, pieces, rejected)
    if not pieces:
        return pa.array([], column), rejected
    joined = pa.concat_arrays(pieces)
    if len(decoded) > 1:  # put the entries into the order of the records
        order = np.argsort(np.concatenate([np.asarray(one) for one in rows.values()]), kind="stable")
        joined = joined.take(pa.array(order))
    return joined, rejected


def _writer_of(value: bytes, schemas: AvroSchemas) -> tuple[str, int]:
    """The writer's schema of a value, and the position in the value after the header."""
    if not schemas.framed:
        return schemas.reader, 0
    if len(value) < HEADER_BYTES or value[0] != MAGIC:
        raise NotAvroError("the header with the schema's id is missing")
    if not schemas.writers:
        return schemas.reader, HEADER_BYTES
    schema_id = int.from_bytes(value[1:HEADER_BYTES], "big")
    if schema_id not in schemas.writers:
        raise NotAvroError(f"the writer's schema {schema_id} was not given")
    return schemas.writers[schema_id], HEADER_BYTES


def _decode(
    bodies: list[bytes | None], writer: str, reader: str, rows: list[int], rejected: RejectedRows
) -> list[Any]:
    """The raw values, converted to the reader's schema. ``bodies`` were checked before.

    All values are read as one array, because a call of the library costs as much as decoding a small value.
    """
    there = [body for body in bodies if body is not None]
    try:
        found = iter(_read(there, writer, reader))
        return [None if body is None else next(found) for body in bodies]
    # The library raises exceptions of many types for values that do not fit the reader's schema. The list is
    # halved until each such value is found.
    except Exception as error:
        if len(bodies) == 1:
            rejected[rows[0]] = f"not Avro: {_text(error)}"
            return [None]
        middle = len(bodies) // 2
        return [
            *_decode(bodies[:middle], writer, reader, rows[:middle], rejected),
            *_decode(bodies[middle:], writer, reader, rows[middle:], rejected),
        ]


def _read(bodies: list[bytes], writer: str, reader: str) -> list[Any]:
    if not bodies:
        return []
    block = b"%s%s\0" % (_zigzag(len(bodies)), b"".join(bodies))
    read_as = None if writer == reader else parse_array(reader)
    found: Any = fastavro.schemaless_reader(io.BytesIO(block), parse_array(writer), read_as)
    return list(found)


def _zigzag(count: int) -> bytes:
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, "long", count)
    return encoded.getvalue()


def _text(error: Exception) -> str:
    reason = " ".join(str(error).split())
    if isinstance(error, NotAvroError):
        return reason
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def _columns(
    decoded: list[Any],
    rows: list[int],
    column: pa.DataType,
    shape: Shape,
    pieces: list[pa.Array],
    rejected: RejectedRows,
) -> None:
    """Convert decoded values to columns. A value is rejected if its column cannot store it. An example is a
    decimal that is too long."""
    try:
        raw = pa.array(decoded, shape.raw)
        pieces.append(raw if shape.convert is None else shape.convert(raw))
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError, OverflowError, ValueError) as error:
        if len(decoded) == 1:
            rejected[rows[0]] = f"the column cannot hold it: {_text(error)}"
            pieces.append(pa.nulls(1, column))
            return
        middle = len(decoded) // 2
        _columns(decoded[:middle], rows[:middle], column, shape, pieces, rejected)
        _columns(decoded[middle:], rows[middle:], column, shape, pieces, rejected)
