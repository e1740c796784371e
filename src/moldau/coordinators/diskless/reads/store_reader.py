"""Reads the committed state: first SQLite, then the committed records that are not in SQLite yet."""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    Backlog,
    BatchCoordinate,
    DescribedFile,
    DescribedObjects,
    DescribedPartition,
    FoundPartition,
)
from moldau.coordinators.diskless.reads.deletable_files import DeletableFiles
from moldau.coordinators.diskless.state.records import FLAG_LOG_APPEND_TIME, FLAG_TRANSACTIONAL
from moldau.coordinators.diskless.store.database import decode_owners
from moldau.coordinators.diskless.store.extents import NO_FILE, Extent, ExtentBatch, marker_in, unpack
from moldau.coordinators.diskless.store.store import DisklessStore
from moldau.coordinators.diskless.store.view import StoredPartition
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode

EXTENTS_A_PAGE: Final = 16
EXTENT_COLUMNS: Final = (
    "e.partition, e.last_offset, e.first_offset, e.file_id, e.size_bytes, e.max_timestamp_ms,"
    " e.timestamp_bound_ms, e.committed_ms, e.packed"
)
FILE_COLUMNS: Final = (
    "object_key, size_bytes, used_bytes, live_batches, created_ms, owned, next_owners, unused_since_ms"
)


