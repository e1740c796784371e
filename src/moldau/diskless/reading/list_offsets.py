"""ListOffsets of a diskless partition. The coordinator finds the batch, and the record is found in the
batch's bytes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import (
    LOG_APPEND_TIME,
    BatchCoordinate,
    FindBatchesCall,
    FoundPartition,
    ListedOffset,
    PartitionToFind,
    TimestampToList,
)
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.partition.client_errors import client_error
from moldau.diskless.partition.moving_coordinators import MovingCoordinators
from moldau.diskless.partition.remote_part import RemoteRecords
from moldau.diskless.reading.batch_conversion import finish_batches
from moldau.diskless.reading.object_reads import ObjectReads, plan_reads
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.protocol.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau.records.errors import CorruptRecordError
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import (
    FoundOffset,
)
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.fair_lane import FairClient

_KNOWN_TIMEOUT_S: Final = 5.0
_ATTEMPTS: Final = 3
_FOUND_BATCHES: Final = 1_000


class OffsetLister(Protocol):
    """The part of a batch coordinator that knows offsets."""

    async def list_offsets(self, partitions: Sequence[TimestampToList]) -> Sequence[ListedOffset]: ...

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]: ...


class WalOffsetLookup:
    """Handles lookups. The latest and earliest offsets always come from the coordinator."""

    def __init__(
        self, lister: OffsetLister, reads: ObjectReads, machine: Machine, moving: MovingCoordinators
    ) -> None:
        self._lister = lister
        self._reads = reads
        self._moving = moving
        self._machine = machine

    async def find(
        self,
        cache: PartitionCache,
        timestamp_ms: int,
        remote: RemoteRecords | None = None,
        *,
        read_committed: bool = False,
        client: FairClient | None = None,
        deadline_s: float | None = None,
    ) -> FoundOffset:
        """The first record at or after a time, or the offset for a special timestamp. Raises ``KafkaError``.

        With ``remote`` the records that left the WAL are searched, too. With ``read_committed``, offsets at
        or above the last stable offset are not returned.
        """
        if timestamp_ms == EARLIEST_LOCAL_TIMESTAMP:
            return await self._earliest_local(cache)
        if timestamp_ms == EARLIEST_PENDING_UPLOAD_TIMESTAMP:
            return FoundOffset() if remote is None else await self._earliest_in_wal(cache, deadline_s)
        if timestamp_ms < EARLIEST_PENDING_UPLOAD_TIMESTAMP:
            raise KafkaError(
                ErrorCode.unsupported_version, f"{timestamp_ms} is not a timestamp that Kafka defines"
            )
        lookup = RecordLookup(self._machine, client, f"{cache.topic}-{cache.key.partition}", deadline_s)
        for _ in range(_ATTEMPTS):
            listed = await self._list(cache, timestamp_ms, deadline_s)
            start, end = listed.log_start_offset, listed.wal_start_offset
            if remote is not None and timestamp_ms >= 0 and start < end:
                older = await remote.find_timestamp(timestamp_ms, start, end, lookup)
                if older is not None:
                    return older
            try:
                found = await self._in_wal(cache, listed, timestamp_ms, lookup)
                if read_committed:
                    found = _bounded(found, timestamp_ms, listed.last_stable_offset)
            except ObjectNotFoundError:
                continue  # the batches were deleted or moved in the meantime, so request again
            except StorageError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
            except CorruptRecordError as error:
                raise KafkaError(ErrorCode.corrupt_message, str(error)) from error
            if remote is not None and timestamp_ms == MAX_TIMESTAMP and start < end:
                # If several records have the largest timestamp, the result is the first of them, which may be
                # in the remote part.
                older = await remote.find_max_timestamp(max(-1, found.timestamp_ms - 1), start, end, lookup)
                return older or found
            return found
        raise KafkaError(ErrorCode.kafka_storage_error, "the object of the batch does not exist any more")

    async def _in_wal(
        self, cache: PartitionCache, listed: ListedOffset, timestamp_ms: int, lookup: RecordLookup
    ) -> FoundOffset:
        """Find the requested offset with the coordinator's response."""
        if listed.batch is None:
            # It is not necessary to read a batch. The response is a special offset, or the base offset of a
            # batch whose records all have its append time, or no offset (-1).
            epoch = cache.generations.epoch_for_offset(listed.offset) if listed.offset >= 0 else -1
            return FoundOffset(listed.offset, listed.timestamp_ms, epoch)
        batch = listed.batch
        found = await self._in_batch(cache, listed.log_start_offset, batch, timestamp_ms, lookup)
        if timestamp_ms == MAX_TIMESTAMP and batch.base_offset < listed.log_start_offset:
            return await self._latest_behind(cache, batch, found, lookup)
        if found.offset < 0:
            return await self._behind(cache, batch.last_offset + 1, timestamp_ms, lookup)
        return found

    async def _list(self, cache: PartitionCache, timestamp_ms: int, deadline_s: float | None) -> ListedOffset:
        wanted = [TimestampToList(*cache.partition_id, timestamp_ms)]
        listed = await self._moving.ask(
            cache.coordinator_id, lambda: self._lister.list_offsets(wanted), deadline_s
        )
        if listed.error is not ErrorCode.none:
            raise client_error(listed.error, listed.message, ErrorCode.leader_not_available)
        cache.learn(
            log_start_offset=listed.log_start_offset,
            wal_start_offset=listed.wal_start_offset,
            high_watermark=-1,
            remote_metadata_position=listed.remote_metadata_position,
        )
        return listed

    @staticmethod
    async def _earliest_local(cache: PartitionCache) -> FoundOffset:
        """The earliest local offset, which is the start of this replica's cache."""
        if not await cache.until_known(_KNOWN_TIMEOUT_S):
            raise KafkaError(ErrorCode.leader_not_available)
        start = cache.local_start_offset if cache.is_usable else cache.high_watermark
        return _special(cache, max(start, cache.log_start_offset))

    async def _earliest_in_wal(self, cache: PartitionCache, deadline_s: float | None) -> FoundOffset:
        """The first offset that is not in the remote tier (KIP-1023)."""
        listed = await self._list(cache, EARLIEST_TIMESTAMP, deadline_s)
        return _special(cache, max(listed.log_start_offset, listed.wal_start_offset))

    async def _behind(
        self, cache: PartitionCache, offset: int, timestamp_ms: int, lookup: RecordLookup
    ) -> FoundOffset:
        """Search the later batches, from ``offset`` on. This is needed if the found record is before the log
        start, although its batch ends after the log start."""
        while timestamp_ms >= 0:
            found = await self._batches(cache, offset)
            for coordinate in found.batches:
                if coordinate.max_timestamp_ms >= timestamp_ms:
                    record = await self._in_batch(
                        cache, found.log_start_offset, coordinate, timestamp_ms, lookup
                    )
                    if record.offset >= 0:
                        return record
            if not found.batches:
                break
            offset = found.batches[-1].last_offset + 1
        return FoundOffset()

    async def _latest_behind(
        self, cache: PartitionCache, batch: BatchCoordinate, found: FoundOffset, lookup: RecordLookup
    ) -> FoundOffset:
        """Continue the search for the latest record in the later batches. ``found`` is the latest record that
        remains in ``batch``, but a later batch may contain a record with a later timestamp."""
        log_start, offset = 0, batch.last_offset + 1
        latest: BatchCoordinate | None = None
        while found.timestamp_ms < batch.max_timestamp_ms:
            some = await self._batches(cache, offset)
            log_start = max(log_start, some.log_start_offset)
            for coordinate in some.batches:
                latest_ms = found.timestamp_ms if latest is None else latest.max_timestamp_ms
                if coordinate.max_timestamp_ms > latest_ms:
                    latest = coordinate
            if not some.batches:
                break
            offset = some.batches[-1].last_offset + 1
        if latest is None:
            return found
        return await self._in_batch(cache, log_start, latest, MAX_TIMESTAMP, lookup)

    async def _batches(self, cache: PartitionCache, offset: int) -> FoundPartition:
        call = FindBatchesCall(
            [PartitionToFind(*cache.partition_id, offset, 1 << 30)],
            max_bytes=1 << 30,
            max_batches_per_partition=_FOUND_BATCHES,
        )
        (found,) = await self._lister.find_batches(call)
        if found.error is not ErrorCode.none:
            raise client_error(found.error, found.message, ErrorCode.leader_not_available)
        return found

    async def _in_batch(
        self,
        cache: PartitionCache,
        log_start: int,
        coordinate: BatchCoordinate,
        timestamp_ms: int,
        lookup: RecordLookup,
    ) -> FoundOffset:
        epoch = cache.generations.epoch_for_offset(coordinate.base_offset)
        if coordinate.marker is not None:
            return FoundOffset(coordinate.base_offset, coordinate.max_timestamp_ms, epoch)
        if coordinate.timestamp_type == LOG_APPEND_TIME:
            # All records of the batch have the same timestamp, so the batch need not be read.
            offset = max(coordinate.base_offset, log_start)
            return FoundOffset(offset, coordinate.log_append_time_ms, epoch)
        (read,) = plan_reads([coordinate])
        view = self._reads.in_memory(read)
        if view is None:
            view = await self._reads.fetch(read)
        batch = finish_batches([(coordinate, view)], cache.generations)
        if timestamp_ms == MAX_TIMESTAMP:
            position = await lookup.latest(batch, log_start)
        else:
            position = await lookup.at_or_after(batch, timestamp_ms, log_start)
        return FoundOffset() if position is None else FoundOffset(*position, epoch)


def _bounded(found: FoundOffset, timestamp_ms: int, last_stable_offset: int) -> FoundOffset:
    """Limit the found offset for a read_committed client. A record at or above the last stable offset is not
    returned, and LATEST_TIMESTAMP gives the last stable offset."""
    if found.offset < last_stable_offset or last_stable_offset < 0:
        return found
    if timestamp_ms == LATEST_TIMESTAMP:
        return replace(found, offset=last_stable_offset)
    return found if timestamp_ms in (EARLIEST_TIMESTAMP, LATEST_TIERED_TIMESTAMP) else FoundOffset()


def _special(cache: PartitionCache, offset: int) -> FoundOffset:
    """The result for a special timestamp. It has an offset, but not the timestamp of a record."""
    return FoundOffset(offset, -1, cache.generations.epoch_for_offset(offset))
