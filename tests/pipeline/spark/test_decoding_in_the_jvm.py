"""The jar ``moldau-spark.jar`` decodes records like Python does, and refuses the same batches."""

import asyncio
import pathlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from spark_support import missing_jars, missing_spark, spark_jar

import moldau.testing

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType

from moldau.client.errors import ToolError
from moldau.pipeline.data_source import MoldauDataSource
from moldau.pipeline.reading.decoding import FoundBatch, decode, open_batches
from moldau.pipeline.reading.object_ranges import MappedFiles
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.source.batch_rows import BATCH_COLUMNS, BatchRows, are_batch_columns
from moldau.pipeline.source.columns import schema_of_a_topic
from moldau.pipeline.source.filters import NumberBounds
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.unit_rows import UnitRows
from moldau.records.batch import HEADER_SIZE_BYTES, parse_header, set_log_append_time
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.errors import InvalidRecordError
from moldau.records.record import Record
from moldau.records.varint import encode_varint
from moldau.runtime.buffers import Buffer

TOPIC = "orders"
PARTITION = 3
EVERYTHING = OffsetRange(PARTITION, 0, 2**63 - 1)
UNBOUNDED = NumberBounds()
DAMAGED_BATCHES = 300

pytestmark = [pytest.mark.timeout(1500), pytest.mark.filterwarnings("ignore"), pytest.mark.java]


def need_jar() -> None:
    if spark_jar() is None:
        missing_jars("moldau-spark.jar")


