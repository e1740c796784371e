"""Batches of records as rows, for a JVM that decodes the records itself.

If the jar of ``java/spark`` is in a session, the JVM decodes records. The data source then fetches batches as
usual, and returns them without decoding their records. ``BatchColumn.java`` has the same columns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.client.errors import ToolError
from moldau.pipeline.reading.decoding import OpenedBatch, open_batches
from moldau.pipeline.reading.object_ranges import place_of
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.source.columns import ROWS_BYTES
from moldau.pipeline.source.filters import NumberBounds
from moldau.pipeline.source.unit_batches import batches_of_unit
from moldau.pipeline.spark_versions import arrow_schema
from moldau.records.varint import INT64_MAX, INT64_MIN

BATCH_PREFIX: Final = "_batch_"
_RECORD_COLUMNS: Final = (
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
    (
        "headers",
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    ),
)
BATCH_COLUMNS: Final = StructType(
    [StructField(name, kind) for name, kind in _RECORD_COLUMNS]
    + [
        StructField(BATCH_PREFIX + name, kind)
        for name, kind in (
            ("records", BinaryType()),
            ("file", StringType()),
            ("file_position", LongType()),
            ("records_bytes", IntegerType()),
            ("records_count", IntegerType()),
            ("base_offset", LongType()),
            ("base_timestamp", LongType()),
            ("max_timestamp", LongType()),
            ("timestamp_type", IntegerType()),
            ("first_offset", LongType()),
            ("end_offset", LongType()),
            ("first_timestamp_us", LongType()),
            ("end_timestamp_us", LongType()),
        )
    ]
)
"""The columns of a batch. The columns of records come first, because Spark looks for the columns of filters
among them. Except for ``topic`` and ``partition`` they are null.

``records`` are decompressed, without the header of the batch. If they are in a local file and not compressed,
``records`` is null, and the JVM reads them from the file. The JVM skips records outside the ranges of offsets
and timestamps.
"""
_BATCH_FIELDS: Final = [(one.name, one.dataType) for one in BATCH_COLUMNS]
_PLACED_BYTES: Final = 8
"""Number of bytes in a file that count like one byte that is passed to Spark. So a group of batches has about
8 MiB in files, and the JVM gets its first rows soon."""


class BatchRows:
    """Reads units as batches of records. The records are not decoded."""

    def __init__(self) -> None:
        self._schema = arrow_schema(BATCH_COLUMNS)

    def read(
        self, source: TopicSource, unit: Sequence[OffsetRange], timestamp_us: NumberBounds
    ) -> Iterator[Any]:
        """The unit's batches, as Arrow record batches with a row for each batch. The JVM applies the limits
        of timestamps to the records."""
        ranges = {one.partition: one for one in unit}
        opened = open_batches(batches_of_unit(source, unit), ranges)
        return self.rows(source.topic, opened, ranges, timestamp_us)

    def rows(
        self,
        topic: str,
        batches: Iterable[OpenedBatch],
        ranges: Mapping[int, OffsetRange],
        timestamp_us: NumberBounds,
    ) -> Iterator[Any]:
        """A row for each batch, in groups. ``ranges`` has the wanted offsets of each partition."""
        first_us = INT64_MIN if timestamp_us.start is None else timestamp_us.start
        end_us = INT64_MAX if timestamp_us.end is None else timestamp_us.end
        rows: list[_BatchRow] = []
        size = 0
        for batch in batches:
            row = _row_of(topic, batch, ranges[batch.partition], first_us, end_us)
            rows.append(row)
            size += row.records_bytes // (_PLACED_BYTES if row.records is None else 1)
            if size >= ROWS_BYTES:
                yield self._table(rows)
                rows, size = [], 0
        if rows:
            yield self._table(rows)

    def _table(self, rows: Sequence["_BatchRow"]) -> Any:
        columns = dict(zip(_BatchRow._fields, zip(*rows, strict=True), strict=True))
        arrays = []
        for field in self._schema:
            values = columns.get(field.name.removeprefix(BATCH_PREFIX))
            arrays.append(pa.nulls(len(rows), field.type) if values is None else pa.array(values, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _BatchRow(NamedTuple):
    """The columns of a batch that have values."""

    topic: str
    partition: int
    records: bytes | None
    file: str | None
    file_position: int | None
    records_bytes: int
    records_count: int
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    timestamp_type: int
    first_offset: int
    end_offset: int
    first_timestamp_us: int
    end_timestamp_us: int


def _row_of(topic: str, batch: OpenedBatch, wanted: OffsetRange, first_us: int, end_us: int) -> _BatchRow:
    """The row does not refer to the memory of the batch, which may be a mapped file."""
    header, data, partition, first_offset = batch
    place = place_of(data)
    if place is not None and not place.path.isascii():
        place = None  # a JVM without a locale for Unicode cannot open such a file
    path, position = (None, None) if place is None else place
    return _BatchRow(
        topic,
        partition,
        # PyArrow 26 never releases a memoryview that became an element of an array.
        bytes(data) if place is None else None,
        path,
        position,
        len(data),
        header.records_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp,
        int(header.timestamp_type),
        max(wanted.start, first_offset),
        wanted.end,
        first_us,
        end_us,
    )


def are_batch_columns(schema: StructType) -> bool:
    """Whether a JVM with the jar reads the schema. Raises :class:`ToolError` for a jar of another version."""
    if [(one.name, one.dataType) for one in schema] == _BATCH_FIELDS:
        return True
    if any(name.startswith(BATCH_PREFIX) for name in schema.names):
        raise ToolError("moldau-spark.jar is of another version of Moldau: build it again")
    return False
