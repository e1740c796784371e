"""The SQLite connection of one coordinator. This module opens the connection, checks whether the file is
valid, and writes to the file. Only the store uses this module."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import apsw

from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.producers import Window
from moldau.coordinators.diskless.store.extents import Extent, trim
from moldau.coordinators.diskless.store.schema import TABLES, VERSION, SqliteOpener, prepare
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import Disk, ErrorCode, KafkaError
from moldau.runtime.files.sealed_files import Seal, break_seal, remove_database

logger = logging.getLogger(__name__)

END_OF_LOG: Final = 1 << 62
DAMAGED: Final = (apsw.CorruptError, apsw.NotADBError)


class Applied(NamedTuple):
    """The position of a database. The database contains the records of the coordinator's log before
    ``offset``."""

    offset: int
    epoch: int
    """Epoch of the record before ``offset``; -1 when there is no such record."""


class WrittenPartition(PartitionState):
    """A partition as stored in SQLite."""

    __slots__ = ("batches", "deleted", "size_bytes", "timestamp_bound_ms")

    def __init__(self, number: int, partition_id: PartitionKey, name: str) -> None:
        super().__init__(number, partition_id, name)
        self.deleted = False
        self.size_bytes = 0
        """Size of the partition's batches that were not freed yet."""
        self.batches = 0
        self.timestamp_bound_ms = -1

    def copy(self) -> "WrittenPartition":
        copied = WrittenPartition(self.number, self.id, self.name)
        copied.copy_offsets(self)
        copied.deleted, copied.timestamp_bound_ms = self.deleted, self.timestamp_bound_ms
        copied.size_bytes, copied.batches = self.size_bytes, self.batches
        return copied


class FileRow(NamedTuple):
    """The row of a file in the database, as it is when the file is committed or taken over."""

    id: int
    object_key: str
    size_bytes: int
    created_ms: int
    committed_ms: int
    owned: bool
    next_owners: str
    live_batches: int
    used_bytes: int
    unused_since_ms: int


def encode_owners(owner_ids: Sequence[int]) -> str:
    return json.dumps(list(owner_ids))


def decode_owners(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text))


