"""The rows of a unit: records with the query's columns, or batches for a JVM that decodes records itself."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import StructType

from moldau.client.errors import ToolError
from moldau.pipeline.source.batch_rows import BatchRows, are_batch_columns
from moldau.pipeline.source.columns import QueryColumns
from moldau.pipeline.source.filters import NumberBounds
from moldau.pipeline.source.options import DECODE_IN, JVM, SourceOptions
from moldau.pipeline.source.units import UnitPartition
from moldau.pipeline.tasks import one_line_errors, settle


class UnitRows:
    """Reads units with the columns of a query. Raises :class:`ToolError` for unknown columns."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._rows = _rows_of(schema, options)

    @property
    def are_batches(self) -> bool:
        """Whether a JVM decodes the records."""
        return isinstance(self._rows, BatchRows)

    def read(self, partition: Any, timestamp_us: NumberBounds | None = None) -> Iterator[Any]:
        """Read a unit. ``None`` gives an empty result, because Spark passes ``None`` if the list of
        partitions is empty."""
        if isinstance(partition, UnitPartition):
            settle()
            with one_line_errors():
                yield from self._rows.read(partition.source, partition.unit, timestamp_us or NumberBounds())


def _rows_of(schema: StructType, options: SourceOptions) -> BatchRows | QueryColumns:
    if are_batch_columns(schema):
        return BatchRows()
    columns = QueryColumns(schema)
    if options.decode_in == JVM:
        raise ToolError(
            f"option {DECODE_IN!r} is jvm, but Python would decode the records: the session has no"
            " moldau-spark.jar, or .schema(...) gives a column another type, or the format is not written as"
            " 'moldau'"
        )
    return columns
