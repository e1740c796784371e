"""Snapshots of a coordinator's state in KIP-630's form. They are written while commits continue.

A record of a snapshot has no key. Its value consists of a byte for the table, and some of the table's rows as
columns. A snapshot has the same rows as the SQLite tables at its end offset. To load a snapshot means to
insert these rows.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import apsw

from moldau.coordinators.diskless.codecs.columns import ColumnError, ColumnReader, put_column, put_varint
from moldau.coordinators.diskless.store.database import Applied, Database
from moldau.coordinators.diskless.store.schema import TABLE_NAMES
from moldau.records.batch import parse_header
from moldau.records.errors import CorruptRecordError
from moldau.records.record import iter_records
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.snapshots.replicated_log import LogPosition, SnapshotReader, SnapshotWriter
from moldau.storage.snapshots.snapshot import snapshot_file

ROWS_PER_RECORD: Final = 250
"""Number of rows in a record of a snapshot. The rows of a record are read without a break, which takes about
a millisecond of the event loop.
"""
_ROWS_MAX: Final = 65_536
"""Maximum number of rows in a record of a snapshot, even if another version has written the record."""
FORMAT: Final = 1

_INTEGER: Final = 0
_BYTES: Final = 1
_TEXT: Final = 2


class SnapshottedLog(Protocol):
    """The part of the coordinator's log that the store uses. It has the identity and the epochs of the log,
    which are needed for checks, and the snapshots of the log.
    """

    @property
    def identity(self) -> str:
        """Identity of the log, which is unique across all clusters."""
        ...

    @property
    def directory(self) -> str:
        """The absolute path of the log's folder, which contains the store's file."""
        ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def epoch_for_offset(self, offset: int) -> int | None:
        """Leader epoch of the record at ``offset``; ``None`` when it is not known."""
        ...

    def latest_snapshot_id(self) -> LogPosition | None: ...

    def open_snapshot(self, snapshot_id: LogPosition) -> SnapshotReader | None: ...

    def create_snapshot(
        self, snapshot_id: LogPosition, last_log_timestamp_ms: int
    ) -> SnapshotWriter | None: ...

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool: ...


def encode_rows(table: int, rows: Sequence[Sequence[Any]]) -> bytes:
    """Encode the value of a snapshot record."""
    out = bytearray((FORMAT, table))
    put_varint(out, len(rows))
    columns = list(zip(*rows, strict=True))
    put_varint(out, len(columns))
    for column in columns:
        first = column[0]
        if isinstance(first, int):
            out.append(_INTEGER)
            put_column(out, column)
            continue
        texts = isinstance(first, str)
        parts = [value.encode() for value in column] if texts else column
        out.append(_TEXT if texts else _BYTES)
        put_column(out, [len(part) for part in parts])
        out += b"".join(parts)
    return bytes(out)


def decode_rows(value: bytes) -> tuple[int, list[tuple[Any, ...]]]:
    """Decode the table number and rows. Raises :class:`ColumnError`, or ``ValueError`` for another format."""
    reader = ColumnReader(value)
    version, table = reader.raw(2)
    if version != FORMAT:
        raise ValueError(f"a snapshot of format {version}")
    count = reader.count(_ROWS_MAX)
    columns: list[list[Any]] = []
    for _ in range(reader.count(len(value))):
        kind = reader.raw(1)[0]
        if kind == _INTEGER:
            columns.append(reader.column(count))
            continue
        lengths = reader.column(count)
        body = reader.raw(sum(lengths))
        ends = list(itertools.accumulate(lengths))
        parts = [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        columns.append([part.decode() for part in parts] if kind == _TEXT else parts)
    reader.end()
    return table, list(zip(*columns, strict=True))


class SnapshotSource:
    """A read transaction over the tables. Its rows do not change while commits continue."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        connection.execute("begin")
        offset, epoch = next(iter(connection.execute("select applied_offset, epoch from meta")))
        self.applied = Applied(offset, epoch)
        self._values = self._read()

    def _read(self) -> Iterator[bytes]:
        for number, name in enumerate(TABLE_NAMES):
            cursor = self._connection.execute(f"select * from {name}")
            while rows := list(itertools.islice(cursor, ROWS_PER_RECORD)):
                yield encode_rows(number, rows)

    def next_value(self) -> bytes | None:
        """The next record; ``None`` at the end."""
        return next(self._values, None)

    def end(self) -> None:
        """End the read transaction."""
        self._values = iter(())
        self._connection.execute("rollback")


class _Loaded(NamedTuple):
    records: int
    rows: int


async def load_snapshot(log: SnapshottedLog, database: Database) -> _Loaded:
    """If the log has a snapshot, fill an empty database from the latest one.

    Raises ``KafkaError(corrupt_message)`` if the snapshot is damaged or belongs to another log. The error
    names the file.
    """
    snapshot_id = log.latest_snapshot_id()
    reader = None if snapshot_id is None else log.open_snapshot(snapshot_id)
    if snapshot_id is None or reader is None:
        return _Loaded(0, 0)
    records = rows = 0
    try:
        with database.transaction():
            for batch in reader.batches():
                if parse_header(batch).is_control:
                    continue
                for record in iter_records(batch):
                    if record.value is None:
                        raise KafkaError(ErrorCode.kafka_storage_error, "A snapshot record has no value.")
                    table, found = decode_rows(bytes(record.value))
                    marks = ",".join("?" * len(found[0]))
                    database.many(f"insert into {TABLE_NAMES[table]} values ({marks})", found)
                    records, rows = records + 1, rows + len(found)
            database.set_applied(Applied(snapshot_id.offset, snapshot_id.epoch))
    except (ColumnError, IndexError, ValueError, apsw.SQLError) as error:
        path = f"{log.directory}/{snapshot_file(snapshot_id)}"
        reason = f"{path} cannot be loaded as a snapshot of a coordinator: {error}"
        raise CorruptRecordError(f"{reason}. Restore the folder from a backup.") from error
    finally:
        reader.close()
    return _Loaded(records, rows)
