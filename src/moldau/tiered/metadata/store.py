"""The local cache of the topic-based metadata manager: the state after all applied events, in a SQLite
database.

It contains every partition whose events this broker has followed. For each metadata partition it contains the
offset up to which events are applied. This offset is written in the same transaction as the events. Therefore
a broker continues from that offset after a restart. A newly assigned partition is loaded from the database,
so the whole topic need not be read. The database is only a cache. It is dropped and rebuilt from the topic
when it is unreadable or does not match the topic. For example, the topic id differs, or the log does not have
the offset or the leader epoch.

All calls block. They are made one at a time, on worker threads.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

import apsw
from crc32c import crc32c

from moldau.protocol.decoding_errors import ProtocolError
from moldau.runtime import Disk, Machine
from moldau.runtime.files.sealed_files import Seal, break_seal, remove_database, seal_database
from moldau.tiered.metadata.lifecycle import (
    IllegalTransitionError,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    check_partition_delete_move,
    check_segment_move,
)
from moldau.tiered.metadata.records import decode_snapshot, encode_snapshot
from moldau.tiered.metadata.segment_cache import epoch_ranges
from moldau.tiered.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError

__all__ = ["NOTHING_APPLIED", "AppliedEvents", "EventOutcome", "MetadataStore", "StoredSegments"]

logger = logging.getLogger(__name__)

VERSION: Final = 2

_TABLES: Final = """
create table meta (one integer primary key check (one = 1), version integer not null, topic_id blob not null);
create table applied (metadata_partition integer primary key, next_offset integer not null,
    epoch integer not null, sum integer as (row_sum(metadata_partition, next_offset, epoch)) stored);
create table partitions (number integer primary key, topic_id blob not null, partition integer not null,
    topic text not null, metadata_partition integer not null, delete_state integer,
    delete_timestamp_ms integer, delete_broker_id integer,
    sum integer as (row_sum(number, topic_id, partition, topic, metadata_partition, delete_state,
    delete_timestamp_ms, delete_broker_id)) stored,
    unique (topic_id, partition));
create index deletions on partitions (metadata_partition) where delete_state < 2;
create table segments (number integer not null, id blob not null, content blob not null,
    sum integer as (row_sum(number, id, content)) stored, primary key (number, id)) without rowid;
create table epochs (number integer not null, epoch integer not null, highest_offset integer not null,
    sum integer as (row_sum(number, epoch, highest_offset)) stored,
    primary key (number, epoch)) without rowid;
