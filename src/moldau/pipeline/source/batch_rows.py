"""Batches of records as rows, for a JVM that decodes the records itself.

If the jar of ``java/spark`` is in a session, the JVM decodes records. The data source then fetches batches as
usual, and returns them without decoding their records. ``BatchColumn.java`` has the same columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

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

from moldau.pipeline.reading.decoding import OpenedBatch, open_batches
from moldau.pipeline.reading.object_ranges import place_of
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
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
ROWS_BYTES: Final = 1024 * 1024
"""Approximate size of the rows that are passed to Spark at a time."""
BYTES_OF_PLACE: Final = 1024
"""The size that a batch in a file counts. It makes the JVM start before it has the places of all batches."""


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
        pending: list[OpenedBatch] = []
        size = 0
        for opened in open_batches(batches_of_unit(source, unit), ranges):
            pending.append(opened)
            size += len(opened.data) if place_of(opened.data) is None else BYTES_OF_PLACE
            if size >= ROWS_BYTES:
                yield self.rows(source.topic, pending, ranges, timestamp_us)
                pending, size = [], 0
        if pending:
            yield self.rows(source.topic, pending, ranges, timestamp_us)

    def rows(
        self,
        topic: str,
        batches: Sequence[OpenedBatch],
        ranges: Mapping[int, OffsetRange],
        timestamp_us: NumberBounds,
    ) -> Any:
        """A row for each batch. ``ranges`` has the wanted offsets of each partition."""
        headers = [batch.header for batch in batches]
        places = [place_of(batch.data) for batch in batches]
        first_us = INT64_MIN if timestamp_us.start is None else timestamp_us.start
        end_us = INT64_MAX if timestamp_us.end is None else timestamp_us.end
        count = len(batches)
        columns: dict[str, Sequence[Any]] = {
            "topic": [topic] * count,
            "partition": [batch.partition for batch in batches],
            # PyArrow 26 never releases a memoryview that became an element of an array.
            "records": [
                bytes(batch.data) if at is None else None for batch, at in zip(batches, places, strict=True)
            ],
            "file": [None if at is None else at.path for at in places],
            "file_position": [None if at is None else at.position for at in places],
            "records_bytes": [len(batch.data) for batch in batches],
            "records_count": [header.records_count for header in headers],
            "base_offset": [header.base_offset for header in headers],
            "base_timestamp": [header.base_timestamp for header in headers],
            "max_timestamp": [header.max_timestamp for header in headers],
            "timestamp_type": [int(header.timestamp_type) for header in headers],
            "first_offset": [max(ranges[batch.partition].start, batch.first_offset) for batch in batches],
            "end_offset": [ranges[batch.partition].end for batch in batches],
            "first_timestamp_us": [first_us] * count,
            "end_timestamp_us": [end_us] * count,
        }
        arrays = []
        for field in self._schema:
            values = columns.get(field.name.removeprefix(BATCH_PREFIX))
            arrays.append(pa.nulls(count, field.type) if values is None else pa.array(values, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