@pytest.fixture
def read(spark: SparkSession) -> Iterator[Callable[..., DataFrame]]:
    """A function that returns the given batches as a DataFrame of ``format("moldau")``. The JVM decodes
    them. If ``file`` is given, the task writes the only batch to it, and the JVM reads it from there. A file
    whose name begins with "deleted" is deleted before that."""
    need_jar()

    def frame(
        batches: Sequence[bytes | bytearray],
        wanted: OffsetRange = EVERYTHING,
        bounds: NumberBounds = UNBOUNDED,
        file: pathlib.Path | None = None,
    ) -> DataFrame:
        given = [bytes(batch) for batch in batches]
        folder, name = (None, "") if file is None else (str(file.parent), file.name)

        class GivenReader(DataSourceReader):
            def __init__(self, schema: StructType) -> None:
                # With other columns, Python would decode the batches itself.
                assert are_batch_columns(schema)

            def read(self, partition: InputPartition) -> Iterator[Any]:
                ranges = {PARTITION: wanted}
                data: Sequence[Buffer] = given
                if folder is not None:
                    pathlib.Path(folder, name).write_bytes(given[0])
                    data = [asyncio.run(MappedFiles(folder).fetch(name, 0, len(given[0])))]
                    if name.startswith("deleted"):
                        pathlib.Path(folder, name).unlink()
                found = (FoundBatch(batch, PARTITION) for batch in data)
                yield from BatchRows().rows(TOPIC, open_batches(found, ranges), ranges, bounds)

        class GivenBatches(DataSource):
            @classmethod
            def name(cls) -> str:
                return "moldau"

            def schema(self) -> str:
                return schema_of_a_topic(with_headers=True)

            def reader(self, schema: StructType) -> DataSourceReader:
                return GivenReader(schema)

        spark.dataSource.register(GivenBatches)
        return spark.read.format("moldau").load()

    yield frame
    spark.dataSource.register(MoldauDataSource)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows like those of :func:`expected`."""
    numbered = frame.withColumn("timestamp", frame["timestamp"].cast("decimal(38, 6)"))
    found = []
    for row in numbered.collect():
        fields = row.asDict(recursive=True)
        for name in ("key", "value"):
            fields[name] = None if fields[name] is None else bytes(fields[name])
        for header in fields["headers"] or ():
            header["value"] = None if header["value"] is None else bytes(header["value"])
        fields["timestamp"] = int(fields["timestamp"] * 1_000_000)
        assert fields.pop("topic") == TOPIC
        found.append(fields)
    return found


def expected(
    batches: Sequence[bytes | bytearray],
    wanted: OffsetRange = EVERYTHING,
    bounds: NumberBounds = UNBOUNDED,
) -> list[dict[str, Any]]:
    """The rows as Python decodes them. Timestamps are in microseconds."""
    rows: list[dict[str, Any]] = []
    for table in decode(batches, wanted):
        at = table.schema.get_field_index("timestamp")
        rows += table.set_column(at, "timestamp", table["timestamp"].cast("int64")).to_pylist()
    return [row for row in rows if row["timestamp"] in bounds]


def some_bytes(random: Random, size_max: int) -> bytes | None:
    return None if random.random() < 0.2 else random.randbytes(random.randrange(size_max))


def some_records(random: Random) -> list[Record]:
    """Records with gaps between their offsets, and with sizes whose varints have one to three bytes."""
    offset = random.choice([0, 7, 2**40])
    found = []
    for _ in range(random.choice([1, 2, 30, 300])):
        headers = tuple(
            (random.choice(["", "a", "name", "größe"]), some_bytes(random, 70))
            for _ in range(random.choice([0, 0, 0, 1, 3]))
        )
        timestamp = random.choice([-1, 0, 1_000, random.randrange(2**42)])
        value = some_bytes(random, random.choice([1, 80, 20_000]))
        found.append(Record(offset, timestamp, some_bytes(random, 80), value, headers))
        offset += random.choice([1, 1, 1, 200])
    return found


def some_batches(random: Random, count: int) -> list[bytearray]:
    batches = []
    for _ in range(count):
        records = some_records(random)
        codec = random.choice(list(Compression))
        batch = bytearray(build_batch(records, base_offset=records[0].offset, compression=codec))
        if random.random() < 0.2:
            set_log_append_time(batch, 0, random.randrange(2**42))
        batches.append(batch)
    return batches


def test_the_jvm_decodes_records_like_python(read: Callable[..., DataFrame]) -> None:
    batches = some_batches(Random(1), 60)
    assert rows_of(read(batches)) == expected(batches)


def test_offsets_and_timestamps_outside_the_ranges_are_skipped(read: Callable[..., DataFrame]) -> None:
    batches = some_batches(Random(2), 40)
    wanted, bounds = OffsetRange(PARTITION, 5, 2**40 + 50), NumberBounds(0, 2**41 * 1000)
    rows = rows_of(read(batches, wanted, bounds))
    assert rows == expected(batches, wanted, bounds)
    assert 0 < len(rows) < len(expected(batches, wanted)) < len(expected(batches))


def test_queries_of_some_columns(read: Callable[..., DataFrame]) -> None:
    batches = some_batches(Random(3), 10)
    frame = read(batches)
    wanted = expected(batches)
    assert frame.count() == len(wanted)
    (row,) = frame.selectExpr("sum(length(value)) AS size", "max(offset) AS last").collect()
    assert row.size == sum(len(one["value"] or b"") for one in wanted)
    assert row.last == max(one["offset"] for one in wanted)
    # Operators that keep rows must not see a later row in the place of an earlier one.
    ordered = frame.select("offset", "value").orderBy("offset", "value").collect()
    assert [one.offset for one in ordered] == sorted(one["offset"] for one in wanted)


def with_records(records: bytes, count: int) -> bytearray:
    """A batch with the given bytes as its records, and the checksum of these bytes."""
    batch = bytearray(build_batch([Record(0, 1_000, None, b"")], base_offset=0))[:HEADER_SIZE_BYTES] + records
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    set_log_append_time(batch, 0, 1_000)
    return batch


def record(*fields: bytes | int, size: int | None = None) -> bytes:
    """A record from its fields after the attributes. Numbers become varints."""
    body = b"\0" + b"".join(one if isinstance(one, bytes) else encode_varint(one) for one in fields)
    return encode_varint(len(body) if size is None else size) + body


GOOD = record(0, 0, -1, 1, b"v", 0)
OVERLONG = b"\xff" * 4 + b"\x7f"
MALFORMED = {
    "the count is too large": (GOOD, 2, "before the batch's count"),
    "the count is too small": (GOOD * 2, 1, "off their batch's end"),
    "no record, but bytes": (GOOD, 0, "off their batch's end"),
    "a record beyond the end": (record(0, 0, -1, 1, b"v", 0, size=60), 1, "before the batch's count"),
    "a record without space for its fields": (record(0, 0, size=2), 1, "before the batch's count"),
    "a short record": (record(0, 0, size=5) + bytes(9), 1, "shorter than its own fields"),
    "a record of negative length": (record(0, 0, -1, 1, b"v", 0, size=-1), 1, "shorter than its own fields"),
    "a value beyond its record": (record(0, 0, -1, 50, b"v", 0) + bytes(60), 1, "over the end of its record"),
    "a key of negative length": (record(0, 0, -2, 1, b"v", 0), 1, "a negative length"),
    "a negative number of headers": (record(0, 0, -1, 1, b"v", -1), 1, "number of headers"),
    "too many headers": (record(0, 0, -1, 1, b"v", 9), 1, "number of headers"),
    "a header without a name": (record(0, 0, -1, 1, b"v", 1, -1, -1), 1, "without a name"),
    "bytes behind the headers": (record(0, 0, -1, 1, b"v", 0, b"x"), 1, "at its own length"),
    "a length of 33 bits": (OVERLONG + GOOD[1:] + bytes(9), 1, "more than 32 bits"),
    "a timestamp of 65 bits": (record(b"\xff" * 9 + b"\x02", 0, -1, 1, b"v", 0), 1, "more than 64 bits"),
}


def walk(spark: SparkSession, batch: bytes | bytearray) -> None:
    """Go over the records of a batch with the code of the JVM, without a query."""
    context: Any = spark.sparkContext
    cursor = context._jvm.moldau.spark.RecordCursor()
    records = bytes(batch[HEADER_SIZE_BYTES:])
    cursor.open(records, len(records), parse_header(batch).records_count, "orders-3, offset 0")
    while cursor.next():
        pass


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_are_refused_with_their_place(spark: SparkSession, name: str) -> None:
    need_jar()
    records, count, problem = MALFORMED[name]
    batch = with_records(records, count)
    with pytest.raises(InvalidRecordError):
        expected([batch])
    with pytest.raises(Py4JJavaError, match=f"MalformedRecordException: orders-3, offset 0: .*{problem}"):
        walk(spark, batch)


def test_damage_that_a_checksum_hides_is_refused_as_in_python(
    spark: SparkSession, read: Callable[..., DataFrame]
) -> None:
    random = Random(4)
    accepted, refused = [], 0
    for _ in range(DAMAGED_BATCHES):
        records = some_records(random)[:5]
        batch = bytearray(build_batch(records, base_offset=records[0].offset))
        for _ in range(random.randint(1, 3)):
            batch[HEADER_SIZE_BYTES + random.randrange(min(60, len(batch) - HEADER_SIZE_BYTES))] ^= (
                1 << random.randrange(8)
            )
        set_log_append_time(batch, 0, 1_000)  # computes the checksum of the damaged records
        try:
            expected([batch])
        except InvalidRecordError:
            refused += 1
            with pytest.raises(Py4JJavaError, match="MalformedRecordException"):
                walk(spark, batch)
        else:
            walk(spark, batch)
            accepted.append(batch)
    assert refused > DAMAGED_BATCHES // 10
    assert len(accepted) > DAMAGED_BATCHES // 10
    assert rows_of(read(accepted)) == expected(accepted)


def test_a_query_names_the_place_of_a_malformed_record(read: Callable[..., DataFrame]) -> None:
    batch = build_batch([Record(4, 2**62, None, b"v")], base_offset=4)
    assert [bytes(row.value) for row in read([batch]).select("value").collect()] == [b"v"]
    problem = "offset 4 has timestamp 4611686018427387904 ms, which microseconds cannot hold"
    with pytest.raises(InvalidRecordError, match=problem):
        expected([batch])
    with pytest.raises(Py4JJavaError, match=f"MalformedRecordException: orders-3, offset 4: {problem}"):
        read([batch]).collect()


def test_records_are_read_from_local_files(read: Callable[..., DataFrame], tmp_path: pathlib.Path) -> None:
    batch = build_batch([Record(0, 0, None, b"v" * 100_000)], base_offset=0)
    assert rows_of(read([batch], file=tmp_path / "object")) == expected([batch])
    with pytest.raises(Py4JJavaError, match="deleted was deleted before it was read"):
        read([batch], file=tmp_path / "deleted").collect()


def test_python_decodes_columns_with_types_of_their_own(spark: SparkSession) -> None:
    need_jar()
    with moldau.testing.Node(diskless=True) as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        producer.produce(TOPIC, "größe")
        assert producer.flush(60) == 0
        query = spark.read.format("moldau").option("kafka.bootstrap.servers", node.bootstrap_servers)
        query = query.option("subscribe", TOPIC).schema("value STRING")
        assert [row.value for row in query.load().collect()] == ["größe"]
        with pytest.raises(PySparkException, match="gives a column another type"):
            query.option("decodeIn", "jvm").load().collect()


def test_a_jar_of_another_version_is_refused() -> None:
    last = StructField(BATCH_COLUMNS.names[-1], IntegerType())
    older = StructType([*BATCH_COLUMNS.fields[:-1], last])
    options = parse_options({"kafka.bootstrap.servers": "localhost:9092", "subscribe": TOPIC})
    with pytest.raises(ToolError, match="of another version of Moldau"):
        UnitRows(older, options)