"""
_COLUMNS: Final = {
    "applied": "metadata_partition, next_offset, epoch",
    "partitions": "number, topic_id, partition, topic, metadata_partition, delete_state, delete_timestamp_ms,"
    " delete_broker_id",
    "segments": "number, id, content",
    "epochs": "number, epoch, highest_offset",
}
"""For each table, the columns that the checksum of a row covers. SQLite itself detects only damage in the
structure of its pages."""


class AppliedEvents(NamedTuple):
    """The position up to which a metadata partition's events are applied. It consists of the next offset, and
    the leader epoch of the offset before that."""

    next_offset: int
    epoch: int


NOTHING_APPLIED: Final = AppliedEvents(0, -1)


class EventOutcome(NamedTuple):
    """The result of an event: the new state of the segment or deletion, or the reason why the event was
    dropped."""

    offset: int
    changed: RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata | None
    error: Exception | None = None


@dataclass(slots=True)
class StoredSegments:
    """The segments and highest offsets that are stored for a partition."""

    segments: Sequence[RemoteLogSegmentMetadata] = ()
    highest_offsets: Mapping[int, int] = field(default_factory=dict)


class MetadataStore:
    """An open database with the state of remote segments."""

    def __init__(self, connection: apsw.Connection, disk: Disk, path: str) -> None:
        self._connection = connection
        self._disk = disk
        self._path = path

    @classmethod
    def open(cls, machine: Machine, path: str, topic_id: UUID) -> "MetadataStore":
        """Open the database at ``path`` (absolute), or replace it with an empty database."""
        disk = machine.disk
        seal = break_seal(disk, path)
        problem = None if seal in (Seal.NONE, Seal.WHOLE) else f"it is {seal.value}"
        if problem is None and disk.exists(path):
            connection = None
            try:
                connection = _connect(machine, path)
                problem = _unlike(connection, topic_id)
                if problem is None and seal is not Seal.WHOLE:
                    problem = _damage(connection)
                if problem is None:
                    return cls(connection, disk, path)
            except apsw.Error as error:
                problem = str(error)
            if connection is not None:
                with contextlib.suppress(apsw.Error):
                    connection.close(True)
        if problem:
            logger.warning("%s is rebuilt from the topic: %s", path, problem)
        remove_database(disk, path)
        connection = _connect(machine, path)
        # All rows are written in a single transaction. Otherwise a loss of power could leave only some of the
        # rows.
        with connection:
            connection.execute(_TABLES)
            connection.execute("insert into meta values (1, ?, ?)", (VERSION, topic_id.bytes))
        return cls(connection, disk, path)

    def close(self) -> None:
        """Close the file, and mark it as closed cleanly. A full disk raises no error."""
        with contextlib.suppress(apsw.Error, OSError):
            self._connection.close(True)
            seal_database(self._disk, self._path)

    def abandon(self) -> None:
        """Close a damaged file and remove it."""
        with contextlib.suppress(apsw.Error):
            self._connection.close(True)
        remove_database(self._disk, self._path)

    # Reads --------------------------------------------------------------------------------------

    def applied(self, metadata_partition: int) -> AppliedEvents:
        """The position up to which a metadata partition is applied."""
        row = self._one(
            "select next_offset, epoch from applied where metadata_partition = ?", metadata_partition
        )
        return NOTHING_APPLIED if row is None else AppliedEvents(*row)

    def load(self, partition: TopicIdPartition) -> StoredSegments:
        """The stored segments and highest offsets of a partition."""
        number = self._number(partition)
        if number is None:
            return StoredSegments()
        for table in ("segments", "epochs"):
            if self._one(f"{_unlike_their_sums(table)} and number = ?", number) is not None:
                raise apsw.CorruptError(f"a row of {table} is not what was written")
        contents = self._connection.execute("select content from segments where number = ?", (number,))
        epochs = self._connection.execute(
            "select epoch, highest_offset from epochs where number = ?", (number,)
        )
        try:
            segments = [decode_snapshot(partition, content) for (content,) in contents]
        except ProtocolError as error:
            raise apsw.CorruptError(f"a segment of {partition}: {error}") from error
        return StoredSegments(segments, dict(epochs))

    def deletions(self, metadata_partition: int) -> list[RemotePartitionDeleteMetadata]:
        """The unfinished removals of a metadata partition."""
        rows = self._connection.execute(
            "select topic_id, topic, partition, delete_state, delete_timestamp_ms, delete_broker_id"
            " from partitions where metadata_partition = ? and delete_state < 2",
            (metadata_partition,),
        )
        return [
            RemotePartitionDeleteMetadata(
                TopicIdPartition(UUID(bytes=topic_id), topic, index),
                RemotePartitionDeleteState(state),
                timestamp_ms,
                broker_id,
            )
            for topic_id, topic, index, state, timestamp_ms, broker_id in rows
        ]

    def partitions(self, metadata_partition: int) -> list[TopicIdPartition]:
        """The partitions that have segments in a metadata partition and are not being deleted."""
        rows = self._connection.execute(
            "select topic_id, topic, partition from partitions where metadata_partition = ?"
            " and delete_state is null and exists (select 1 from segments where number = partitions.number)",
            (metadata_partition,),
        )
        return [TopicIdPartition(UUID(bytes=topic_id), topic, index) for topic_id, topic, index in rows]

    # Writes -------------------------------------------------------------------------------------

    def apply(
        self,
        metadata_partition: int,
        events: Sequence[tuple[int, RemoteLogMetadata]],
        applied: AppliedEvents,
    ) -> list[EventOutcome]:
        """Apply all events in order. If this fails, no event is applied. Illegal changes of state are dropped
        and reported."""
        outcomes = []
        with self._transaction():
            for offset, event in events:
                try:
                    outcomes.append(EventOutcome(offset, self._apply(metadata_partition, event)))
                except (IllegalTransitionError, RemoteResourceNotFoundError) as error:
                    outcomes.append(EventOutcome(offset, None, error))
            self._connection.execute(
                "insert or replace into applied values (?, ?, ?)", (metadata_partition, *applied)
            )
        return outcomes

    def reset(self, metadata_partition: int) -> None:
        """Delete the state of a metadata partition, so that the partition is read again from its start."""
        mine = "(select number from partitions where metadata_partition = ?)"
        with self._transaction():
            for sql in (
                f"delete from segments where number in {mine}",
                f"delete from epochs where number in {mine}",
                "delete from partitions where metadata_partition = ?",
                "delete from applied where metadata_partition = ?",
            ):
                self._connection.execute(sql, (metadata_partition,))

    def _apply(
        self, metadata_partition: int, event: RemoteLogMetadata
    ) -> RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata:
        match event:
            case RemoteLogSegmentMetadata():
                return self._add(metadata_partition, event)
            case RemoteLogSegmentMetadataUpdate():
                return self._update(event)
            case RemotePartitionDeleteMetadata():
                return self._delete_partition(metadata_partition, event)

    def _add(self, metadata_partition: int, event: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        number = self._number_or_new(metadata_partition, event.topic_id_partition)
        known = self._segment(number, event.id)
        check_segment_move(None if known is None else known.state, event.state)
        if known is None and self._delete_state(number) is not None:
            raise IllegalTransitionError(f"{event.id}: no segment of a deleted partition is copied")
        self._put(number, event)
        return event

    def _update(self, event: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        number = self._number(event.topic_id_partition)
        known = None if number is None else self._segment(number, event.id)
        if number is None or known is None:
            raise RemoteResourceNotFoundError(f"{event.id} is not known: it was deleted, or never begun")
        changed = known.with_update(event)
        if changed.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self._connection.execute(
                "delete from segments where number = ? and id = ?", (number, event.id.id.bytes)
            )
        else:
            self._put(number, changed)
        return changed

    def _put(self, number: int, metadata: RemoteLogSegmentMetadata) -> None:
        self._connection.execute(
            "insert or replace into segments values (?, ?, ?)",
            (number, metadata.id.id.bytes, encode_snapshot(metadata)),
        )
        if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            self._connection.executemany(
                "insert into epochs values (?, ?, ?) on conflict do update"
                " set highest_offset = max(highest_offset, excluded.highest_offset)",
                [(number, epoch, end) for epoch, _, end in epoch_ranges(metadata)],
            )

    def _delete_partition(
        self, metadata_partition: int, event: RemotePartitionDeleteMetadata
    ) -> RemotePartitionDeleteMetadata:
        known = self._number(event.partition)
        check_partition_delete_move(None if known is None else self._delete_state(known), event.state)
        number = self._number_or_new(metadata_partition, event.partition)
        # The row stays after the removal. Otherwise a late event of a copy would restore the partition.
        self._connection.execute(
            "update partitions set delete_state = ?, delete_timestamp_ms = ?, delete_broker_id = ?"
            " where number = ?",
            (event.state, event.event_timestamp_ms, event.broker_id, number),
        )
        if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._connection.execute("delete from segments where number = ?", (number,))
            self._connection.execute("delete from epochs where number = ?", (number,))
        return event

    # Rows ---------------------------------------------------------------------------------------

    def _one(self, sql: str, *values: Any) -> Any:
        return next(iter(self._connection.execute(sql, values)), None)

    def _number(self, partition: TopicIdPartition) -> int | None:
        row = self._one(
            "select number from partitions where topic_id = ? and partition = ?",
            partition.topic_id.bytes,
            partition.partition,
        )
        return None if row is None else row[0]

    def _number_or_new(self, metadata_partition: int, partition: TopicIdPartition) -> int:
        found = self._number(partition)
        if found is not None:
            return found
        self._connection.execute(
            "insert into partitions (topic_id, partition, topic, metadata_partition) values (?, ?, ?, ?)",
            (partition.topic_id.bytes, partition.partition, partition.topic, metadata_partition),
        )
        return self._connection.last_insert_rowid()

    def _delete_state(self, number: int) -> RemotePartitionDeleteState | None:
        (state,) = self._one("select delete_state from partitions where number = ?", number)
        return None if state is None else RemotePartitionDeleteState(state)

    def _segment(self, number: int, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        row = self._one("select content from segments where number = ? and id = ?", number, id.id.bytes)
        if row is None:
            return None
        try:
            return decode_snapshot(id.topic_id_partition, row[0])
        except ProtocolError as error:
            raise apsw.CorruptError(f"{id}: {error}") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute("commit")


def _damage(connection: apsw.Connection) -> str | None:
    """A description of the damage of a database; ``None`` when the database is intact. The check is needed
    only if the database was not closed cleanly."""
    verdict = str(connection.pragma("integrity_check"))
    if verdict != "ok":
        return verdict
    for table in _COLUMNS:
        if next(iter(connection.execute(_unlike_their_sums(table))), None) is not None:
            return f"a row of {table} is not what was written"
    return None


def _unlike_their_sums(table: str) -> str:
    return f"select 1 from {table} where sum is not row_sum({_COLUMNS[table]})"


def _row_sum(*values: Any) -> int:
    return crc32c(repr(values).encode())


def _unlike(connection: apsw.Connection, topic_id: UUID) -> str | None:
    """The reason why a database is not the cache of this topic. The result is ``None`` if the database is the
    cache, and an empty string if nothing was ever written to the database."""
    if next(iter(connection.execute("select 1 from sqlite_master")), None) is None:
        return ""
    row = next(iter(connection.execute("select version, topic_id from meta")), None)
    if row is None or row[0] != VERSION:
        return "it is of another version"
    return None if row[1] == topic_id.bytes else "it is not of this topic"


def _connect(machine: Machine, path: str) -> apsw.Connection:
    """Open the database for a single user. After a crash of the machine, the database is consistent, and
    lacks at most the last few applied events."""
    connection = machine.open_sqlite(path)
    try:
        connection.create_scalar_function("row_sum", _row_sum, deterministic=True)
        connection.pragma("locking_mode", "exclusive")
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "normal")
        connection.pragma("temp_store", "memory")
    except apsw.Error:
        connection.close(True)
        raise
    return connection
