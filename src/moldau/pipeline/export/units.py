"""The task of an export: it reads a range of offsets, writes it as one Parquet file, and publishes that file.

This module does not depend on Spark. A killed task leaves only files without references. Records that cannot
be decoded (dead letters) go to a separate file, with the reason.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from moldau.client.errors import ToolError
from moldau.pipeline.export.layout import PARTITIONS_MAX, ExportLayout, Key
from moldau.pipeline.export.targets import TableFolder, create_file, publish, writing_to
from moldau.pipeline.reading.decoding import SCHEMA, decode_found
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.values.formats import DEAD_LETTER_SCHEMA, RAW, Decoded, ValueFormat, decode_values, fit
from moldau.runtime.entropy import SystemEntropy

COMPRESSION: Final = "zstd"
GROWING: Final = ("offset", "timestamp")
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Size of a row group in memory, before compression."""


class DeadLetters(NamedTuple):
    """A file of records that could not be decoded."""

    path: str
    records: int


class WrittenUnit(NamedTuple):
    """A completed unit. It has the path of its file (empty if there is no file), the number of records in the
    file, and its dead letters."""

    unit: OffsetRange
    path: str
    records: int
    size_bytes: int
    dead: DeadLetters | None = None
    partition: Key = ()
    """The file's partition in a partitioned Iceberg table."""


class Files(NamedTuple):
    """The files of a unit of an Iceberg table: one for each partition, or a single file without records."""

    written: tuple[WrittenUnit, ...]

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.written)


@dataclass(frozen=True, slots=True)
class ParquetUnits:
    """Writes units into ``folder``. The name of a unit consists of its offsets.

    A file gets its name only when it is complete. If the unit's file exists already, the unit is not written
    again. If two attempts run concurrently, the first result is kept; both results contain the same records.
    Dead letters are written before the unit's file.
    """

    source: TopicSource
    folder: str
    scratch: str
    """Folder for unfinished files, on the file system of ``folder``."""
    dead_folder: str
    values: ValueFormat = RAW

    def __call__(self, unit: OffsetRange) -> WrittenUnit:
        name = file_name(unit)
        final, dead = os.path.join(self.folder, name), os.path.join(self.dead_folder, name)
        if not os.path.exists(final):
            with writing_to(self.folder):
                write_named(read_decoded(self.source, unit, self.values), self, final, dead)
        return described(unit, final, dead)


def described(unit: OffsetRange, final: str, dead: str) -> WrittenUnit:
    """Describe the existing files of a unit."""
    letters = DeadLetters(dead, pq.read_metadata(dead).num_rows) if os.path.exists(dead) else None
    if not os.path.exists(final):
        return WrittenUnit(unit, "", 0, 0, letters)
    return WrittenUnit(unit, final, pq.read_metadata(final).num_rows, os.path.getsize(final), letters)


def write_named(
    records: Iterable[Decoded], units: Any, final: str, dead: str, *, last_is_dead: bool = False
) -> None:
    """Write both files under temporary names, then give them their final names. The second final name marks
    the unit as done.

    With ``last_is_dead`` the file of dead letters gets its final name last, and is created even when it is
    empty. ``units`` has the formats and the folder for unfinished files.
    """
    os.makedirs(units.scratch, exist_ok=True)
    attempts = [os.path.join(units.scratch, f"{SystemEntropy().uuid4()}.parquet") for _ in range(2)]
    try:
        good_count, dead_count = write_parquet(
            lambda: create_file(attempts[0]), lambda: create_file(attempts[1]), records, units.values
        )
        if last_is_dead:
            if not dead_count:
                with create_file(attempts[1]) as file, pq.ParquetWriter(file, DEAD_LETTER_SCHEMA):
                    pass
            if good_count:
                publish(attempts[0], final)
            publish(attempts[1], dead)
        else:
            if dead_count:
                publish(attempts[1], dead)
            publish(attempts[0], final)
    finally:
        for attempt in attempts:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(attempt)


@dataclass(frozen=True, slots=True)
class AttemptUnits:
    """Writes units into a folder. Each attempt uses unique file names. A later commit adds the files to the
    table."""

    source: TopicSource
    folder: TableFolder
    dead_folder: TableFolder
    values: ValueFormat
    layout: ExportLayout

    def __call__(self, unit: OffsetRange) -> Files:
        stem = f"{file_name(unit).removesuffix('.parquet')}-{SystemEntropy().uuid4()}"
        return write_attempt(unit, stem, self, read_decoded(self.source, unit, self.values))


def write_attempt(unit: OffsetRange, stem: str, units: Any, records: Iterable[Decoded]) -> Files:
    """Write a unit's files in the folders of ``units``, according to their layout."""
    name = f"{stem}.parquet"
    dead_count = 0
    with writing_to(units.folder.uri), contextlib.ExitStack() as stack:
        good = _PartitionedFiles(units.folder, stem, units.layout, stack)
        dead: _RowGroups | None = None
        for found in records:
            good.add(found.good)
            if found.dead is not None:
                dead = dead or _RowGroups(
                    stack.enter_context(units.dead_folder.create(name)), DEAD_LETTER_SCHEMA
                )
                dead.add(found.dead)
                dead_count += found.dead.num_rows
        files = good.close()
        if dead is not None:
            dead.close()
    letters = DeadLetters(units.dead_folder.locate(name), dead_count) if dead_count else None
    first, *others = files or [((), "", 0, 0)]
    written = [WrittenUnit(unit, *first[1:], letters, first[0])]
    written += [WrittenUnit(unit, *other[1:], None, other[0]) for other in others]
    return Files(tuple(written))


