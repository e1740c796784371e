"""Decodes values in Avro's binary encoding to a column.

The given schema is the reader's schema, which determines the columns. Records may be written with other
schemas. They then name the writer's schema by its id in the header of Confluent's serializers (a zero byte,
then four bytes, big endian). If the writer's schema of an id is given, too, Avro's own rules resolve the
difference.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from moldau.pipeline.values.avro_bounds import BeyondBoundsError, check_bounds, needs_bounds
from moldau.pipeline.values.avro_columns import Shape, shape_of, type_of
from moldau.pipeline.values.avro_schemas import parse, parse_raw
from moldau.pipeline.values.json import Rejected

MAGIC: Final = 0
HEADER_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class AvroSchemas:
    """The reader's schema as JSON text, and writers' schemas by id. ``framed`` means that values have the
    header.
    """

    reader: str
    writers: Mapping[int, str]
    framed: bool

    def check(self) -> None:
        """Raises :class:`ToolError` for an invalid schema, or a schema that cannot become columns."""
        column = avro_type(self.reader)
        for text in (self.reader, *self.writers.values()):
            parse_raw(text)
            shape_of(column, parse(self.reader), parse(text))


def avro_type(text: str) -> pa.DataType:
    """The column type of an Avro schema. Raises :class:`ToolError` for a schema that has no column type."""
    return type_of(parse(text))


def decode_avro(values: pa.Array, column: pa.DataType, schemas: AvroSchemas) -> tuple[pa.Array, Rejected]:
    """A column with one entry for each value. The entry is null if the value is null or was rejected."""
    rejected: Rejected = {}
    rows: dict[str, list[int]] = {}
    decoded: dict[str, list[Any]] = {}
    for row, value in enumerate(values.to_pylist()):
        writer, found = schemas.reader, None
        if value is not None:
            try:
                writer, found = _decode(value, schemas)
            # The library raises various errors for bytes that are not Avro.
            except Exception as error:
                rejected[row] = f"not Avro: {_text(error)}"
        rows.setdefault(writer, []).append(row)
        decoded.setdefault(writer, []).append(found)
    pieces: list[pa.Array] = []
    for writer, found in decoded.items():
        shape = shape_of(column, parse(schemas.reader), parse(writer))
        _columns(found, rows[writer], column, shape, pieces, rejected)
    if not pieces:
        return pa.array([], column), rejected
    joined = pa.concat_arrays(pieces)
    if len(decoded) > 1:  # back into the order of the records
        order = np.argsort(np.concatenate([np.asarray(one) for one in rows.values()]), kind="stable")
        joined = joined.take(pa.array(order))
    return joined, rejected


class _NotAvroError(ValueError):
    pass


def _decode(value: bytes, schemas: AvroSchemas) -> tuple[str, Any]:
    """The writer's schema, and the raw value in the form of the reader's schema."""
    writer = schemas.reader
    stream = io.BytesIO(value)
    if schemas.framed:
        header = stream.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or header[0] != MAGIC:
            raise _NotAvroError("the header with the schema's id is missing")
        schema_id = int.from_bytes(header[1:], "big")
        if schemas.writers:
            if schema_id not in schemas.writers:
                raise _NotAvroError(f"the writer's schema {schema_id} was not given")
            writer = schemas.writers[schema_id]
    if needs_bounds(writer):
        check_bounds(value, stream.tell(), writer)
    reader = None if writer == schemas.reader else parse_raw(schemas.reader)
    found = fastavro.schemaless_reader(stream, parse_raw(writer), reader)
    if left := len(value) - stream.tell():
        raise _NotAvroError(f"{left} bytes are left behind the record")
    return writer, found


def _text(error: Exception) -> str:
    reason = " ".join(str(error).split())
    if isinstance(error, (_NotAvroError, BeyondBoundsError)):
        return reason
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def _columns(
    decoded: list[Any],
    rows: list[int],
    column: pa.DataType,
    shape: Shape,
    pieces: list[pa.Array],
    rejected: Rejected,
) -> None:
    """A value that a column cannot store (for instance a decimal that is too long) is rejected, too."""
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