class Database:
    """One open database."""

    def __init__(
        self,
        connection: apsw.Connection,
        on_damage: Callable[[Exception], None] = lambda _: None,
        *,
        new_for: str | None,
    ) -> None:
        """Use an open connection. ``new_for`` is the log whose identity is written into new tables.

        If SQLite finds damage in its file during a read or a write, ``on_damage`` is called on the thread of
        that read or write.
        """
        self.connection = connection
        self._on_damage = on_damage
        self.concurrent_readers = prepare(connection)
        if new_for is not None:
            connection.execute(TABLES)
            connection.execute("insert into meta values (1, ?, 0, -1, 0, ?)", (VERSION, new_for))

    @classmethod
    def open_clean(
        cls, opener: SqliteOpener, disk: Disk, path: str, log: str, on_damage: Callable[[Exception], None]
    ) -> "Database | None":
        """Open the existing database if all these conditions hold: it has the table version of this software,
        it belongs to this log, it was closed cleanly, and its checksum is correct. Otherwise returns
        ``None``.

        From the opening on, the database is marked as not cleanly closed. The identity of the log is needed,
        because a matching offset and epoch do not prove that the database belongs to the log.
        """
        seal = break_seal(disk, path)
        if seal is not Seal.WHOLE:
            if seal is not Seal.NONE:
                logger.warning("%s is %s: it is rebuilt from the log", path, seal.value)
            return None
        connection = opener(path)
        try:
            database = cls(connection, on_damage, new_for=None)
            row = database.one("select version, clean, log from meta")
            if row == (VERSION, 1, log):
                database._mark(clean=False)
                return database
        except apsw.Error:
            pass
        connection.close(True)
        return None

    @classmethod
    def create(
        cls, opener: SqliteOpener, disk: Disk, path: str, log: str, on_damage: Callable[[Exception], None]
    ) -> "Database":
        """Create an empty database. An existing database is replaced."""
        remove_database(disk, path)
        return cls(opener(path), on_damage, new_for=log)

    def _mark(self, *, clean: bool) -> None:
        self.connection.pragma("synchronous", "full")
        self.connection.execute("update meta set clean = ?", (int(clean),))
        self.connection.execute("pragma wal_checkpoint(truncate)")
        self.connection.pragma("synchronous", "off")

    def close(self, *, clean: bool) -> bool:
        """Close the database. Returns whether the database is marked as cleanly closed. Only in this case may
        the caller write the checksum of the file."""
        if clean:
            try:
                self._mark(clean=True)
            except (apsw.Error, OSError):
                clean = False
        # A full or failed disk must not stop the shutdown. No data are lost, because the file is only a
        # cache.
        with contextlib.suppress(apsw.Error, OSError):
            self.connection.close(True)
        return clean

    def _damaged(self, error: Exception) -> KafkaError:
        """Report that the file is damaged, and return the error for the caller of the read or write. With
        this error, clients retry until the file is rebuilt. The damaged file is not read any more."""
        self._on_damage(error)
        return KafkaError(ErrorCode.coordinator_load_in_progress, f"The coordinator is rebuilt: {error}")

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        try:
            return next(iter(self.connection.execute(sql, values)), None)
        except DAMAGED as error:
            raise self._damaged(error) from error

    def all(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        try:
            yield from self.connection.execute(sql, values)
        except DAMAGED as error:
            raise self._damaged(error) from error

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            self.connection.executemany(sql, rows)
        except DAMAGED as error:
            raise self._damaged(error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            self.connection.execute("begin immediate")
            try:
                yield
                # If the commit fails, for example because the disk is full, SQLite may leave the transaction
                # open.
                self.connection.execute("commit")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("rollback")
                raise
        except DAMAGED as error:
            raise self._damaged(error) from error

    # -- within a transaction --------------------------------------------------------------------

    def set_applied(self, applied: Applied) -> None:
        self.connection.execute("update meta set applied_offset = ?, epoch = ?", applied)

    def applied(self) -> Applied:
        return Applied(*self.one("select applied_offset, epoch from meta"))

    def add_extents(self, extents: Iterable[Extent]) -> None:
        self.many("insert into extents values (?,?,?,?,?,?,?,?,?)", extents)

    def add_files(self, files: Sequence[FileRow]) -> dict[int, int]:
        """Store files. If a file already has a row, its new batches are added to this row. Returns the ids of
        such rows, by the ids that the files would have had.

        This happens only if the coordinator has forgotten the result of the file's first commit too early,
        because clocks have jumped. It must not stop the coordinator.
        """
        sql = (
            "insert into files values (?,?,?,?,?,?,?,?,?,?) on conflict (object_key)"
            " do update set live_batches = live_batches + excluded.live_batches,"
            " used_bytes = used_bytes + excluded.used_bytes returning id"
        )
        try:
            ids = [found for (found,) in self.connection.executemany(sql, files)]
        except DAMAGED as error:
            raise self._damaged(error) from error
        return {file.id: found for file, found in zip(files, ids, strict=True) if found != file.id}

    def put_partitions(self, partitions: Iterable[WrittenPartition]) -> None:
        self.many(
            "insert or replace into partitions values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    found.number, found.id.topic_id.bytes, found.id.partition, found.name,
                    found.log_start, found.wal_start, found.next, found.prune_epoch,
                    found.last_prune[0], found.last_prune[1], found.remote_position, int(found.deleted),
                    found.size_bytes, found.batches, found.timestamp_bound_ms,
                )
                for found in partitions
            ],
        )  # fmt: skip

    def partitions(self) -> Iterator[WrittenPartition]:
        for row in self.all("select * from partitions"):
            found = WrittenPartition(row[0], PartitionKey(UUID(bytes=row[1]), row[2]), row[3])
            found.log_start, found.wal_start, found.next, found.prune_epoch = row[4:8]
            found.last_prune, found.remote_position = (row[8], row[9]), row[10]
            found.deleted = bool(row[11])
            found.size_bytes, found.batches, found.timestamp_bound_ms = row[12:15]
            yield found

    def put_windows(self, windows: Mapping[int, Mapping[int, Window]]) -> None:
        """Store windows by partition number and producer id."""
        self.many(
            "insert or replace into producers values (?,?,?)",
            [
                (number, producer_id, window)
                for number, changed in windows.items()
                for producer_id, window in changed.items()
            ],
        )

    def take_over(self, row: FileRow) -> None:
        """Store that this coordinator owns a file. If the file already has a row, the row is changed."""
        self.connection.execute(
            "insert into files values (?,?,?,?,?,?,?,?,?,?) on conflict (object_key)"
            " do update set owned = 1, next_owners = excluded.next_owners,"
            " unused_since_ms = excluded.unused_since_ms",
            row,
        )

    def release(self, object_keys: Iterable[str]) -> None:
        self.many("delete from files where object_key = ?", [(key,) for key in object_keys])

    def trim(self, partition: WrittenPartition, limit: int, now_ms: int) -> bool:
        """Free up to ``limit`` extents before the partition's WAL start. Returns whether more extents are
        left.

        Only this method removes batches from files.
        """
        start = END_OF_LOG if partition.deleted else partition.wal_start
        found = [
            Extent(*row)
            for row in self.all(
                "select * from extents where partition = ? order by last_offset limit ?",
                (partition.number, limit),
            )
        ]
        self.connection.execute(
            "delete from aborted where partition = ? and last_offset in"
            " (select last_offset from aborted where partition = ? and last_offset < ? limit ?)",
            (partition.number, partition.number, start, limit),
        )
        has_more_aborted = self.connection.changes() == limit
        below = [extent for extent in found if extent.first_offset < start]
        freed: dict[int, tuple[int, int]] = {}
        last_gone = -1
        for extent in below:
            left, batches, size_bytes = trim(extent, start)
            if not batches:
                continue
            before = freed.get(extent.file_id, (0, 0))
            freed[extent.file_id] = (before[0] + batches, before[1] + size_bytes)
            partition.batches -= batches
            partition.size_bytes -= size_bytes
            if left is None:
                last_gone = extent.last_offset
            else:
                self.connection.execute("insert or replace into extents values (?,?,?,?,?,?,?,?,?)", left)
        if last_gone >= 0:
            self.connection.execute(
                "delete from extents where partition = ? and last_offset <= ?", (partition.number, last_gone)
            )
        self.many(
            "update files set live_batches = live_batches - ?, used_bytes = used_bytes - ?,"
            " unused_since_ms = ? where id = ?",
            [(batches, size, now_ms, file_id) for file_id, (batches, size) in freed.items()],
        )
        return has_more_aborted or len(below) == limit

    def forget_partition(self, number: int, limit: int) -> bool:
        """Delete the rows of a deleted partition, at most ``limit`` at a time. The rows of its producers are
        deleted first. Returns whether rows are left."""
        for table in ("producers", "transactions"):
            self.connection.execute(
                f"delete from {table} where partition = ? and producer_id in"
                f" (select producer_id from {table} where partition = ? limit ?)",
                (number, number, limit),
            )
            if self.connection.changes() == limit:
                return True
        self.connection.execute("delete from partitions where number = ?", (number,))
        return False
