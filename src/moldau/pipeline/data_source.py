"""``format("moldau")``: topics as DataFrames, in batch and in streaming queries.

The columns are the same as in Spark's Kafka connector. ``load()`` looks up the end offsets of the topics
once, so every action on a batch DataFrame sees the same records. A plan contains only ranges of offsets, no
records. Tasks read their ranges themselves: diskless topics from their objects, other topics through brokers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from moldau.client.cluster import Client
from moldau.client.errors import ToolError
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.sink.writer import MoldauStreamWriter, MoldauWriter, SinkTarget, find_target
from moldau.pipeline.source.columns import schema_of_a_topic
from moldau.pipeline.source.filters import Narrowing
from moldau.pipeline.source.options import LATEST, SourceOptions, check_batch, parse_options
from moldau.pipeline.source.snapshot import TopicRanges, offsets_at, pin
from moldau.pipeline.source.unit_rows import UnitRows
from moldau.pipeline.source.units import ask, plan
from moldau.pipeline.spark_versions import HAS_FILTERS, HAS_READ_LIMITS, note_missing
from moldau.pipeline.tasks import one_line_errors, settle

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

FORMAT: Final = "moldau"


class MoldauDataSource(DataSource):
    """The data source. ``load()`` creates it once and then pickles it, so its ranges do not change."""

    @one_line_errors()
    def __init__(self, options: Mapping[str, str]) -> None:
        settle()
        self.parsed = parse_options(dict(options))
        # Topics are not looked up here in two cases. A sink does not read topics. And a query that begins at
        # the end of its topics is always a streaming query, which looks topics up later.
        reads = self.parsed.reads and self.parsed.starting != LATEST
        self.topics = self._asked(lambda client: pin(client, self.parsed)) if reads else []

    def _asked(self, look: Callable[[Client], Any]) -> Any:
        return ask(self.parsed.bootstrap, look, self.parsed.request_timeout_s)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return schema_of_a_topic(with_headers=self.parsed.include_headers)

    @one_line_errors()
    def reader(self, schema: StructType) -> "MoldauReader":
        check_batch(self.parsed)
        return MoldauReader(schema, self.topics, self.parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            if HAS_READ_LIMITS:
                from moldau.pipeline.source.stream import MoldauStreamReader

                return MoldauStreamReader(schema, self.parsed)
            from moldau.pipeline.source.older_stream import MoldauOlderStreamReader

            return MoldauOlderStreamReader(schema, self.parsed)
        except ToolError as error:
            return RefusedStreamReader(error)

    @one_line_errors()
    def writer(self, schema: StructType, overwrite: bool) -> MoldauWriter:
        return MoldauWriter(self._target(schema, overwrite))

    @one_line_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> MoldauStreamWriter:
        return MoldauStreamWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> SinkTarget:
        if overwrite:
            raise ToolError("topics are only appended to: mode('append')")
        return find_target(self.parsed, schema)


class RefusedStreamReader(DataSourceStreamReader):
    """Raises the error of a streaming query when its first batch is planned.

    If ``streamReader`` itself raised the error, Spark would show another error instead.
    """

    def __init__(self, error: ToolError) -> None:
        self._error = error

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    @one_line_errors()
    def latestOffset(self, *arguments: Any) -> dict[str, Any]:
        raise self._error

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error


class MoldauReader(DataSourceReader):
    """Plans units, and reads them in the tasks."""

    def __init__(self, schema: StructType, topics: list[TopicRanges], options: SourceOptions) -> None:
        settle()
        self._rows = UnitRows(schema, options)
        self._topics = topics
        self._options = options
        self._narrowing = Narrowing()
        if HAS_FILTERS:
            self.pushFilters = _Pushing(self)  # type: ignore[method-assign, assignment]
        else:
            note_missing("filters of a query do not narrow what is read of topics", "4.1")

    def narrow(self, pushed: Sequence["Filter"]) -> Iterator["Filter"]:
        """Apply filters. Returns the filters that Spark must still apply.

        Without the jar for the JVM, these are all filters. Spark (up to 4.3) keeps the plan of a DataFrame's
        first query, with the filters of this query, and uses it for the next queries, too. The jar has a plan
        for each query.
        """
        if not self._rows.are_batches:
            return iter(pushed)
        from moldau.pipeline.source.pushdown import push

        self._narrowing, left = push(pushed)
        return left

    @one_line_errors()
    def partitions(self) -> list[InputPartition]:
        topics = [TopicRanges(topic.source, tuple(self._narrowed(topic))) for topic in self._topics]
        return plan(topics, self._options.min_partitions, self._options.max_records_per_partition)

    def _narrowed(self, topic: TopicRanges) -> list[OffsetRange]:
        narrowing = self._narrowing
        cut = [
            narrowing.cut(one) for one in topic.ranges if narrowing.matches(topic.source.topic, one.partition)
        ]
        cut = [one for one in cut if one.end > one.start]
        earliest_ms = narrowing.earliest_ms
        if earliest_ms is None or not cut:
            return cut
        source = topic.source
        firsts = ask(
            source.bootstrap,
            lambda client: _first_at(client, source, cut, earliest_ms),
            self._options.request_timeout_s,
        )
        return [replace_start(one, firsts[one.partition]) for one in cut]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return self._rows.read(partition, self._narrowing.timestamp_us)


class _Pushing:
    """The reader's method ``pushFilters``. It works in sessions with and without filter pushdown.

    If ``spark.sql.python.filterPushdown.enabled`` is off, which is the default, Spark refuses readers that
    have this method. Spark finds the method by comparing its ``__func__``. Without pushdown Spark applies
    every filter itself. The query is then slower, but correct.
    """

    def __init__(self, reader: MoldauReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Any:
        return DataSourceReader.pushFilters

    def __call__(self, pushed: list["Filter"]) -> Iterator["Filter"]:
        return self._reader.narrow(pushed)


def replace_start(wanted: OffsetRange, first: int | None) -> OffsetRange:
    """Return the part of the range that begins at ``first``; it is empty if ``first`` is ``None``."""
    start = wanted.end if first is None else min(max(wanted.start, first), wanted.end)
    return wanted._replace(start=start)


async def _first_at(
    client: Client, source: TopicSource, ranges: Sequence[OffsetRange], time_ms: int
) -> Mapping[int, int | None]:
    topic = await client.topic(source.topic)
    return await offsets_at(client, topic, dict.fromkeys([one.partition for one in ranges], time_ms))


def register(session: SparkSession) -> None:
    """Register ``format("moldau")``. This call is needed only if Spark does not find the package
    ``pyspark_moldau``, which contains the data source under the name that Spark looks for."""
    session.dataSource.register(MoldauDataSource)
