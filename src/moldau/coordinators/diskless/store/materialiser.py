"""Writes committed records into SQLite, in order. It also removes the rows of deleted batches, and subtracts
their sizes. All changes of the tables are made by this module."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from moldau.coordinators.diskless.state.producers import Window
from moldau.coordinators.diskless.state.records import (
    DisklessRecord,
    Expired,
    FileCommitted,
    FilesClosed,
    FilesReleased,
    FileTakenOver,
    Moved,
    PartitionCreated,
    Pruned,
    RecordsDeleted,
    TopicDeleted,
    TransactionsEnded,
)
from moldau.coordinators.diskless.store.database import (
    Applied,
    Database,
    FileRow,
    WrittenPartition,
    encode_owners,
)
from moldau.coordinators.diskless.store.extents import Extent
from moldau.coordinators.diskless.store.view import NOTHING, AbortedRow, Change, TransactionRow
from moldau.protocol.partitions import PartitionKey

TRIM_EXTENTS: Final = 500
"""Maximum number of extents that are freed at a time. A larger number would delay commits."""

DELETED_PARTITIONS: Final = 1_000
"""Number of partitions that are marked as deleted in one transaction. This takes about 8 ms."""

_NO_PARTITIONS: Final[Mapping[int, WrittenPartition]] = {}


class Unwritten(NamedTuple):
    """A committed record, and the results of its replay."""

    offset: int
    record: DisklessRecord
    moved: Sequence[Moved]
    change: Change = NOTHING
    expired: Sequence[tuple[int, int]] = ()
    """Pairs of partition number and producer id. They are the expired producers that this record removed."""


class Materialiser:
    """Owns the tables. ``partitions`` maps the number of each partition to its state in the tables. A deleted
    partition stays in ``partitions`` until its rows are removed."""

    def __init__(self, database: Database, coordinator_id: int) -> None:
        self.database = database
        self.coordinator_id = coordinator_id
        self.partitions = {found.number: found for found in database.partitions()}
        self._by_topic: dict[UUID, dict[int, WrittenPartition]] = {}
        """The partitions that are not deleted, by topic id and index."""
        for found in self.partitions.values():
            if not found.deleted:
                self.know(found)
        self.to_trim = dict(self.partitions)
        """Numbers of partitions that may have batches below their WAL start, or that are deleted."""

    def find(self, partition_id: PartitionKey) -> WrittenPartition | None:
        return self.of_topic(partition_id.topic_id).get(partition_id.partition)

    def of_topic(self, topic_id: UUID) -> Mapping[int, WrittenPartition]:
        """Return the partitions of a topic that are not deleted, by index."""
        return self._by_topic.get(topic_id, _NO_PARTITIONS)

    def know(self, partition: WrittenPartition) -> None:
        self._by_topic.setdefault(partition.id.topic_id, {})[partition.id.partition] = partition

    def forget(self, partition_id: PartitionKey) -> None:
        topic = self._by_topic.get(partition_id.topic_id, {})
        topic.pop(partition_id.partition, None)
        if not topic:
            self._by_topic.pop(partition_id.topic_id, None)

    def begin_deletion(self, record: TopicDeleted, now_ms: int) -> bool:
        """If a deleted topic has very many partitions, mark some of them as deleted, in a separate
        transaction.

        Returns whether any partition was marked. The caller repeats the call until the result is False, and
        then writes the record of the deletion. Until then the applied offset is before this record. If the
        store is loaded again, the record is replayed, and the deletion continues with the remaining
        partitions.
        """
        indexes = self.of_topic(record.topic_id)
        if len(indexes) <= DELETED_PARTITIONS:
            return False
        slice_ = _Slice(self, now_ms)
        with self.database.transaction():
            for index in list(islice(indexes, DELETED_PARTITIONS)):
                slice_.delete(PartitionKey(record.topic_id, index))
            slice_.write()
        slice_.done()
        return True

    def write(self, taken: Sequence[Unwritten], applied: Applied, now_ms: int) -> None:
        """Write all records of ``taken`` in one transaction. If the transaction fails, no record is
        written."""
        slice_ = _Slice(self, now_ms)
        with self.database.transaction():
            for unwritten in taken:
                slice_.add(unwritten)
            slice_.write()
            self.database.set_applied(applied)
        slice_.done()

    def trim_some(self, now_ms: int) -> None:
        """Free a limited number of extents of one partition."""
        number, partition = next(iter(self.to_trim.items()))
        database = self.database
        before = (partition.batches, partition.size_bytes)
        gone = False
        try:
            with database.transaction():
                more = database.trim(partition, TRIM_EXTENTS, now_ms)
                if partition.deleted and not more:
                    more = database.forget_partition(number, TRIM_EXTENTS)
                    gone = not more
                if not gone:
                    database.put_partitions((partition,))
        except BaseException:
            partition.batches, partition.size_bytes = before
            raise
        # The partition is moved to the end of the queue, so that one large partition does not delay the work
        # for other partitions.
        del self.to_trim[number]
        if more:
            self.to_trim[number] = partition
        if gone:
            del self.partitions[number]


class _Slice:
    """The changes by the records of one SQLite transaction. Several changes of the same row are combined into
    one write.

    The changes are made on copies of the partitions, which replace the originals after the transaction is
    committed.
    """

    def __init__(self, owner: Materialiser, now_ms: int) -> None:
        self._owner = owner
        self._database = owner.database
        self._now_ms = now_ms
        self._changed: dict[int, WrittenPartition] = {}
        self._added: dict[PartitionKey, WrittenPartition] = {}
        self._removed: set[PartitionKey] = set()
        self._to_trim: set[int] = set()
        self._windows: dict[int, dict[int, Window]] = {}
        self._transactions: dict[tuple[int, int], TransactionRow] = {}
        self._aborted: list[AbortedRow] = []
        self._extents: list[Extent] = []
        self._files: list[FileRow] = []
        self._known_files: dict[int, int] = {}
        """The ids of files that were committed before, by their new ids."""
        self._results: list[tuple[str, int, int, bytes]] = []
        self._senders: dict[int, tuple[int, int, int]] = {}
        """The place of each broker's last commit, by broker id."""

    def add(self, unwritten: Unwritten) -> None:
        offset, record, moved, change, expired = unwritten
        for state, _, windows in moved:
            self._windows.setdefault(state.number, {}).update(windows)
        self._transactions.update((row[:2], row) for row in change.transactions)
        match record:
            case FileCommitted():
                self._file(offset, record, change.extents)
            case TransactionsEnded():
                self._append(change.extents)
                self._aborted += change.aborted
            case PartitionCreated(topic_id, name, index):
                partition_id = PartitionKey(topic_id, index)
                if self._find(partition_id) is None:
                    self._changed[offset] = created = WrittenPartition(offset, partition_id, name)
                    self._added[partition_id] = created
                    self._removed.discard(partition_id)
            case TopicDeleted(topic_id):
                written = [PartitionKey(topic_id, index) for index in self._owner.of_topic(topic_id)]
                added = [found for found in self._added if found.topic_id == topic_id]
                for partition_id in dict.fromkeys((*written, *added)):
                    self.delete(partition_id)
            case RecordsDeleted(topic_id, index, log_start):
                partition = self._find(PartitionKey(topic_id, index))
                if partition is not None:
                    partition.delete_before(log_start)
                    self._to_trim.add(partition.number)
            case Pruned(topic_id, index, from_offset, to_offset, epoch, position):
                partition = self._find(PartitionKey(topic_id, index))
                if partition is not None:
                    partition.prune(from_offset, to_offset, epoch, position)
                    self._to_trim.add(partition.number)
            case FilesClosed(closed_ms, keys):
                self._close(keys, closed_ms)
            case FileTakenOver():
                self._take_over(offset, record)
            case FilesReleased(keys):
                self._write_files()
                self._database.release(keys)
            case Expired(files_before_ms, _):
                self._write_files()
                self._expire(files_before_ms, expired)

    def _partition(self, number: int) -> WrittenPartition:
        found = self._changed.get(number)
        if found is None:
            found = self._changed[number] = self._owner.partitions[number].copy()
        return found

    def _find(self, partition_id: PartitionKey) -> WrittenPartition | None:
        if partition_id in self._added:
            return self._added[partition_id]
        known = None if partition_id in self._removed else self._owner.find(partition_id)
        return None if known is None else self._partition(known.number)

    def delete(self, partition_id: PartitionKey) -> None:
        partition = self._find(partition_id)
        if partition is not None:
            partition.deleted = True
            self._to_trim.add(partition.number)
            self._added.pop(partition_id, None)
            self._removed.add(partition_id)

    def _append(self, extents: Sequence[Extent]) -> None:
        for extent in extents:
            partition = self._partition(extent.partition)
            partition.next = extent.last_offset + 1
            partition.size_bytes += extent.size_bytes
            partition.batches += extent.batches
            partition.timestamp_bound_ms = extent.timestamp_bound_ms
        self._extents.extend(extents)

    def _file(self, offset: int, record: FileCommitted, extents: Sequence[Extent]) -> None:
        self._append(extents)
        owners, me = list(record.owner_ids), self._owner.coordinator_id
        following = owners[owners.index(me) + 1 :] if me in owners else []
        self._files.append(
            FileRow(
                offset,
                record.object_key,
                record.size_bytes,
                record.created_ms,
                record.committed_ms,
                not owners or owners[0] == me,
                encode_owners(following),
                len(record.offset_deltas),
                sum(record.sizes_bytes),
                self._now_ms,
            )
        )
        self._results.append((record.object_key, record.created_ms, record.committed_ms, record.receipt))
        if record.commit_number >= 0:
            broker_id, next_number = record.uploader_broker_id, record.commit_number + 1
            self._senders[broker_id] = (broker_id, record.broker_epoch, next_number)

    def _expire(self, files_before_ms: int, producers: Sequence[tuple[int, int]]) -> None:
        for number, producer_id in producers:
            self._windows.get(number, {}).pop(producer_id, None)
            self._transactions.pop((number, producer_id), None)
        database = self._database
        database.many("delete from producers where partition = ? and producer_id = ?", producers)
        database.many("delete from transactions where partition = ? and producer_id = ?", producers)
        before = (files_before_ms, files_before_ms)
        database.many("delete from results where created_ms < ? and committed_ms < ?", [before])
        database.many("delete from closed where closed_ms < ?", [(files_before_ms,)])

    def _close(self, object_keys: Sequence[str], closed_ms: int) -> None:
        rows = [(key, closed_ms) for key in object_keys]
        self._database.many("insert or ignore into closed values (?,?)", rows)

    def _take_over(self, offset: int, record: FileTakenOver) -> None:
        self._write_files()
        key = record.object_key
        if self._database.one("select 1 from results where object_key = ?", (key,)) is None:
            self._close((key,), record.taken_ms)
        owners = encode_owners(record.remaining_owner_ids)
        row = FileRow(
            offset,
            key,
            record.size_bytes,
            record.created_ms,
            record.taken_ms,
            True,
            owners,
            0,
            0,
            self._now_ms,
        )
        self._database.take_over(row)

    def _write_files(self) -> None:
        self._known_files |= self._database.add_files(self._files)
        self._files = []
        self._database.many("insert or replace into results values (?,?,?,?)", self._results)
        self._results = []
        self._database.many("insert or replace into senders values (?,?,?)", self._senders.values())
        self._senders = {}

    def write(self) -> None:
        """Write the changes of all added records within the transaction."""
        self._write_files()
        known = self._known_files
        if known:
            self._extents = [
                each._replace(file_id=known.get(each.file_id, each.file_id)) for each in self._extents
            ]
        self._database.add_extents(self._extents)
        self._database.put_windows(self._windows)
        self._database.many(
            "insert or replace into transactions values (?,?,?,?)", self._transactions.values()
        )
        self._database.many("insert into aborted values (?,?,?,?,?)", self._aborted)
        self._database.put_partitions(self._changed.values())

    def done(self) -> None:
        """Replace the originals by the changed copies, because the transaction is committed."""
        owner = self._owner
        owner.partitions.update(self._changed)
        for partition_id in self._removed:
            owner.forget(partition_id)
        for partition in self._changed.values():
            if not partition.deleted:
                owner.know(partition)
        for number in self._to_trim:
            owner.to_trim[number] = owner.partitions[number]
        for number in owner.to_trim.keys() & self._changed.keys():
            owner.to_trim[number] = self._changed[number]
