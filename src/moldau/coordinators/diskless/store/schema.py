"""The store's tables in SQLite, and the port that opens connections.

The tables contain all state of a coordinator. In a snapshot, a table is identified by its index in
``TABLE_NAMES``. Therefore a new table of snapshots must be added at the end of ``TABLE_NAMES``. Each change
of the tables needs the next ``VERSION``. A database of an older version is rebuilt from snapshot and log.
"""

from typing import Final, Protocol

import apsw

VERSION: Final = 4


class SqliteOpener(Protocol):
    """Opens the database at an absolute path. A simulation passes its own function, which uses a simulated
    disk."""

    def __call__(self, path: str, /) -> apsw.Connection: ...


def open_sqlite(path: str) -> apsw.Connection:
    """Open a database on the operating system's files."""
    return apsw.Connection(path)


TABLES: Final = """
create table meta (one integer primary key check (one = 1), version integer not null,
    applied_offset integer not null, epoch integer not null, clean integer not null, log text not null);
create table partitions (number integer primary key, topic_id blob not null, partition_index integer not null,
    name text not null, log_start integer not null, wal_start integer not null, next integer not null,
    prune_epoch integer not null, pruned_from integer not null, pruned_to integer not null,
    remote_position integer not null, deleted integer not null, size_bytes integer not null,
    batches integer not null, timestamp_bound_ms integer not null);
create table files (id integer primary key, object_key text not null, size_bytes integer not null,
    created_ms integer not null, committed_ms integer not null, owned integer not null,
    next_owners text not null, live_batches integer not null, used_bytes integer not null,
    unused_since_ms integer not null);
create unique index files_key on files (object_key);
create index files_created on files (created_ms);
create index files_unused on files (unused_since_ms) where live_batches = 0;
create table extents (partition integer not null, last_offset integer not null,
    first_offset integer not null, file_id integer not null, size_bytes integer not null,
    max_timestamp_ms integer not null, timestamp_bound_ms integer not null,
    committed_ms integer not null, packed blob not null,
    primary key (partition, last_offset)) without rowid;
create table producers (partition integer not null, producer_id integer not null, window blob not null,
    primary key (partition, producer_id)) without rowid;
create table transactions (partition integer not null, producer_id integer not null,
    first_offset integer not null, coordinator_epoch integer not null,
    primary key (partition, producer_id)) without rowid;
create table aborted (partition integer not null, last_offset integer not null,
    first_offset integer not null, producer_id integer not null, last_stable_offset integer not null,
    primary key (partition, last_offset)) without rowid;
create table results (object_key text primary key, created_ms integer not null,
    committed_ms integer not null, receipt blob not null) without rowid;
create table closed (object_key text primary key, closed_ms integer not null) without rowid;
create table senders (broker_id integer primary key, epoch integer not null, next_number integer not null);
"""

TABLE_NAMES: Final = (
    "partitions",
    "files",
    "extents",
    "producers",
    "results",
    "closed",
    "transactions",
    "aborted",
)
"""All tables whose rows are in a snapshot.

The table with the places of brokers (``senders``) is not included, because older nodes could not load it. A
coordinator that was loaded from a snapshot continues with the number that a broker sends as ``open_from``.
"""


def prepare(connection: apsw.Connection) -> bool:
    """Apply the settings for a cache that has one writer and can be rebuilt. Returns whether readers can work
    at the same time as the writer.

    With ``synchronous=off`` a crash of the machine may damage the file. Therefore the file is used only when
    it was closed cleanly (``meta.clean``, which is synced). Otherwise it is rebuilt from snapshot and log.
    """
    mode = connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "off")
    connection.pragma("temp_store", "memory")
    connection.pragma("cache_size", -65536)
    return str(mode).lower() == "wal" and str(connection.pragma("locking_mode")).lower() != "exclusive"
