"""Formats of the column ``value``: bytes, or columns decoded from JSON or Avro."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.client.errors import ToolError
from moldau.pipeline.reading.decoding import SCHEMA
from moldau.pipeline.values.avro import AvroSchemas, avro_type, decode_avro
from moldau.pipeline.values.ddl import parse_ddl, render_ddl
from moldau.pipeline.values.evolution import add_columns, storable
from moldau.pipeline.values.json import check_json_columns, decode_json
from moldau.pipeline.values.json_rows import Seconds

REASON: Final = "reason"
DEAD_LETTER_SCHEMA: Final = SCHEMA.append(pa.field(REASON, pa.string()))
"""Arrow schema of dead letters: the undecoded record, and the reason."""
_VALUE: Final = SCHEMA.names.index("value")


class ValueKind(enum.StrEnum):
    """Encoding of values."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """The conversion of values to a column. It is sent to the tasks, and stored with the plan.

    ``columns`` is the type of the table's column ``value``, as DDL of one column. It is empty for raw values.
    It is also empty while the type is unknown; the table then has no column ``value``.
    """

    kind: ValueKind = ValueKind.RAW
    columns: str = ""
    reader: str = ""
    """Avro's reader schema, as JSON."""
    writers: Mapping[int, str] = field(default_factory=dict)
    framed: bool = False
    declared: bool = False
    """Whether the user gave the columns for JSON. If so, members without a column are ignored."""
    whole: bool = False
    """Whether the JSON of this round has members without a column, or names that differ only in case. If so,
    each value is checked, and is rejected if only a part of it could be stored."""
    seconds: Seconds = field(default_factory=dict)
    """Additional columns of JSON members. They store the values that do not fit the first column of the
    member."""

    @property
    def type(self) -> pa.DataType | None:
        return parse_ddl(self.columns).field(0).type if self.columns else None

    @property
    def of_table(self) -> "ValueFormat":
        """The format without the settings that are only for a single round."""
        return replace(self, whole=False)

    def with_type(self, found: pa.DataType | None) -> "ValueFormat":
        columns = "" if found is None else render_ddl(pa.struct([pa.field("value", found)]))
        return replace(self, columns=columns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table."""
        if self.kind is ValueKind.RAW:
            return SCHEMA
        found = self.type
        return SCHEMA.remove(_VALUE) if found is None else SCHEMA.set(_VALUE, pa.field("value", found))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "columns": self.columns,
            "reader": self.reader,
            "writers": {str(number): text for number, text in self.writers.items()},
            "framed": self.framed,
            "declared": self.declared,
            "whole": self.whole,
            "seconds": [[list(path), list(names)] for path, names in self.seconds.items()],
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "ValueFormat":
        return cls(
            kind=ValueKind(found["kind"]),
            columns=found["columns"],
            reader=found["reader"],
            writers={int(number): text for number, text in found["writers"].items()},
            framed=found["framed"],
            declared=found.get("declared", False),
            whole=found.get("whole", False),
            seconds={tuple(path): tuple(names) for path, names in found.get("seconds", ())},
        )


RAW: Final = ValueFormat()


def json_format(schema: str | None) -> ValueFormat:
    """The format for JSON, with the given columns (DDL) or the columns that are found. Raises
    :class:`ToolError`.
    """
    if schema is None:
        return ValueFormat(ValueKind.JSON)
    wanted = ValueFormat(ValueKind.JSON, declared=True)
    columns = parse_ddl(schema)
    check_json_columns(columns)
    return wanted.with_type(columns)


def avro_format(schema: str, writers: Mapping[int, str], *, framed: bool) -> ValueFormat:
    """The format for Avro with the reader's schema (JSON text). Raises :class:`ToolError`."""
    AvroSchemas(schema, writers, framed).check()
    wanted = ValueFormat(ValueKind.AVRO, reader=schema, writers=dict(writers), framed=framed)
    return wanted.with_type(storable(avro_type(schema)))


def evolved(
    table: ValueFormat | None, wanted: ValueFormat, where: str, *, promote: bool = False
) -> ValueFormat:
    """The requested format, with the table's columns and the new columns.

    With ``promote``, columns may also become wider, by Iceberg's rules.

    Raises :class:`ToolError` if the table's values have another encoding, or if a column's type must change
    in another way.
    """
    if table is None or wanted.kind is ValueKind.RAW is table.kind:
        return wanted
    if table.kind is not wanted.kind:
        raise ToolError(f"{where} was exported with --value {table.kind}, not {wanted.kind}")
    columns = add_columns(table.type, wanted.type, promote=promote)
    return replace(wanted.with_type(columns), seconds=table.seconds)


class Decoded(NamedTuple):
    """Records that go to the table, and records that could not be decoded."""

    good: pa.RecordBatch
    dead: pa.RecordBatch | None


def decode_values(records: pa.RecordBatch, wanted: ValueFormat) -> Decoded:
    """Convert records of ``SCHEMA`` to the columns of the table."""
    if wanted.kind is ValueKind.RAW:
        return Decoded(records, None)
    values = records.column(_VALUE)
    column_type = wanted.type or pa.struct([])
    if wanted.kind is ValueKind.JSON:
        column, rejected = decode_json(values, column_type, whole=wanted.whole, seconds=wanted.seconds)
    else:
        schemas = AvroSchemas(wanted.reader, wanted.writers, wanted.framed)
        column, rejected = decode_avro(values, column_type, schemas)
    columns = list(records.columns)
    if wanted.columns:
        columns[_VALUE] = column
    else:
        del columns[_VALUE]
    good = pa.RecordBatch.from_arrays(columns, schema=wanted.schema)
    if not rejected:
        return Decoded(good, None)
    is_good = np.ones(len(values), np.bool_)
    is_good[list(rejected)] = False
    dead = records.filter(pa.array(~is_good))
    reasons = pa.array([rejected[row] for row in sorted(rejected)], pa.string())
    return Decoded(
        good.filter(pa.array(is_good)),
        pa.RecordBatch.from_arrays([*dead.columns, reasons], schema=DEAD_LETTER_SCHEMA),
    )


def fit(found: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert dead letters from a file to records again."""
    return found.select(schema.names).cast(schema)


def render_format(wanted: ValueFormat) -> str:
    """Return the table's format as text, without the settings that are only for a single round."""
    return json.dumps(wanted.of_table.to_json(), sort_keys=True)
