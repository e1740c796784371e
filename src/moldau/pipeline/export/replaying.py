"""Dead letters that are decoded once more, in tasks; and the columns that a round's values have."""

import os
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from moldau.pipeline.export.targets import TableFolder
from moldau.pipeline.export.units import (
    Written,
    described,
    read,
    read_dead_letters,
    write_attempt,
    write_named,
)
from moldau.pipeline.reading.planning import OffsetRange, Source
from moldau.pipeline.values.evolution import add_columns, storable
from moldau.pipeline.values.formats import ValueFormat
from moldau.pipeline.values.json import infer_json
from moldau.runtime.entropy import SystemEntropy

NO_UNIT: Final = OffsetRange(-1, 0, 0)
LEVELS_MAX: Final = 30
"""Of columns that are found: readers of Parquet and of Iceberg's metadata give up at some depth."""


@dataclass(frozen=True, slots=True)
class ReplayNames:
    """Replays files of dead letters of a plain folder: what decodes, and what is left, get fixed names.

    ``name`` of a unit is a file in ``dead_folder``; what is left goes to ``left_folder`` under the same
    name, empty or not: it says that the unit is done.
    """

    folder: str
    scratch: str
    dead_folder: str
    left_folder: str
    number: int
    """Of the plan."""
    values: ValueFormat

    def __call__(self, name: str) -> Written:
        final = os.path.join(
            self.folder, f"{name.removesuffix('.parquet')}-replay-{self.number:010d}.parquet"
        )
        left = os.path.join(self.left_folder, name)
        if not os.path.exists(left):
            with open(os.path.join(self.dead_folder, name), "rb") as file:
                write_named(read_dead_letters(file, self.values), self, final, left, last_is_dead=True)
        return described(NO_UNIT, final, left)


@dataclass(frozen=True, slots=True)
class ReplayAttempts:
    """Replays files of dead letters, into names that no other attempt has."""

    folder: TableFolder
    dead_folder: TableFolder
    values: ValueFormat

    def __call__(self, location: str) -> Written:
        with self.dead_folder.open(location) as file:
            return write_attempt(
                NO_UNIT, f"replay-{SystemEntropy().uuid4()}", self, read_dead_letters(file, self.values)
            )


@dataclass(frozen=True, slots=True)
class InferUnits:
    """The columns of a unit's JSON values."""

    source: Source

    def __call__(self, unit: OffsetRange) -> pa.DataType:
        found: pa.DataType | None = pa.struct([])
        for records in read(self.source, unit, {"value"}):
            found = add_columns(found, infer_json(records.column("value")), keep=True, widen=True)
        return found


def inferred(wanted: ValueFormat, table: ValueFormat | None, found: list[pa.DataType]) -> ValueFormat:
    """The format with the columns that the table has and those that were found, first come first served."""
    columns: pa.DataType | None = None
    for one in found:
        columns = add_columns(columns, one, keep=True, widen=True)
    old = None if table is None else table.type
    return wanted.with_type(storable(add_columns(old, storable(columns, LEVELS_MAX), keep=True)))
