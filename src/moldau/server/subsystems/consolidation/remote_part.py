"""The part of a diskless partition that is in the remote tier: the records before the start of the
partition's WAL."""

import asyncio
from collections.abc import Callable

from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import FoundOffset, ReadOutcome, ReadRequest
from moldau.tiered.metadata.manager import NO_POSITION, MetadataPosition
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.reading.list_offsets import RemoteOffsetSearch
from moldau.tiered.reading.reader import RemoteReader
from moldau.tiered.reading.requests import RemoteRange, RemoteRead


class DisklessRemotePart:
    """Reads the remote part of a diskless partition. Implements
    :class:`moldau.diskless.partition.remote_part.RemoteRecords`."""

    def __init__(
        self,
        cache: PartitionCache,
        reader: RemoteReader,
        metadata_partition: Callable[[TopicIdPartition], int],
    ) -> None:
        """``metadata_partition`` returns the partition of the metadata topic for a user partition."""
        self._metadata_partition = metadata_partition
        self._partition = TopicIdPartition(cache.key.topic_id, cache.topic, cache.key.partition)
        self._cache = cache
        self._reader = reader
        self._search = RemoteOffsetSearch(reader)

    def read(self, request: ReadRequest, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        wanted = RemoteRead(
            partition=self._partition,
            lineage=self._cache.generations,
            end_offset=self._cache.wal_start_offset,
            log_start=self._log_start,
            metadata_position=self._position(),
            offset=request.offset,
            max_bytes=request.max_bytes,
            min_one_batch=request.min_one_batch,
            read_committed=request.read_committed,
        )
        return self._reader.read(wanted, known)

    async def find_timestamp(
        self, timestamp_ms: int, start: int, end: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        return await self._search.find_timestamp(self._range(end), start, timestamp_ms, lookup)

    async def find_max_timestamp(
        self, above_ms: int, start: int, end: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        return await self._search.find_max_timestamp(self._range(end), start, above_ms, lookup)

    def _range(self, end: int) -> RemoteRange:
        return RemoteRange(
            partition=self._partition,
            lineage=self._cache.generations,
            end_offset=end,
            log_start=self._log_start,
            metadata_position=self._position(),
        )

    def _position(self) -> MetadataPosition:
        """The position in the remote metadata that a read needs. Another broker may have moved the records to
        the tier a moment ago. A read must therefore wait until this broker has read the remote log metadata
        up to this position."""
        offset = self._cache.remote_metadata_position
        return (
            NO_POSITION if offset < 0 else MetadataPosition(self._metadata_partition(self._partition), offset)
        )

    def _log_start(self) -> int:
        return self._cache.log_start_offset
