"""``spark.readStream.format("moldau")`` under Spark 4.2 and newer. In these versions Spark passes the start
of a batch to readers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from moldau.pipeline.source.options import SourceOptions
from moldau.pipeline.source.stream_offsets import StreamOffsets
from moldau.pipeline.source.stream_plan import StreamPlanner
from moldau.pipeline.source.unit_rows import UnitRows
from moldau.pipeline.tasks import one_line_errors


class MoldauStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process, and reads their units in tasks. The tasks do not see the state of the
    planning process."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._planner = StreamPlanner(options)
        self._rows = UnitRows(schema, options)
        self._target: StreamOffsets | None = None
        """The end of a query that reads only the existing records."""

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:
        starts = self._planner.initial()
        if self._target is not None:  # skip partitions that were added after the end was set
            known = self._target.offsets
            starts = replace(
                starts, offsets={at: start for at, start in starts.offsets.items() if at in known}
            )
        return starts.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._planner.limit
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @one_line_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.latest()

    @one_line_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.latest().to_json()

    @one_line_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = StreamOffsets.from_json(start)
        ends = self._target or self._planner.latest()
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # A query that reads only the existing records must not wait, because it would wait forever.
        may_wait = self._target is None
        return self._planner.end_of_batch(before, ends, records_max, may_wait=may_wait).to_json()

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._planner.partitions(StreamOffsets.from_json(start), StreamOffsets.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._rows.read(partition)
