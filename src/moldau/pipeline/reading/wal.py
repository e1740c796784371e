"""Reads ranges of a diskless topic from its objects. It gets the coordinates from the coordinator, and the
bytes from the store.

Records that have moved to the tier are read from the tier. Some records cannot be read from objects, for
example if the store refuses access or a transaction must be checked. These records are read through the
broker, and a line is logged. No record is skipped silently.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final
from uuid import UUID

from moldau.client.cluster import RETRY_BACKOFF_S, Client
from moldau.client.diskless import DisklessCoordinators
from moldau.client.errors import ToolError
from moldau.coordinators.diskless.calls import LOG_APPEND_TIME, BatchCoordinate, FoundPartition
from moldau.diskless.reading.object_reads import PlannedRead, plan_reads
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.pipeline.reading.broker import BrokerReader
from moldau.pipeline.reading.decoding import FoundBatch
from moldau.pipeline.reading.object_ranges import RangeReader, open_ranges
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.tier import TierPartitionReader
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.reading.wal_access import WalAccess
from moldau.pipeline.reading.wal_plan import in_object_order, is_dense
from moldau.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from moldau.runtime.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

GAP_BYTES: Final = 1024 * 1024
"""If two batches have at most this number of unneeded bytes between them, one request reads both."""
READS_AHEAD: Final = 8
BYTES_AHEAD: Final = 64 * 1024 * 1024
FIRST_BATCHES: Final = 256
ROUND_BATCHES: Final = 50_000
"""When a task has this number of coordinates in memory, it reads their batches before it requests more
coordinates."""
VANISHED_MAX: Final = 3
"""Maximum number of times that objects may be missing at one position. Each time, the coordinator is asked
again. If objects are missing more often, the broker is used."""

_ATTRIBUTES_LOW_AT: Final = 22


class WalReader:
    """Reads ranges of several partitions, at most one range for each partition. All partitions have the same
    coordinator."""

    def __init__(
        self, client: Client, source: TopicSource, access: WalAccess, ranges: Sequence[OffsetRange]
    ) -> None:
        self._client = client
        self._source = source
        self._access = access
        self._coordinators = DisklessCoordinators(client)
        self._topic_id = UUID(source.topic_id)
        self._ends = {one.partition: one.end for one in ranges}
        self._positions = {one.partition: one.start for one in ranges}
        self._firsts = dict(self._positions)
        self._records_a_batch = 0.0
        self._vanished = 0

    async def chunks(self) -> AsyncIterator[list[FoundBatch]]:
        """Batches with the records of the ranges. The batches of a partition are in order."""
        try:
            ranges = open_ranges(self._access.storage)
        except StorageError as error:
            async for chunk in self._by_broker(self._left(), str(error)):
                yield chunk
            return
        while left := self._left():
            try:
                found = await self._find(left)
            except KafkaError as error:
                async for chunk in self._by_broker(left, str(error)):
                    yield chunk
                return
            elsewhere = [partition for partition, batches in found.items() if batches is None]
            if elsewhere:
                async for chunk in self._from_tier(elsewhere):
                    yield chunk
                continue
            coordinates = in_object_order([batches for batches in found.values() if batches])
            async for chunk in self._read(ranges, plan_reads(coordinates, GAP_BYTES), coordinates):
                yield chunk

    def _left(self) -> list[int]:
        """Partitions that have offsets left to read in their range."""
        return [partition for partition, end in self._ends.items() if self._positions[partition] < end]

    def _where(self, partition: int) -> str:
        return f"{self._source.topic}-{partition}"

    # -- coordinates ----------------------------------------------------------------------------

    async def _find(self, partitions: Sequence[int]) -> dict[int, list[BatchCoordinate] | None]:
        """The next batches of each partition. ``None`` for a partition that must be read from the tier or
        through the broker."""
        coordinator_id = self._access.coordinators[partitions[0]]
        found: dict[int, list[BatchCoordinate] | None] = {}
        offsets = {partition: self._positions[partition] for partition in partitions}
        total = 0
        while offsets and total < ROUND_BATCHES:
            rows = await self._coordinators.find(
                coordinator_id, self._topic_id, offsets, self._batches_wanted(offsets)
            )
            offsets = {}
            for row in rows:
                partition = row.partition_index
                before = found.get(partition) or []
                batches = await self._checked(row, before)
                found[partition] = batches
                if batches is None:
                    continue
                total += len(row.batches)
                behind = batches[-1].last_offset + 1 if batches else self._positions[partition]
                # If all new batches of a partition are markers, this search does not continue for it. The
                # next round continues after the markers.
                if batches and len(batches) > len(before) and behind < self._ends[partition]:
                    self._records_a_batch = (behind - self._positions[partition]) / len(batches)
                    offsets[partition] = behind
        return found

    def _batches_wanted(self, offsets: dict[int, int]) -> int:
        """The approximate number of batches in the longest range. It is estimated from the previous
        batches."""
        if not self._records_a_batch:
            return FIRST_BATCHES
        longest = max(self._ends[partition] - offset for partition, offset in offsets.items())
        return min(ROUND_BATCHES // len(offsets) + 1, int(longest / self._records_a_batch * 1.05) + 8)

    async def _checked(
        self, row: FoundPartition, before: list[BatchCoordinate]
    ) -> list[BatchCoordinate] | None:
        """Return ``before`` and the next coordinates of the partition; ``None`` if the partition must be read
        from the tier or through the broker."""
        partition = row.partition_index
        position = before[-1].last_offset + 1 if before else self._positions[partition]
        if row.error is ErrorCode.offset_out_of_range and not before:
            await self._skip_lost(partition, row.log_start_offset)
            return []
        if row.moved_to_tier or row.error is not ErrorCode.none:
            # If there are batches in ``before``, they are read first. The next request for the partition then
            # gets the same response, with an empty ``before``.
            return before or None
        end = self._ends[partition]
        batches = [one for one in row.batches if one.base_offset < end]
        if not batches or not is_dense(batches, position):
            return before or None
        # Markers are not stored in objects, and have no records.
        stored = [batch for batch in batches if batch.marker is None]
        if not stored and not before:
            self._positions[partition] = batches[-1].last_offset + 1
            return []
        return before + stored if all(batch.object_key for batch in stored) else before or None

    async def _skip_lost(self, partition: int, first: int) -> None:
        """Skip deleted records. Raises an error if records must not be lost, or if the offset does not exist
        yet."""
        position = self._positions[partition]
        if first <= position:
            raise ToolError(f"{self._where(partition)} has no offset {position} (yet)")
        if not self._source.may_lose:
            raise ToolError(
                f"{self._where(partition)}: offsets {position} to {first - 1} were deleted meanwhile"
            )
        self._positions[partition] = self._firsts[partition] = first

    # -- bytes ----------------------------------------------------------------------------------

    async def _read(
        self, ranges: RangeReader, reads: Sequence[PlannedRead], coordinates: Sequence[BatchCoordinate]
    ) -> AsyncIterator[list[FoundBatch]]:
        """Read batches in advance, and return them in order. The iteration ends early if coordinates must be
        looked up again."""
        todo, flights = deque(reads), deque[tuple[PlannedRead, asyncio.Task[memoryview]]]()
        ahead = 0
        try:
            while todo or flights:
                while todo and len(flights) < READS_AHEAD and (not flights or ahead < BYTES_AHEAD):
                    read = todo.popleft()
                    fetch = ranges.fetch(read.object_key, read.start, read.size_bytes)
                    flights.append((read, asyncio.ensure_future(fetch)))
                    ahead += read.size_bytes
                read, flight = flights.popleft()
                ahead -= read.size_bytes
                members = [coordinates[member] for member in read.members]
                try:
                    view = await flight
                except ObjectNotFoundError as error:
                    self._vanished += 1
                    if self._vanished <= VANISHED_MAX:
                        logger.info("%s: looking its batches up again", error)
                        await asyncio.sleep(RETRY_BACKOFF_S)
                        return
                    async for chunk in self._by_broker(_partitions(members), str(error)):
                        yield chunk
                    return
                except StorageError as error:
                    async for chunk in self._by_broker(self._left(), str(error)):
                        yield chunk
                    return
                found = self._cut(view, read.start, members)
                if found is None:
                    async for chunk in self._by_broker(_partitions(members), None):
                        yield chunk
                    return
                self._vanished = 0
                for one in members:
                    self._positions[one.partition_index] = one.last_offset + 1
                yield found
        finally:
            for _, flight in flights:
                flight.cancel()
            await asyncio.gather(*(flight for _, flight in flights), return_exceptions=True)

    def _cut(
        self, view: memoryview, start: int, members: Sequence[BatchCoordinate]
    ) -> list[FoundBatch] | None:
        """The batches in a range; ``None`` if a batch belongs to a transaction that must be checked."""
        found = []
        for one in members:
            begin = one.byte_offset - start
            data = view[begin : begin + one.size_bytes]
            if self._source.committed_only and data[_ATTRIBUTES_LOW_AT] & (TRANSACTIONAL_BIT | CONTROL_BIT):
                return None
            appended_ms = one.log_append_time_ms if one.timestamp_type == LOG_APPEND_TIME else None
            first = self._firsts[one.partition_index]
            found.append(FoundBatch(data, one.partition_index, one.base_offset, appended_ms, first))
        return found

    # -- reads of the tier, and reads through brokers -------------------------------------------

    async def _from_tier(self, partitions: Iterable[int]) -> AsyncIterator[list[FoundBatch]]:
        """Read the offsets before the start of the WAL from the tier."""
        for partition in partitions:
            end = self._ends[partition]
            end = min(end, await self._wal_start(partition, end))
            wanted = OffsetRange(partition, self._positions[partition], end)
            async for chunk in TierPartitionReader(self._client, self._source, wanted).chunks():
                yield chunk
            self._positions[partition] = end

    async def _by_broker(
        self, partitions: Iterable[int], reason: str | None
    ) -> AsyncIterator[list[FoundBatch]]:
        """Read the remaining offsets through the leaders. If ``reason`` is ``None`` and the next offset is in
        the tier, read only the offsets before the start of the WAL."""
        for partition in partitions:
            position, end = self._positions[partition], self._ends[partition]
            if reason is None:
                end = min(end, await self._wal_start(partition, end))
            level = logging.INFO if reason is None else logging.WARNING
            why = "some records cannot be read from objects" if reason is None else reason
            logger.log(
                level, "%s: offsets %d to %d are read through the broker: %s",
                self._where(partition), position, end - 1, why,
            )  # fmt: skip
            reader = BrokerReader(self._client, self._source, OffsetRange(partition, position, end))
            async for chunk in reader.chunks():
                yield [FoundBatch(batch, partition, first_offset=reader.first_offset) for batch in chunk]
            self._positions[partition] = end

    async def _wal_start(self, partition: int, end: int) -> int:
        """Return the offset at which the partition's WAL starts, if the partition's next offset is in the
        tier; otherwise ``end``. The objects of the WAL contain all records at or after the start of the
        WAL."""
        position = self._positions[partition]
        coordinator_id = self._access.coordinators[partition]
        rows = await self._coordinators.find(coordinator_id, self._topic_id, {partition: position}, 1)
        moved = next((row for row in rows if row.moved_to_tier), None)
        return end if moved is None or moved.wal_start_offset <= position else moved.wal_start_offset


def _partitions(members: Iterable[BatchCoordinate]) -> list[int]:
    return list(dict.fromkeys(one.partition_index for one in members))
