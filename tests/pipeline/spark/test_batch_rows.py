"""Batches as rows for the JVM: where their records are, and that no memory is kept."""

import gc
import mmap
import pathlib
import weakref
from collections.abc import Iterator

import pytest
from spark_support import missing_spark

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

import asyncio

from pyspark.sql.types import StructType

from moldau.pipeline.data_source import MoldauReader
from moldau.pipeline.reading.decoding import FoundBatch, open_batches
from moldau.pipeline.reading.object_ranges import MappedFiles, place_of
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.source.batch_rows import BATCH_COLUMNS, BatchRows
from moldau.pipeline.source.filters import NumberBounds
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.spark_versions import HAS_FILTERS
from moldau.records.batch import HEADER_SIZE_BYTES
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.record import Record

RANGES = {0: OffsetRange(0, 5, 100)}


def batch(codec: Compression = Compression.NONE) -> bytes:
    return build_batch([Record(7, 1_000, b"key", b"value" * 50)], base_offset=7, compression=codec)


def rows_of(found: list[FoundBatch]) -> list[dict[str, object]]:
    opened = open_batches(found, RANGES)
    tables = list(BatchRows().rows("orders", opened, RANGES, NumberBounds()))
    for table in tables:
        table.validate(full=True)
    return [
        {name.removeprefix("_batch_"): value for name, value in row.items() if value is not None}
        for table in tables
        for row in table.to_pylist()
    ]


def test_records_in_a_local_file_are_named_by_their_place(tmp_path: pathlib.Path) -> None:
    before, stored = bytes(5_000), batch()
    (tmp_path / "object").write_bytes(before + stored + bytes(9))
    view = asyncio.run(MappedFiles(str(tmp_path)).fetch("object", 4_900, 100 + len(stored)))
    found = FoundBatch(view[100:], 0, base_offset=40, first_offset=6)
    (row,) = rows_of([found])
    assert row == {
        "topic": "orders",
        "partition": 0,
        "file": str(tmp_path / "object"),
        "file_position": len(before) + HEADER_SIZE_BYTES,
        "records_bytes": len(stored) - HEADER_SIZE_BYTES,
        "records_count": 1,
        "base_offset": 40,
        "base_timestamp": 1_000,
        "max_timestamp": 1_000,
        "timestamp_type": 0,
        "first_offset": 6,
        "end_offset": 100,
        "first_timestamp_us": -(2**63),
        "end_timestamp_us": 2**63 - 1,
    }


def test_files_with_other_names_than_ascii_are_not_named(tmp_path: pathlib.Path) -> None:
    """A JVM without a locale for Unicode cannot open them."""
    folder = tmp_path / "größe"
    folder.mkdir()
    (folder / "object").write_bytes(batch())
    view = asyncio.run(MappedFiles(str(folder)).fetch("object", 0, len(batch())))
    (row,) = rows_of([FoundBatch(view, 0)])
    assert row["records"] == batch()[HEADER_SIZE_BYTES:]


def test_groups_of_batches_are_small(tmp_path: pathlib.Path) -> None:
    """A task passes a group before it maps and checks the next batches."""
    big = build_batch([Record(7, 1_000, None, bytes(1_000_000))], base_offset=7)
    (tmp_path / "object").write_bytes(big)
    seen: list[int] = []

    def batches() -> Iterator[FoundBatch]:
        for number in range(30):
            seen.append(number)
            yield FoundBatch(asyncio.run(MappedFiles(str(tmp_path)).fetch("object", 0, len(big))), 0)

    groups = BatchRows().rows("orders", open_batches(batches(), RANGES), RANGES, NumberBounds())
    assert next(groups).num_rows == len(seen) == 9
    assert sum(group.num_rows for group in groups) == 21


def test_compressed_records_are_passed_decompressed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "object").write_bytes(batch(Compression.ZSTD))
    size = len(batch(Compression.ZSTD))
    view = asyncio.run(MappedFiles(str(tmp_path)).fetch("object", 0, size))
    (row,) = rows_of([FoundBatch(view, 0)])
    assert row["records"] == batch()[HEADER_SIZE_BYTES:]
    assert "file" not in row


def test_bytes_that_are_not_in_a_file_have_no_place() -> None:
    assert place_of(b"bytes") is None
    assert place_of(memoryview(b"bytes")) is None
    with mmap.mmap(-1, 100) as shared, memoryview(shared) as view:
        assert place_of(view) is None


class _Memory(mmap.mmap):
    """Memory of a response, with weak references."""


def test_rows_keep_no_memory_of_responses() -> None:
    memory = _Memory(-1, 4096)
    memory[: len(batch())] = batch()
    gone = weakref.ref(memory)
    rows = rows_of([FoundBatch(memoryview(memory)[: len(batch())], 0)])
    assert rows[0]["records"] == batch()[HEADER_SIZE_BYTES:]
    del memory
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not HAS_FILTERS, reason="readers are given filters by Spark 4.1 and newer")
def test_filters_are_applied_only_if_each_query_has_a_plan() -> None:
    """Without the jar, Spark uses the plan of a DataFrame's first query for its next queries, too."""
    from pyspark.sql.datasource import EqualTo

    options = parse_options({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"})
    records = StructType([one for one in BATCH_COLUMNS if not one.name.startswith("_batch_")])
    for schema, left in ((records, 1), (BATCH_COLUMNS, 0)):
        reader = MoldauReader(schema, [], options)
        assert len(list(reader.narrow([EqualTo(("partition",), 1)]))) == left
