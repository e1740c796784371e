"""``spark.readStream.format("moldau")`` under Spark 4.0 and 4.1.

These versions ask a reader for the ends of topics, but do not pass it the query's position and trigger. The
reader gets the position when Spark asks it to plan a batch. After a restart from a checkpoint, it gets the
position when Spark asks it to plan an empty range. Before the first batch of a new query it has no position.
With ``availableNow`` it never has a position. A batch without a position includes all records, despite
``maxOffsetsPerTrigger``. Therefore ``availableNow`` reads everything in one batch.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from moldau.pipeline.source.options import SourceOptions
from moldau.pipeline.source.stream_offsets import StreamOffsets
from moldau.pipeline.source.stream_plan import StreamPlanner
from moldau.pipeline.source.unit_rows import UnitRows
from moldau.pipeline.spark_versions import note_missing
from moldau.pipeline.tasks import one_line_errors


class MoldauOlderStreamReader(DataSourceStreamReader):
    """Plans batches in one process, and reads their units in tasks. The tasks do not see the state of the
    planning process."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._planner = StreamPlanner(options)
        self._rows = UnitRows(schema, options)
        self._position: StreamOffsets | None = None
        """The end of the last planned batch."""
        self._first_end: StreamOffsets | None = None
        """The offsets that were reported before the position was known."""

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:
        starts = self._planner.initial()
        if self._first_end is not None:  # no start offset may be above the end of the first batch
            ends = self._first_end.offsets
            offsets = {at: min(start, ends[at]) for at, start in starts.offsets.items() if at in ends}
            starts = replace(starts, offsets=offsets)
        return starts.to_json()

    @one_line_errors()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as these versions call it
        ends = self._planner.latest()
        limit = self._planner.limit
        if self._position is None:
            if limit is not None:
                note_missing(
                    "maxOffsetsPerTrigger does not limit the first batch of a new query,"
                    " nor batches of trigger(availableNow=True)",
                    "4.2",
                )
            self._first_end = ends
            return ends.to_json()
        return self._planner.end_of_batch(self._position, ends, limit).to_json()

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
        if after == self._first_end:
            self._planner.check_gone(before, after)
        self._position = after
        return self._planner.partitions(before, after)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._rows.read(partition)
