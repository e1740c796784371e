"""What a task of an export does: read a range of offsets, write it as one Parquet file, publish that file.

These functions know no Spark. Whatever they leave behind when they are killed is a file that nobody names.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from moldau.pipeline.decoding import SCHEMA, decode
from moldau.pipeline.fetching import fetch_batches
from moldau.pipeline.planning import OffsetRange, Source
from moldau.runtime.entropy import SystemEntropy

COMPRESSION = "zstd"


class Written(NamedTuple):
    """A unit that is done: its file, with how many records."""

    unit: OffsetRange
    path: str
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ParquetUnits:
    """Writes units into ``folder``, each with a name made of its offsets.

    The name appears at once with the whole file below it. A unit that is there already is not written
    again, and of two attempts at once the first is kept: both hold the same records.
    """

    source: Source
    folder: str
    scratch: str
    """A folder on the same file system."""

    def __call__(self, unit: OffsetRange) -> Written:
        final = os.path.join(self.folder, file_name(unit))
        if os.path.exists(final):
            return Written(unit, final, pq.read_metadata(final).num_rows, os.path.getsize(final))
        os.makedirs(self.scratch, exist_ok=True)
        attempt = os.path.join(self.scratch, f"{SystemEntropy().uuid4()}.parquet")
        try:
            records = write_parquet(attempt, read(self.source, unit))
            publish(attempt, final)
        finally:
            if os.path.exists(attempt):
                os.unlink(attempt)
        return Written(unit, final, records, os.path.getsize(final))


@dataclass(frozen=True, slots=True)
class AttemptUnits:
    """Writes units into ``folder`` under names that no other attempt has; a commit names those it takes."""

    source: Source
    folder: str

    def __call__(self, unit: OffsetRange) -> Written:
        os.makedirs(self.folder, exist_ok=True)
        name = file_name(unit).removesuffix(".parquet")
        path = os.path.join(self.folder, f"{name}-{SystemEntropy().uuid4()}.parquet")
        records = write_parquet(path, read(self.source, unit))
        sync_folder(self.folder)
        return Written(unit, path, records, os.path.getsize(path))


def file_name(unit: OffsetRange) -> str:
    """The first and the last offset, in twenty digits as Kafka writes them."""
    return f"partition-{unit.partition:05d}-offsets-{unit.start:020d}-{unit.end - 1:020d}.parquet"


def read(source: Source, unit: OffsetRange) -> Iterator[Any]:
    """The unit's records as Arrow record batches, some 16 MiB each."""
    return decode(fetch_batches(source, unit), unit)


def write_parquet(path: str, tables: Iterator[pa.RecordBatch]) -> int:
    """Write a file that is durable when this returns; a row group for each record batch."""
    records = 0
    with open(path, "xb") as file:
        with pq.ParquetWriter(file, SCHEMA, compression=COMPRESSION) as writer:
            for table in tables:
                writer.write_batch(table)
                records += table.num_rows
        file.flush()
        os.fsync(file.fileno())
    return records


def publish(attempt: str, final: str) -> bool:
    """Give a file its name unless another has it; whether this one got it. Durable when this returns."""
    try:
        os.link(attempt, final)
    except FileExistsError:
        return False
    sync_folder(os.path.dirname(final))
    return True


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
