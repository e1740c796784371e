"""The columns of a topic in Spark. Batches of records are converted to Arrow record batches with the query's
schema. Each Arrow batch has about one MiB."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from moldau.client.errors import ToolError
from moldau.pipeline.reading.decoding import SCHEMA, decode_found
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.source.filters import NumberBounds
from moldau.pipeline.source.unit_batches import batches_of_unit
from moldau.pipeline.spark_versions import arrow_schema

_COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING NOT NULL, partition INT NOT NULL, offset LONG NOT NULL,"
    " timestamp TIMESTAMP NOT NULL, timestampType INT NOT NULL"
)
_HEADERS_COLUMN: Final = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
ROWS_BYTES: Final = 1024 * 1024
"""Number of decoded bytes that are passed to Spark at a time. Spark is fastest with this size."""
TOPIC: Final = "topic"


def schema_of_a_topic(*, with_headers: bool) -> str:
    """The columns that ``format("moldau")`` returns, in Spark's DDL. Their names are those of Spark's Kafka
    connector."""
    return f"{_COLUMNS}, {_HEADERS_COLUMN}" if with_headers else _COLUMNS


class QueryColumns:
    """Reads units and converts them to a query's schema. Raises :class:`ToolError` for unknown columns."""

    def __init__(self, schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        for name in self._schema.names:
            if name != TOPIC and name not in SCHEMA.names:
                raise ToolError(f"a topic has no column {name!r}")

    def read(
        self, source: TopicSource, unit: Sequence[OffsetRange], timestamp_us: NumberBounds
    ) -> Iterator[Any]:
        """The unit's records whose timestamps are within the limits, as record batches."""
        wanted = set(self._schema.names)
        bounded = timestamp_us != NumberBounds()
        if bounded:
            wanted.add("timestamp")
        topics = pa.array([], pa.string())
        for found in decode_found(batches_of_unit(source, unit), unit, wanted):
            rows = _within(found, timestamp_us) if bounded else found
            if len(topics) < rows.num_rows:
                topics = pa.repeat(pa.scalar(source.topic), rows.num_rows)
            shaped = self._shape(rows, topics)
            count = max(1, shaped.num_rows * ROWS_BYTES // max(1, shaped.nbytes))
            for start in range(0, shaped.num_rows, count):
                yield shaped.slice(start, count)

    def _shape(self, rows: Any, topics: Any) -> Any:
        """The query's columns, in the order of the query. ``topics`` contains the topic's name at least once
        for each row."""
        columns = []
        for field in self._schema:
            column = topics.slice(0, rows.num_rows) if field.name == TOPIC else rows.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        if not columns:  # a query that only counts rows needs no column
            return rows
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _within(rows: Any, span: NumberBounds) -> Any:
    times = rows.column("timestamp").view(pa.int64())
    if span.start is not None:
        rows = rows.filter(pc.greater_equal(times, span.start))
        times = rows.column("timestamp").view(pa.int64())
    if span.end is not None:
        rows = rows.filter(pc.less(times, span.end))
    return rows
