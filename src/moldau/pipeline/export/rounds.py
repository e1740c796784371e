"""Input and result of a round of an export."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from moldau.pipeline.export.progress import Covered, NextRound, next_round
from moldau.pipeline.export.replaying import InferUnits, inferred
from moldau.pipeline.export.units import WrittenUnit
from moldau.pipeline.reading.planning import OffsetRange, split
from moldau.pipeline.reading.topic_source import Bounds, TopicSource
from moldau.pipeline.unit_runs import Lag, RunUnits
from moldau.pipeline.values.column_changes import ColumnChange
from moldau.pipeline.values.formats import RAW, ValueFormat, ValueKind, evolved


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The input of one round. It is the same for any kind of table."""

    source: TopicSource
    find_bounds: Callable[[], Bounds]
    run: RunUnits
    unit_records_max: int
    values: ValueFormat = RAW
    """The format of values. For JSON without given columns, the columns are found in the values."""
    find_starts: Callable[[Bounds], Mapping[int, int]] | None = None
    """Finds the offset at which the table starts in each partition. ``None`` means that the table starts at
    the first record."""
    lag: Lag = field(default_factory=Lag)
    changes: Sequence[ColumnChange] = ()
    """Columns whose type changes in a replay."""

    def next_round(self, covered: Covered, bounds: Bounds) -> NextRound:
        starts = None if self.find_starts is None else self.find_starts(bounds)
        found = next_round(self.source.topic, covered, bounds, starts, may_lose=self.source.may_lose)
        self.lag.records = sum(one.end - one.start for one in found.ranges)
        return found

    def units(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        return split(ranges, self.unit_records_max)

    def format_of(
        self, table: ValueFormat | None, units: Sequence[OffsetRange], where: str, *, promote: bool = False
    ) -> ValueFormat:
        """The table's format after this round. Raises ``ToolError`` when the table cannot change to that
        format.

        ``promote`` means that the table's readers support columns that got a wider type.
        """
        wanted = evolved(table, self.values, where, promote=promote)
        if self.values.kind is ValueKind.JSON and not self.values.columns:
            if units:
                wanted = inferred(wanted, self.run(InferUnits(self.source), units))
            # A replay has no units, so it finds no new columns. If the user has not declared the columns, a
            # value must fit them completely. A value that has a member without a column is rejected, because
            # a part of it would be lost.
            elif table is not None:
                wanted = replace(wanted, declared=table.declared, whole=not table.declared)
        for change in self.changes:
            wanted = change.apply(wanted, where, promote=promote)
        return wanted


class RoundOutcome(NamedTuple):
    """Files that a round added, and the offsets that the table covers after the round."""

    written: list[WrittenUnit]
    covered: Covered
    dead_letters: str = ""
    """The place of the records that could not be decoded: a table or a folder."""
    dead_letters_left: int = 0
    """After a replay: the number of dead letters that still cannot be decoded."""
