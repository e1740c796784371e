"""Tasks that decode dead letters again, and tasks that find the columns of a round's values."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from moldau.pipeline.export.layout import ExportLayout
from moldau.pipeline.export.targets import TableFolder, writing_to
from moldau.pipeline.export.units import (
    Files,
    WrittenUnit,
    described,
    read,
    read_dead_letters,
    write_attempt,
    write_named,
)
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.values.formats import ValueFormat
from moldau.pipeline.values.json import find_json
from moldau.pipeline.values.json_inference import FoundValues, columns_of
from moldau.runtime.entropy import SystemEntropy

NO_UNIT: Final = OffsetRange(-1, 0, 0)


@dataclass(frozen=True, slots=True)
class ReplayNames:
    """Replays dead letters of a folder of Parquet files. The replay of a file makes two files, whose names
    depend only on the replayed file and the plan.

    A unit is the name of a file in ``dead_folder``. The remaining dead letters go to ``left_folder``, into a
    file with the same name. That file is written even if it is empty, because it marks the unit as done.
    """

    folder: str
    scratch: str
    dead_folder: str
    left_folder: str
    number: int
    """The number of the replay's plan."""
    values: ValueFormat

    def __call__(self, name: str) -> WrittenUnit:
        final = os.path.join(
            self.folder, f"{name.removesuffix('.parquet')}-replay-{self.number:010d}.parquet"
        )
        left = os.path.join(self.left_folder, name)
        if not os.path.exists(left):
            with writing_to(self.folder), open(os.path.join(self.dead_folder, name), "rb") as file:
                write_named(read_dead_letters(file, self.values), self, final, left, last_is_dead=True)
        return described(NO_UNIT, final, left)


@dataclass(frozen=True, slots=True)
class ReplayAttempts:
    """Replays files of dead letters. Each attempt gives its results unique names."""

    folder: TableFolder
    dead_folder: TableFolder
    values: ValueFormat
    layout: ExportLayout

    def __call__(self, location: str) -> Files:
        with self.dead_folder.open(location) as file:
            return write_attempt(
                NO_UNIT, f"replay-{SystemEntropy().uuid4()}", self, read_dead_letters(file, self.values)
            )


@dataclass(frozen=True, slots=True)
class InferUnits:
    """Counts the types in a unit's JSON values."""

    source: TopicSource

    def __call__(self, unit: OffsetRange) -> FoundValues:
        found = FoundValues()
        for records in read(self.source, unit, {"value"}):
            find_json(records.column("value"), found)
        return found.finish()


def inferred(wanted: ValueFormat, found: Iterable[FoundValues]) -> ValueFormat:
    """The format with the table's columns and the newly found columns."""
    together = FoundValues()
    for one in found:
        together.merge(one)
    reserved = {(*path[:-1], name) for path, names in wanted.seconds.items() for name in names}
    columns, odd = columns_of(together, wanted.type, frozenset(reserved))
    return replace(wanted.with_type(columns), whole=odd)
