"""Batches as rows for the JVM: where their records are, and that no memory is kept."""

import gc
import mmap
import pathlib
import weakref

import pytest
from spark_support import missing_spark

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

import asyncio

from moldau.pipeline.reading.decoding import FoundBatch, open_batches
from moldau.pipeline.reading.object_ranges import MappedFiles, place_of
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.source.batch_rows import BatchRows
from moldau.pipeline.source.filters import NumberBounds
from moldau.records.batch import HEADER_SIZE_BYTES
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.record import Record

RANGES = {0: OffsetRange(0, 5, 100)}


def batch(codec: Compression = Compression.NONE) -> bytes:
    return build_batch([Record(7, 1_000, b"key", b"value" * 50)], base_offset=7, compression=codec)


def rows_of(found: list[FoundBatch]) -> list[dict[str, object]]:
    opened = list(open_batches(found, RANGES))
    rows = BatchRows().rows("orders", opened, RANGES, NumberBounds())
    rows.validate(full=True)
    return [
        {name.removeprefix("_batch_"): value for name, value in row.items() if value is not None}
        for row in rows.to_pylist()
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
