"""ListOffsets in the remote tier: finds the record at or after a time, or the record with the largest
timestamp."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, NamedTuple

from moldau.records.batch import LOG_OVERHEAD_BYTES, parse_header
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import FoundOffset
from moldau.runtime import ErrorCode, KafkaError
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.reading.reader import RemoteReader
from moldau.tiered.reading.requests import RemoteRange, segment_at
from moldau.tiered.storage.storage_manager import RemoteStorageError

__all__ = ["RemoteOffsetSearch"]

HEADER_BYTES: Final = 61
PIECE_BYTES: Final = 256 * 1024
SEGMENTS_A_TURN: Final = 200


class _SearchPart(NamedTuple):
    """A segment and its valid offsets ``[start, end)``."""

    segment: RemoteLogSegmentMetadata
    start: int
    end: int


class RemoteOffsetSearch:
    """Searches the remote tier by timestamp. The searches and the reads of ``reader`` use the same pool of
    jobs. Raises ``KafkaError``: ``request_timed_out`` or ``unknown_server_error``.
    """

    def __init__(self, reader: RemoteReader) -> None:
        self._reader = reader

    async def find_timestamp(
        self, wanted: RemoteRange, start_offset: int, timestamp_ms: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        """The first record of ``[start_offset, wanted.end_offset)`` at or after a time."""
        search = self._find_timestamp(wanted, start_offset, timestamp_ms, lookup)
        return await self._limited(wanted, search, lookup.deadline_s)

    async def find_max_timestamp(
        self, wanted: RemoteRange, start_offset: int, above_ms: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        """Return the first record with the largest timestamp in ``[start_offset, wanted.end_offset)``. If
        that timestamp is not greater than ``above_ms``, return ``None``.

        The maximum timestamp in a segment's metadata shows whether the segment must be searched.
        """
        search = self._find_max_timestamp(wanted, start_offset, above_ms, lookup)
        return await self._limited(wanted, search, lookup.deadline_s)

    async def _limited(
        self,
        wanted: RemoteRange,
        search: Coroutine[Any, Any, FoundOffset | None],
        deadline_s: float | None,
    ) -> FoundOffset | None:
        settings = self._reader.settings
        if deadline_s is None:
            deadline_s = asyncio.get_running_loop().time() + settings.list_offsets_timeout_ms / 1000
        try:
            if self._reader.pool.waiting_count >= settings.max_pending_tasks:
                raise KafkaError(ErrorCode.request_timed_out, "too many remote reads are waiting")
            async with asyncio.timeout_at(deadline_s):
                await self._reader.metadata.wait_ready(wanted.partition)
                await self._reader.metadata.wait_applied(wanted.metadata_position)
                async with self._reader.pool.place():
                    return await search
        except TimeoutError as error:
            self._reader.meters.expired_list_offsets()
            raise KafkaError(ErrorCode.request_timed_out, "the remote tier did not answer in time") from error
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
        finally:
            search.close()

    async def _find_timestamp(
        self, wanted: RemoteRange, start_offset: int, timestamp_ms: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        async for part in self._parts(wanted, start_offset):
            if part.segment.max_timestamp_ms >= timestamp_ms:
                found = await self._in_segment(part, timestamp_ms, lookup)
                if found is not None:
                    return found
        return None

    async def _find_max_timestamp(
        self, wanted: RemoteRange, start_offset: int, above_ms: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        later = [
            part
            async for part in self._parts(wanted, start_offset)
            if part.segment.max_timestamp_ms > above_ms
        ]
        best: FoundOffset | None = None
        for part in sorted(later, key=lambda part: part.segment.max_timestamp_ms, reverse=True):
            # If the records of a segment have no timestamps, the metadata contain the time of the file. The
            # search then finds no record in the segment.
            found = await self._in_segment(part, part.segment.max_timestamp_ms, lookup)
            if found is not None and (best is None or found.timestamp_ms > best.timestamp_ms):
                best = found
            if best is not None and best.timestamp_ms >= part.segment.max_timestamp_ms:
                break
        return best

    async def _parts(self, wanted: RemoteRange, offset: int) -> AsyncIterator[_SearchPart]:
        """The segments of the range in order. Only the metadata are used to find them."""
        count = 0
        while offset < wanted.end_offset:
            segment = segment_at(self._reader.metadata, wanted, offset)
            end = wanted.bound_at(offset, segment)
            yield _SearchPart(segment, offset, end)
            offset = end
            count += 1
            if not count % SEGMENTS_A_TURN:
                await asyncio.sleep(0)

    async def _in_segment(
        self, part: _SearchPart, timestamp_ms: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        reader, segment = self._reader, part.segment
        position = await reader.indexes.lookup_timestamp(segment, timestamp_ms, part.start)
        size_bytes = PIECE_BYTES
        while position < segment.segment_size_bytes:
            piece = await reader.storage.fetch_log_segment(
                segment, position, min(segment.segment_size_bytes, position + size_bytes)
            )
            at, size_bytes = 0, PIECE_BYTES
            while len(piece) - at >= HEADER_BYTES:
                header = parse_header(piece, at)
                end = at + header.batch_length + LOG_OVERHEAD_BYTES
                if header.base_offset >= part.end:
                    return None
                if header.max_timestamp >= timestamp_ms and header.last_offset >= part.start:
                    if end > len(piece):
                        size_bytes = max(PIECE_BYTES, end - at)
                        break
                    batch = memoryview(piece)[at:end]
                    found = await lookup.at_or_after(batch, timestamp_ms, part.start)
                    if found is not None:
                        return self._as_found(part, *found, header.partition_leader_epoch)
                at = end
            if not at and size_bytes == PIECE_BYTES:
                break
            position += at
        return None

    @staticmethod
    def _as_found(part: _SearchPart, offset: int, timestamp_ms: int, epoch: int) -> FoundOffset | None:
        return FoundOffset(offset, timestamp_ms, epoch) if offset < part.end else None
