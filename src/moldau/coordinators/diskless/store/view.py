"""The committed state for reads: the partitions, including records that are not in SQLite yet. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import Final, NamedTuple
from uuid import UUID

from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.records import (
    DisklessRecord,
    FileCommitted,
    Moved,
    PartitionCreated,
    Pruned,
    RecordsDeleted,
    TopicDeleted,
    TransactionsEnded,
)
from moldau.coordinators.diskless.state.replay import begun_in
from moldau.coordinators.diskless.state.transactions import NO_OFFSET, AbortedExtent, AbortedExtents
from moldau.coordinators.diskless.store.extents import Extent, FileColumns, marker_extent
from moldau.protocol.partitions import PartitionKey


class StoredPartition(PartitionState):
    """A partition with all committed changes."""

    __slots__ = ("aborted", "tail", "timestamp_bound_ms")

    def __init__(self, number: int, partition_id: PartitionKey, name: str) -> None:
        super().__init__(number, partition_id, name)
        self.timestamp_bound_ms = -1
        self.tail: deque[Extent] = deque()
        """Extents that are committed but not in SQLite yet."""
        self.aborted = AbortedExtents()
        """The aborted transactions whose marker is not below the WAL's start."""


class TransactionRow(NamedTuple):
    """The state of a producer's transaction in a partition, after a record of the coordinator's log was
    applied. A number that does not exist is -1."""

    partition: int
    producer_id: int
    first_offset: int
    coordinator_epoch: int


class AbortedRow(NamedTuple):
    """An aborted transaction of a partition."""

    partition: int
    last_offset: int
    first_offset: int
    producer_id: int
    last_stable_offset: int


class Change(NamedTuple):
    """The effects of a record: the rows to write to SQLite, and the partitions that it has changed. Waiting
    reads of these partitions must be continued."""

    partitions: Sequence[StoredPartition] = ()
    extents: Sequence[Extent] = ()
    transactions: Sequence[TransactionRow] = ()
    aborted: Sequence[AbortedRow] = ()


NOTHING: Final = Change()


class CommittedView:
    """All partitions with their committed changes. ``apply`` must be called with the records in order."""

    def __init__(self) -> None:
        self._by_topic: dict[UUID, dict[int, StoredPartition]] = {}
        """The partitions, by topic id and index."""
        self.by_number: dict[int, StoredPartition] = {}
        self.file_keys: dict[int, str] = {}
        """Object keys of files that are not in SQLite yet."""

    def __iter__(self) -> Iterator[StoredPartition]:
        return chain.from_iterable(topic.values() for topic in self._by_topic.values())

    @property
    def topic_ids(self) -> Set[UUID]:
        return self._by_topic.keys()

    def find(self, partition_id: PartitionKey) -> StoredPartition | None:
        topic = self._by_topic.get(partition_id.topic_id)
        return None if topic is None else topic.get(partition_id.partition)

    def add(self, partition: StoredPartition) -> None:
        self.by_number[partition.number] = partition
        self._by_topic.setdefault(partition.id.topic_id, {})[partition.id.partition] = partition

    def forget_producers(self, expired: Iterable[tuple[int, int]]) -> None:
        """Remove producers, given as (partition number, producer id). They must not have open
        transactions."""
        for number, producer_id in expired:
            partition = self.by_number.get(number)
            if partition is not None and partition.transactions is not None:
                partition.transactions.coordinator_epochs.pop(producer_id, None)

    def apply(self, offset: int, record: DisklessRecord, moved: Sequence[Moved]) -> Change:
        """Apply the record. ``moved`` has the state of a partition after each run or marker of the record.
        The replay of the record computed these states."""
        match record:
            case FileCommitted():
                return self._file(offset, record, moved)
            case TransactionsEnded():
                return self._markers(record, moved)
            case PartitionCreated(topic_id, name, index):
                partition_id = PartitionKey(topic_id, index)
                if self.find(partition_id) is not None:
                    return NOTHING
                self.add(StoredPartition(offset, partition_id, name))
                return NOTHING
            case TopicDeleted(topic_id):
                gone = list(self._by_topic.pop(topic_id, {}).values())
                for partition in gone:
                    del self.by_number[partition.number]
                return Change(gone)
            case RecordsDeleted(topic_id, index, log_start):
                found = self.find(PartitionKey(topic_id, index))
                if found is None:
                    return NOTHING
                found.delete_before(log_start)
                found.aborted.delete_before(found.wal_start)
                return Change((found,))
            case Pruned(topic_id, index, from_offset, to_offset, epoch, position):
                found = self.find(PartitionKey(topic_id, index))
                if found is None:
                    return NOTHING
                found.prune(from_offset, to_offset, epoch, position)
                found.aborted.delete_before(found.wal_start)
                return Change((found,))
            case _:
                return NOTHING

    def _file(self, file_id: int, record: FileCommitted, moved: Sequence[Moved]) -> Change:
        if not record.runs:
            return NOTHING
        columns = FileColumns(record)
        self.file_keys[file_id] = record.object_key
        sizes, timestamps = record.sizes_bytes, record.max_timestamps_ms
        committed_ms, by_number = record.committed_ms, self.by_number
        changed: list[StoredPartition] = []
        extents: list[Extent] = []
        new, kind = tuple.__new__, Extent
        start = 0
        for (_, _, first_offset, count), (state, next_offset, _) in zip(record.runs, moved, strict=True):
            end = start + count
            partition = by_number[state.number]
            latest = max(timestamps[start:end])
            bound = partition.timestamp_bound_ms = max(partition.timestamp_bound_ms, latest)
            partition.next = next_offset
            row = (partition.number, next_offset - 1, first_offset, file_id, sum(sizes[start:end]), latest,
                   bound, committed_ms, columns.packed(start, end))  # fmt: skip
            extent = new(kind, row)
            partition.tail.append(extent)
            changed.append(partition)
            extents.append(extent)
            start = end
        transactions: list[TransactionRow] = []
        for number, producer_id, offset in begun_in(record):
            partition = changed[number]
            partition.begin_transaction(producer_id, offset)
            transactions.append(_row(partition, producer_id))
        return Change(changed, extents, transactions)

    def _markers(self, record: TransactionsEnded, moved: Sequence[Moved]) -> Change:
        changed: list[StoredPartition] = []
        extents: list[Extent] = []
        transactions: list[TransactionRow] = []
        aborted: list[AbortedRow] = []
        ended_ms = record.ended_ms
        for marker, (state, next_offset, _) in zip(record.markers, moved, strict=True):
            partition = self.by_number[state.number]
            bound = partition.timestamp_bound_ms = max(partition.timestamp_bound_ms, ended_ms)
            extents.append(marker_extent(partition.number, marker, bound, ended_ms))
            partition.tail.append(extents[-1])
            first_offset = partition.end_transaction(marker.producer_id, marker.coordinator_epoch)
            partition.next = next_offset
            if first_offset != NO_OFFSET and not marker.committed:
                extent = AbortedExtent(
                    marker.base_offset, first_offset, marker.producer_id, partition.last_stable
                )
                partition.aborted.add(extent)
                aborted.append(AbortedRow(partition.number, *extent))
            transactions.append(_row(partition, marker.producer_id))
            changed.append(partition)
        return Change(changed, extents, transactions, aborted)


def _row(partition: StoredPartition, producer_id: int) -> TransactionRow:
    assert partition.transactions is not None
    return TransactionRow(partition.number, producer_id, *partition.transactions.row(producer_id))