class StoreReader:
    """Reads from a store. No method waits."""

    def __init__(self, store: DisklessStore) -> None:
        self._store = store

    @property
    def deletable(self) -> DeletableFiles:
        """The files whose batches are all deleted."""
        return DeletableFiles(self._store.database)

    def partition(self, topic_id: object, partition_index: int) -> StoredPartition | None:
        return self._store.view.find(PartitionKey(topic_id, partition_index))  # type: ignore[arg-type]

    def extents(self, partition: StoredPartition, offset: int) -> Iterator[tuple[Extent, str]]:
        """Yield extents with their object keys. The first extent is the extent that contains ``offset``. A
        marker has an empty key.

        The caller must not ``await`` while it iterates. During an ``await``, extents could be written to
        SQLite and removed from memory.
        """
        database, number = self._store.database, partition.number
        while True:
            rows = list(
                database.all(
                    f"select {EXTENT_COLUMNS}, f.object_key from extents e"
                    " left join files f on f.id = e.file_id"
                    " where e.partition = ? and e.last_offset >= ? order by e.last_offset limit ?",
                    (number, offset, EXTENTS_A_PAGE),
                )
            )
            for row in rows:
                yield Extent._make(row[:9]), row[9] or ""
            if len(rows) < EXTENTS_A_PAGE:
                break
            offset = rows[-1][1] + 1
        keys = self._store.view.file_keys
        for extent in partition.tail:
            if extent.last_offset >= offset:
                yield extent, "" if extent.file_id == NO_FILE else keys[extent.file_id]

    def find(
        self,
        topic_id: object,
        partition_index: int,
        offset: int,
        max_bytes: int,
        max_batches: int,
        *,
        at_least_one: bool,
    ) -> FoundPartition:
        """Return batches within the limits. The first batch is the one that contains ``offset``."""
        partition = self.partition(topic_id, partition_index)
        if partition is None:
            return FoundPartition(
                topic_id,  # type: ignore[arg-type]
                partition_index,
                ErrorCode.unknown_topic_or_partition,
                "This coordinator has no such partition.",
            )
        found = FoundPartition(
            partition.id.topic_id,
            partition_index,
            log_start_offset=partition.log_start,
            wal_start_offset=partition.wal_start,
            high_watermark=partition.next,
            last_stable_offset=partition.last_stable,
            remote_metadata_position=partition.remote_position,
        )
        if not partition.log_start <= offset <= partition.next:
            message = f"Offset {offset} is not within {partition.log_start} and {partition.next}."
            return found._replace(error=ErrorCode.offset_out_of_range, message=message)
        if offset < partition.wal_start:
            return found._replace(moved_to_tier=True)
        if offset == partition.next:
            return found
        batches = self._batches(partition, offset, max_bytes, max_batches, at_least_one=at_least_one)
        if partition.transactions is None or not batches:
            return found._replace(batches=batches)
        aborted = partition.aborted.within(offset, batches[-1].last_offset + 1)
        return found._replace(batches=batches, aborted=aborted)

    def _batches(
        self, partition: StoredPartition, offset: int, max_bytes: int, max_batches: int, *, at_least_one: bool
    ) -> list[BatchCoordinate]:
        batches: list[BatchCoordinate] = []
        if max_bytes <= 0 and not at_least_one:
            return batches
        left_bytes = max_bytes
        for extent, key in self.extents(partition, offset):
            for batch in unpack(extent.first_offset, extent.packed):
                if batch.last_offset < offset:
                    continue
                size = batch.size_bytes
                if (left_bytes < size and (batches or not at_least_one)) or len(batches) == max_batches > 0:
                    return batches
                left_bytes -= size
                batches.append(_coordinate(partition.id, extent, key, batch))
        return batches

    def wal_size(self, topic_id: UUID, partition_index: int) -> tuple[int, int]:
        """Return the number of bytes and the number of batches that a partition has in SQLite. The result is
        (0, 0) when the partition is not in SQLite."""
        partition = self.partition(topic_id, partition_index)
        written = None if partition is None else self._store.materialiser.partitions.get(partition.number)
        return (0, 0) if written is None else (written.size_bytes, written.batches)

    def backlog(self) -> Backlog:
        """Return the WAL backlog of those batches that are in SQLite."""
        written = self._store.materialiser.partitions.values()
        row = self._store.database.one("select min(created_ms) from files where live_batches > 0")
        oldest_ms: int | None = None if row is None else row[0]
        return Backlog(
            sum(found.size_bytes for found in written), sum(found.batches for found in written), oldest_ms
        )

    def settled_size_bytes(self, partition: StoredPartition) -> int | None:
        """Return the size of the partition's batches that are not deleted. The result is ``None`` if the size
        is not exact at the moment, because deleted batches before the WAL's start are still counted in it."""
        written = self._store.materialiser.partitions.get(partition.number)
        if written is None or written.wal_start != partition.wal_start:
            return None
        return None if partition.number in self._store.materialiser.to_trim else written.size_bytes

    # -- timestamps -----------------------------------------------------------------------------

    def first_at_or_after(
        self, partition: StoredPartition, timestamp_ms: int, from_offset: int = 0
    ) -> BatchCoordinate | None:
        """Return the first readable batch in the WAL that may contain a record of this time or of a later
        time."""
        start = max(partition.wal_start, from_offset)
        start = self._search(partition, timestamp_ms, start)
        for extent, key in self.extents(partition, start):
            if extent.max_timestamp_ms < timestamp_ms:
                continue
            for batch in unpack(extent.first_offset, extent.packed):
                if batch.max_timestamp_ms >= timestamp_ms and batch.last_offset >= start:
                    return _coordinate(partition.id, extent, key, batch)
        return None

    def _search(self, partition: StoredPartition, timestamp_ms: int, start: int) -> int:
        """Return the first offset of the first extent whose ``timestamp_bound_ms`` is at least the timestamp.
        The extent is found by binary search. An extent with higher offsets never has a smaller
        ``timestamp_bound_ms``, so no index by time is needed.
        """
        low, high = start, partition.next
        while low < high:
            middle = (low + high) // 2
            row = self._store.database.one(
                "select last_offset, timestamp_bound_ms from extents"
                " where partition = ? and last_offset >= ? order by last_offset limit 1",
                (partition.number, middle),
            )
            if row is None or row[1] >= timestamp_ms:
                high = middle
            else:
                low = row[0] + 1
        return low

    def latest_timestamp(self, partition: StoredPartition) -> BatchCoordinate | None:
        """Return the first batch that may contain the record with the largest timestamp."""
        row = self._store.database.one(
            "select max(max_timestamp_ms) from extents where partition = ? and last_offset >= ?",
            (partition.number, partition.wal_start),
        )
        candidates = [extent.max_timestamp_ms for extent in partition.tail]
        if row is not None and row[0] is not None:
            candidates.append(row[0])
        return self.first_at_or_after(partition, max(candidates)) if candidates else None

    # -- files ----------------------------------------------------------------------------------

    def describe_file(self, object_key: str) -> DescribedFile:
        row = self._store.database.one(
            f"select {FILE_COLUMNS} from files where object_key = ?", (object_key,)
        )
        return DescribedFile(object_key) if row is None else _described(row)

    def list_files(self, after_key: str, limit: int) -> list[DescribedFile]:
        """Return the files in the order of their keys, for tools."""
        rows = self._store.database.all(
            f"select {FILE_COLUMNS} from files where object_key > ? order by object_key limit ?",
            (after_key, limit),
        )
        return [_described(row) for row in rows]

    def oldest_created_ms(self) -> int | None:
        """Creation time of the oldest remaining file."""
        row = self._store.database.one("select min(created_ms) from files")
        oldest: int | None = None if row is None else row[0]
        return oldest

    # -- tools ----------------------------------------------------------------------------------

    def describe_partitions(self, partitions: Sequence[StoredPartition]) -> list[DescribedPartition]:
        """Describe the partitions. This method reads the sizes of all files of the partitions, which is slow.
        Therefore it is only for command-line tools."""
        described = []
        for partition in partitions:
            written = self._store.materialiser.partitions.get(partition.number)
            row = self._store.database.one(
                "select sum(size_bytes), sum(size_bytes - used_bytes) from files where id in"
                " (select file_id from extents where partition = ?)",
                (partition.number,),
            )
            described.append(
                DescribedPartition(
                    *partition.id,
                    partition.name,
                    partition.log_start,
                    partition.wal_start,
                    partition.next,
                    0 if written is None else written.size_bytes,
                    0 if written is None else written.batches,
                    row[0] or 0,
                    row[1] or 0,
                )
            )
        return described

    def describe_objects(self, partitions: Sequence[StoredPartition], with_keys: bool) -> DescribedObjects:
        """Return the objects that contain remaining batches of any of these partitions."""
        database, numbers = self._store.database, tuple(partition.number for partition in partitions)
        marks = ",".join("?" * len(numbers))
        files = f"from files where id in (select file_id from extents where partition in ({marks}))"
        row = database.one(f"select count(*), sum(size_bytes), sum(size_bytes - used_bytes) {files}", numbers)
        keys = [key for (key,) in database.all(f"select object_key {files}", numbers)] if with_keys else []
        return DescribedObjects() if row is None else DescribedObjects(row[0], row[1] or 0, row[2] or 0, keys)

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of partitions, of batches that are not deleted, and of files."""
        written = self._store.materialiser.partitions.values()
        (files,) = self._store.database.one("select count(*) from files") or (0,)
        return sum(1 for _ in self._store.view), sum(found.batches for found in written), files


def _coordinate(
    partition_id: PartitionKey, extent: Extent, object_key: str, batch: ExtentBatch
) -> BatchCoordinate:
    base, last, byte_offset, size_bytes, timestamp_ms, flags = batch
    found = BatchCoordinate(*partition_id, base, last, object_key, byte_offset, size_bytes,
                            extent.committed_ms, timestamp_ms, flags & FLAG_LOG_APPEND_TIME)  # fmt: skip
    if not flags & FLAG_TRANSACTIONAL:
        return found
    return found._replace(is_transactional=True, marker=marker_in(extent))


def _described(row: Sequence[Any]) -> DescribedFile:
    key, size, used, live, created, owned, next_owners, unused_since = row
    return DescribedFile(
        key,
        is_known=True,
        has_live_batches=live > 0,
        size_bytes=size,
        used_bytes=used,
        live_batches=live,
        created_ms=created,
        is_owned=bool(owned),
        next_owner_ids=decode_owners(next_owners),
        unused_since_ms=-1 if live > 0 else unused_since,
    )