class _PartitionedFiles:
    """The files of a unit: one for each partition to which its records belong."""

    def __init__(
        self, folder: TableFolder, stem: str, layout: ExportLayout, stack: contextlib.ExitStack
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._layout = layout
        self._stack = stack
        self._open: dict[Key, tuple[str, Any, _RowGroups]] = {}
        self._counts: Counter[Key] = Counter()

    def add(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        for key, some in self._layout.split(self._layout.arranged(records)):
            if key not in self._open:
                self._create(key)
            self._open[key][2].add(some)
            self._counts[key] += some.num_rows
        if sum(groups.waiting_bytes for _, _, groups in self._open.values()) >= ROW_GROUP_BYTES:
            for _, _, groups in self._open.values():
                groups.flush()

    def _create(self, key: Key) -> None:
        if len(self._open) == PARTITIONS_MAX:
            raise ToolError(
                f"the records of a task have more than {PARTITIONS_MAX} partitions of the table:"
                " make tasks smaller (--unit-records), or the partitions larger"
            )
        name = f"{self._stem}-{len(self._open):03d}.parquet" if self._open else f"{self._stem}.parquet"
        file = self._stack.enter_context(self._folder.create(name))
        self._open[key] = (name, file, _RowGroups(file, self._layout.schema))

    def close(self) -> list[tuple[Key, str, int, int]]:
        """Close the files. Returns the partition, the place, the number of records and the size in bytes of
        each file."""
        found = []
        for key, (name, file, groups) in self._open.items():
            groups.close()
            found.append((key, self._folder.locate(name), self._counts[key], file.tell()))
        return found


def file_name(unit: OffsetRange) -> str:
    """The name of a unit's file: its first and last offset, in twenty digits as in Kafka's file names."""
    return f"partition-{unit.partition:05d}-offsets-{unit.start:020d}-{unit.end - 1:020d}.parquet"


def read(source: TopicSource, unit: OffsetRange, columns: Collection[str] | None = None) -> Iterator[Any]:
    """The unit's records as Arrow record batches of some MiB each, with the named columns. Without names,
    they have all columns."""
    return decode_found(fetch_found(source, [unit]), [unit], columns)


def read_decoded(source: TopicSource, unit: OffsetRange, values: ValueFormat) -> Iterator[Decoded]:
    return (decode_values(records, values) for records in read(source, unit))


def read_dead_letters(file: Any, values: ValueFormat) -> Iterator[Decoded]:
    """Read dead letters from a file and decode them again."""
    with pq.ParquetFile(file) as reader:
        for found in reader.iter_batches():
            yield decode_values(fit(found, SCHEMA), values)


def write_parquet(
    create: Callable[[], Any],
    create_dead: Callable[[], Any],
    records: Iterable[Decoded],
    values: ValueFormat,
) -> tuple[int, int]:
    """Write a file, and a second file if there are dead letters. Returns the number of records in each
    file."""
    good_count = dead_count = 0
    with contextlib.ExitStack() as stack:
        good = _RowGroups(stack.enter_context(create()), values.schema)
        dead: _RowGroups | None = None
        for found in records:
            good.add(found.good)
            good_count += found.good.num_rows
            if found.dead is not None:
                dead = dead or _RowGroups(stack.enter_context(create_dead()), DEAD_LETTER_SCHEMA)
                dead.add(found.dead)
                dead_count += found.dead.num_rows
        good.close()
        if dead is not None:
            dead.close()
    return good_count, dead_count


def _leaves(name: str, found: pa.DataType) -> list[str]:
    """Return the names of the Parquet columns that store one Arrow column."""
    if pa.types.is_struct(found):
        return [leaf for one in found for leaf in _leaves(f"{name}.{one.name}", one.type)]
    if pa.types.is_map(found):
        inside = f"{name}.key_value"
        return [*_leaves(f"{inside}.key", found.key_type), *_leaves(f"{inside}.value", found.item_type)]
    if pa.types.is_list(found):
        return _leaves(f"{name}.list.element", found.value_type)
    return [name]


class _RowGroups:
    """A Parquet file whose row groups contain many record batches.

    If numbers increase from record to record, the differences between them are stored. Differences need less
    space than a dictionary and take half the time to write. Raw values get no statistics, because range
    queries on them are useless.
    """

    def __init__(self, file: Any, schema: pa.Schema) -> None:
        leaves = [leaf for one in schema for leaf in _leaves(one.name, one.type)]
        raw = schema.field("value").type if "value" in schema.names else None
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression=COMPRESSION,
            use_dictionary=[leaf for leaf in leaves if leaf not in GROWING],
            column_encoding=dict.fromkeys([one for one in GROWING if one in leaves], "DELTA_BINARY_PACKED"),
            write_statistics=[
                leaf
                for leaf in leaves
                if not leaf.startswith("headers.") and not (leaf == "value" and raw == pa.binary())
            ],
        )
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0

    def add(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        self._waiting.append(records)
        self.waiting_bytes += records.nbytes
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows as a row group."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self.waiting_bytes = [], 0

    def close(self) -> None:
        self.flush()
        self._writer.close()
