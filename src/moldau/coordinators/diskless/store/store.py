"""The state of one coordinator: SQLite tables, and the committed records that are not in the tables yet.

The runtime passes committed records to the store. Reads see them immediately (``view``). They are written to
SQLite a little later, many in one transaction, together with the applied offset and epoch. The file is a
cache. If the file was not closed cleanly or does not match the log, it is dropped. Then it is rebuilt from
the latest snapshot, and the runtime replays the later records.

The store writes on the event loop, in slices of ``FLUSH_RECORDS``. A thread would not be faster, because it
would compete with the loop for the interpreter's lock. A snapshot is read from a separate connection with its
own read transaction.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias, TypeVar, cast

import apsw

from moldau.coordinators.diskless.state.file_memory import Remembered
from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.records import DisklessRecord, TopicDeleted
from moldau.coordinators.diskless.state.shard import DisklessShard, ReplayedChanges
from moldau.coordinators.diskless.state.transactions import AbortedExtent, PartitionTransactions
from moldau.coordinators.diskless.store.database import Applied, Database
from moldau.coordinators.diskless.store.materialiser import DELETED_PARTITIONS, Materialiser, Unwritten
from moldau.coordinators.diskless.store.schema import SqliteOpener, open_sqlite
from moldau.coordinators.diskless.store.snapshot_format import SnapshottedLog, load_snapshot
from moldau.coordinators.diskless.store.view import CommittedView, StoredPartition
from moldau.coordinators.shard import CommittedRecord
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.files.sealed_files import SUM_SUFFIX, seal_database

logger = logging.getLogger(__name__)

FLUSH_DELAY_S: Final = 0.02
FLUSH_RECORDS: Final = 12
"""Maximum number of records in a transaction. Other tasks of the event loop can run after each transaction.
With a larger number, more changes of the same producer's window are combined into one write. With a smaller
number, a transaction delays commits for a shorter time."""
MAX_UNWRITTEN_RECORDS: Final = 256
"""If more records than this number are not written yet, each new record is written immediately."""

ROWS_A_TURN: Final = 1_000
"""Number of rows of the database that are loaded without a break. This takes between 3 and 15 ms."""

T = TypeVar("T")
OnChanged: TypeAlias = Callable[[Sequence[StoredPartition]], None]
"""The function to call with the partitions that a commit has changed."""


class DisklessStore:
    """Implements the runtime's ``ShardStore``. Reads use ``view`` and ``database``."""

    def __init__(
        self,
        machine: Machine,
        log: SnapshottedLog,
        path: str,
        coordinator_id: int,
        *,
        opener: SqliteOpener = open_sqlite,
        listener: OnChanged | None = None,
        on_damage: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_damage`` is called once when SQLite finds damage in its file.

        The store must then be restored, which rebuilds the file.
        """
        self.coordinator_id = coordinator_id
        self.view = CommittedView()
        self.committed_offset = 0
        self.records_since_snapshot = 0
        self.machine = machine
        self.log = log
        self.path = path
        self.opener = opener
        self._listener = listener
        self._on_damage = on_damage
        self._materialiser: Materialiser | None = None
        self._unwritten: deque[Unwritten] = deque()
        self._changes = ReplayedChanges()
        """Changes of the shard's state that are replayed but not committed yet."""
        self._handle: asyncio.Handle | None = None
        self._closing: asyncio.Future[None] | None = None
        """The future of the last close of a database; ``None`` before the first close."""
        self._paused = 0
        self._is_disk_full = False
        self._is_sound = False
        """Whether a database is open in which no damage was found."""

    @property
    def materialiser(self) -> Materialiser:
        """The object that writes into SQLite. Raises COORDINATOR_LOAD_IN_PROGRESS while the store is not
        open."""
        if self._materialiser is None:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "The store is not open.")
        return self._materialiser

    @property
    def database(self) -> Database:
        return self.materialiser.database

    # -- calls of the runtime -------------------------------------------------------------------

    async def restore(self, shard: object) -> int | None:
        assert isinstance(shard, DisklessShard)
        await self._drop_database()
        disk, workers = self.machine.disk, self.machine.workers
        if self.log.end_offset and not (disk.exists(self.path) or disk.exists(self.path + SUM_SUFFIX)):
            logger.warning("%s is missing: it is rebuilt from the log", self.path)
        source = (self.opener, disk, self.path, self.log.identity, self._found_damage)
        self._is_sound = False
        database = await workers.run(Database.open_clean, *source)
        if database is not None and not self._matches(database.applied()):
            logger.warning("%s does not match the log and is rebuilt.", self.path)
            database.close(clean=False)
            database = None
        if database is None:
            database = await workers.run(Database.create, *source)
            try:
                await load_snapshot(self.log, database)
            except BaseException:
                database.close(clean=False)
                raise
        applied = database.applied()
        if applied.offset < self.log.start_offset:
            database.close(clean=False)
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"The log starts at {self.log.start_offset} and no snapshot covers what was before.",
            )
        self._is_sound = True
        self._materialiser = Materialiser(database, self.coordinator_id)
        await self._load(shard, self._materialiser)
        self.committed_offset = applied.offset
        self._changes = shard.follow_changes()
        self._plan_writing()
        return applied.offset

    def _matches(self, applied: Applied) -> bool:
        """Whether the database matches the log: the log's record directly before the applied offset has the
        applied epoch."""
        if not self.log.start_offset <= applied.offset <= self.log.end_offset:
            return False
        return applied.epoch == self._epoch_before(applied.offset)

    def _epoch_before(self, offset: int) -> int:
        if offset == 0:
            return -1
        snapshot = self.log.latest_snapshot_id()
        if snapshot is not None and snapshot.offset == offset:
            return snapshot.epoch
        epoch = self.log.epoch_for_offset(offset - 1)
        return -1 if epoch is None else epoch

    async def _load(self, shard: DisklessShard, materialiser: Materialiser) -> None:
        view = self.view = CommittedView()
        self._unwritten.clear()
        hot: dict[int, PartitionState] = {}
        async for written in _in_turns(materialiser.partitions.values()):
            if written.deleted:
                continue
            stored = StoredPartition(written.number, written.id, written.name)
            stored.timestamp_bound_ms = written.timestamp_bound_ms
            state = PartitionState(written.number, written.id, written.name)
            for copy in (stored, state):
                copy.copy_offsets(written)
            view.add(stored)
            shard.partitions.add(state)
            hot[written.number] = state
        database = materialiser.database
        async for number, producer_id, window in _in_turns(database.all("select * from producers")):
            if number in hot:
                hot[number].producers[producer_id] = window
        await self._load_transactions(database, hot)
        async for key, *remembered in _in_turns(database.all("select * from results order by committed_ms")):
            shard.files.restore_result(key, Remembered(*remembered))
        async for key, closed_ms in _in_turns(database.all("select * from closed order by closed_ms")):
            shard.files.close(key, closed_ms)
        for broker_id, epoch, next_number in database.all("select * from senders"):
            shard.order.restore(broker_id, epoch, next_number)

    async def _load_transactions(self, database: Database, hot: dict[int, PartitionState]) -> None:
        rows: dict[int, list[tuple[int, int, int]]] = {}
        async for number, *row in _in_turns(database.all("select * from transactions")):
            rows.setdefault(number, []).append((row[0], row[1], row[2]))
        for number, found in rows.items():
            if number in hot:
                transactions = PartitionTransactions()
                transactions.restore(found)
                hot[number].transactions = transactions
                self.view.by_number[number].transactions = transactions.copy()
        extents = database.all("select * from aborted order by partition, last_offset")
        async for number, *extent in _in_turns(extents):
            if number in hot and extent[0] >= hot[number].wal_start:
                self.view.by_number[number].aborted.add(AbortedExtent(*extent))

    def committed(self, records: Sequence[CommittedRecord], up_to_offset: int) -> None:
        view, changes = self.view, self._changes
        changed: list[StoredPartition] = []
        for offset, record in records:
            found = cast(DisklessRecord, record)
            moved = changes.moved.pop(offset, ())
            change = view.apply(offset, found, moved)
            changed.extend(change.partitions)
            expired = changes.expired.pop(offset, ())
            view.forget_producers(expired)
            self._unwritten.append(Unwritten(offset, found, moved, change, expired))
        self.committed_offset = max(self.committed_offset, up_to_offset)
        if not records:
            return
        self.records_since_snapshot += len(records)
        while len(self._unwritten) > MAX_UNWRITTEN_RECORDS and not self._paused:
            self._write_some()
        self._plan_writing()
        if self._listener is not None and changed:
            self._listener(changed)

    async def close(self) -> None:
        await self._drop_database()

    async def _drop_database(self) -> None:
        """Wait until the file is not in use any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._materialiser is not None:
            clean = True
            try:
                self.write_all()
            except Exception:
                logger.exception("%s could not be brought up to date; it will be rebuilt.", self.path)
                clean = False
            database, self._materialiser = self._materialiser.database, None
            closing = self.machine.workers.run(self._close_database, database, clean and self._is_sound)
            self._closing = asyncio.ensure_future(closing)
        if self._closing is not None:
            # The file must be closed even when a load is cancelled. Otherwise the next load could find a file
            # that is still being closed.
            await asyncio.shield(self._closing)

    def _close_database(self, database: Database, clean: bool) -> None:
        """Close the database, and write the checksum of its file after a clean close. The function syncs the
        file, so it must run on a worker thread."""
        if database.close(clean=clean):
            # A full disk must not stop the shutdown. If the checksum could not be written, the database is
            # rebuilt at the next start.
            with contextlib.suppress(OSError):
                seal_database(self.machine.disk, self.path)

    def _found_damage(self, error: Exception) -> None:
        """Mark the file as damaged, so that it is not used again.

        If no database is open yet, ``on_damage`` is not called: the damage was found while the file was
        opened, so the load fails and is repeated anyway.
        """
        if self._is_sound:
            self._is_sound = False
            logger.error("%s is damaged and is rebuilt from the log: %s", self.path, error)
            self._on_damage()

    # -- writes to SQLite -----------------------------------------------------------------------

    def write_all(self) -> None:
        """Write all records that are committed.

        Raises COORDINATOR_LOAD_IN_PROGRESS, which clients retry, while a snapshot is read on the connection
        that writes.
        """
        if self._paused and self._unwritten:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "A snapshot is being written.")
        while self._unwritten:
            self._write_some()

    async def catch_up(self) -> None:
        """Write the committed records in slices. Other tasks of the event loop can run between two slices."""
        end = self.committed_offset
        while self._unwritten and self._unwritten[0].offset < end and self._materialiser is not None:
            if not self._paused:
                self._write_some()
            await asyncio.sleep(0)

    def pause_writing(self) -> None:
        """Stop writes while a snapshot is read, for databases that do not support a reader and a writer at
        the same time."""
        self._paused += 1

    def resume_writing(self) -> None:
        self._paused -= 1
        self._plan_writing()

    def _plan_writing(self) -> None:
        if self._handle is not None or self._materialiser is None or self._paused:
            return
        if self._unwritten or self._materialiser.to_trim:
            self._handle = asyncio.get_running_loop().call_later(FLUSH_DELAY_S, self._turn)

    def _turn(self) -> None:
        self._handle = None
        materialiser = self._materialiser
        if materialiser is None or self._paused:
            return
        try:
            if self._unwritten:
                self._write_some()
            elif materialiser.to_trim:
                materialiser.trim_some(self.machine.clock.now_ms())
        except Exception as error:
            if not self._is_sound:
                return  # The write has failed because the file is damaged. The store will be restored soon.
            if isinstance(error, apsw.FullError):
                log = logger.debug if self._is_disk_full else logger.warning
                log("%s cannot be written while its disk is full; it is tried again.", self.path)
                self._is_disk_full = True
            else:
                self.machine.unexpected.report(f"writing {self.path}, which is tried again", error)
            self._plan_writing()
            return
        self._is_disk_full = False
        if len(self._unwritten) >= FLUSH_RECORDS or materialiser.to_trim:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)
        else:
            # The remaining records are written later, in one transaction with newer records. The cost of a
            # transaction depends mainly on the number of changed pages, and a few more records change few
            # additional pages.
            self._plan_writing()

    def _next_unwritten(self) -> list[Unwritten]:
        """Return the records of the next transaction. Their number is limited, and so is the number of
        partitions that they delete together."""
        taken: list[Unwritten] = []
        deleted = 0
        for each in islice(self._unwritten, FLUSH_RECORDS):
            if isinstance(each.record, TopicDeleted):
                deleted += len(self.materialiser.of_topic(each.record.topic_id))
            if taken and deleted > DELETED_PARTITIONS:
                break
            taken.append(each)
        return taken

    def _write_some(self) -> None:
        """Write the next records. If the next record deletes very many partitions, write only a part of
        it."""
        unwritten, view, now_ms = self._unwritten, self.view, self.machine.clock.now_ms()
        first = unwritten[0].record
        if isinstance(first, TopicDeleted) and self.materialiser.begin_deletion(first, now_ms):
            return
        taken = self._next_unwritten()
        end = taken[-1].offset + 1
        self.materialiser.write(taken, Applied(end, self._epoch_before(end)), now_ms)
        for offset, _, _, change, _ in taken:
            unwritten.popleft()
            view.file_keys.pop(offset, None)
            # The extents that are now in SQLite are removed from memory. If a partition was deleted, its
            # extents in memory were already removed with it.
            for extent in change.extents:
                partition = view.by_number.get(extent.partition)
                if partition is not None:
                    partition.tail.popleft()


async def _in_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    for count, row in enumerate(rows, 1):
        yield row
        if not count % ROWS_A_TURN:
            await asyncio.sleep(0)
