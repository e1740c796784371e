"""``spark.read.format("moldau")``: topics as DataFrames, in batch queries.

Columns are those of Spark's Kafka connector. Where the topic ends is found out once, by ``load()``: every
action on a DataFrame sees the same records. Tasks read their ranges themselves; only coordinates are planned.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from moldau.client.errors import ToolError
from moldau.pipeline.fetching import find_bounds
from moldau.pipeline.planning import Bounds, OffsetRange, Source, split, unit_size
from moldau.pipeline.source_options import LATEST, SourceOptions, TopicOffsets, parse_options
from moldau.pipeline.units import read

FORMAT: Final = "moldau"
COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset LONG,"
    " timestamp TIMESTAMP, timestampType INT"
)
HEADERS_COLUMN: Final = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
UNIT_RECORDS_MAX: Final = 1_000_000
ROWS_BYTES: Final = 1024 * 1024
"""Decoded bytes that are handed to Spark at once: what it takes fastest."""


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """What a DataFrame holds of one topic."""

    source: Source
    ranges: tuple[OffsetRange, ...]


@dataclass
class UnitPartition(InputPartition):
    """A range that one task reads."""

    source: Source
    unit: OffsetRange


class MoldauDataSource(DataSource):
    """Made once by ``load()``, and pickled from there on: so its ranges are pinned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.parsed = parse_options(dict(options))
        self.topics = [pin(self.parsed, topic) for topic in self.parsed.topics]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return f"{COLUMNS}, {HEADERS_COLUMN}" if self.parsed.include_headers else COLUMNS

    def reader(self, schema: StructType) -> "MoldauReader":
        return MoldauReader(schema, self.topics, self.parsed.min_partitions)


class MoldauReader(DataSourceReader):
    """Plans units, and reads them in the tasks."""

    def __init__(self, schema: StructType, topics: list[TopicRanges], min_partitions: int) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._topics = topics
        self._min_partitions = min_partitions

    def partitions(self) -> list[UnitPartition]:
        everything = [one for topic in self._topics for one in topic.ranges]
        size = unit_size(everything, self._min_partitions, UNIT_RECORDS_MAX)
        return [
            UnitPartition(topic.source, unit) for topic in self._topics for unit in split(topic.ranges, size)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Spark turns an empty list of partitions into one that is no partition.
        if not isinstance(partition, UnitPartition):
            return
        for table in read(partition.source, partition.unit):
            shaped = shape(table, partition.source.topic, self._schema)
            rows = max(1, shaped.num_rows * ROWS_BYTES // max(1, shaped.nbytes))
            for start in range(0, shaped.num_rows, rows):
                yield shaped.slice(start, rows)


def shape(table: Any, topic: str, schema: Any) -> Any:
    """The DataFrame's columns, in its order. Raises :class:`ToolError` for one that is not there."""
    columns = []
    for field in schema:
        if field.name == "topic":
            column = pa.DictionaryArray.from_arrays(
                pa.array([0] * table.num_rows, pa.int32()), pa.array([topic])
            ).dictionary_decode()
        elif field.name in table.schema.names:
            column = table.column(field.name)
        else:
            raise ToolError(f"a topic has no column {field.name!r}")
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pin(options: SourceOptions, topic: str) -> TopicRanges:
    """The ranges of a topic now. Raises :class:`ToolError` for partitions or offsets that are not there."""
    bounds = find_bounds(options.bootstrap, topic, committed_only=options.committed_only)
    chosen = options.topics[topic]
    partitions = sorted(bounds.ends) if chosen is None else chosen
    for partition in partitions:
        if partition not in bounds.ends:
            raise ToolError(f"topic {topic} has no partition {partition}")
    source = Source(
        bootstrap=options.bootstrap,
        topic=topic,
        topic_id=bounds.topic_id,
        committed_only=options.committed_only,
        may_lose=not options.fail_on_data_loss,
    )
    ranges = [_range(options, topic, partition, bounds) for partition in partitions]
    return TopicRanges(source, tuple(one for one in ranges if one.end > one.start))


def _range(options: SourceOptions, topic: str, partition: int, bounds: Bounds) -> OffsetRange:
    first, behind = bounds.starts[partition], bounds.ends[partition]
    start = _offset(options.starting, topic, partition, first)
    end = _offset(options.ending, topic, partition, behind)
    where = f"{topic}-{partition}"
    if start < first or end > behind:
        if options.fail_on_data_loss:
            raise ToolError(
                f"{where} has offsets {first} to {behind}, not {start} to {end}"
                " (option failOnDataLoss=false reads what is there)"
            )
        start, end = max(start, first), min(end, behind)
    return OffsetRange(partition, start, end)


def _offset(wanted: TopicOffsets | int, topic: str, partition: int, default: int) -> int:
    """An explicit offset, or where the partition itself begins or ends."""
    if isinstance(wanted, int):
        return default
    try:
        offset = wanted[topic][partition]
    except KeyError:
        raise ToolError(f"the given offsets leave out {topic}-{partition}") from None
    return default if offset <= LATEST else offset


def register(session: SparkSession) -> None:
    """Make ``format("moldau")`` known where the package ``pyspark_moldau`` does not do it."""
    session.dataSource.register(MoldauDataSource)
