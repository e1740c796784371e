"""The task of a verification: it reads every existing batch in a range of offsets, and reports damages."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.client.cluster import Client, parse_bootstrap
from moldau.client.diskless import DisklessCoordinators
from moldau.coordinators.diskless.calls import BatchCoordinate, FoundPartition
from moldau.diskless.reading.object_reads import PlannedRead, plan_reads
from moldau.objects.factory import StorageSettings
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.pipeline.checks.damage import CORRUPT, GAP, MISSING, Checked, Findings, compare_batch, find_gaps
from moldau.pipeline.checks.tier import BrokerCheck, SegmentCheck, VerifyUnit
from moldau.pipeline.reading.object_ranges import RangeReader, open_ranges
from moldau.pipeline.reading.tier_segments import Tier
from moldau.pipeline.reading.wal_plan import in_object_order
from moldau.runtime.errors import ErrorCode, KafkaError

GAP_BYTES: Final = 1024 * 1024
PAGE_BATCHES: Final = 5_000
READS_AHEAD: Final = 8


@dataclass(frozen=True, slots=True)
class Verify:
    """A function that checks one unit. The object is sent to the tasks."""

    bootstrap: str
    storage: StorageSettings
    timeout_s: float
    tier: Tier | None = None

    def __call__(self, unit: VerifyUnit) -> Checked:
        return asyncio.run(self._check(unit))

    async def _check(self, unit: VerifyUnit) -> Checked:
        client = Client(parse_bootstrap(self.bootstrap), self.timeout_s)
        try:
            if unit.segments:
                assert self.tier is not None
                return await SegmentCheck(client, open_ranges(self.tier.storage), self.tier, unit).run()
            if unit.coordinator_id is None:
                return await BrokerCheck(client, self.bootstrap, unit, self.timeout_s).run()
            return await WalCheck(DisklessCoordinators(client), open_ranges(self.storage), unit).run()
        finally:
            await client.close()


class WalCheck:
    """Checks a window of offsets. It first checks the coordinates of the batches (their offsets, object and
    position), and then the bytes at these coordinates."""

    def __init__(self, coordinators: DisklessCoordinators, ranges: RangeReader, unit: VerifyUnit) -> None:
        assert unit.coordinator_id is not None
        self._coordinators = coordinators
        self._coordinator_id = unit.coordinator_id
        self._ranges = ranges
        self._unit = unit
        self._topic_id = UUID(unit.topic_id)
        self._findings = Findings(unit.topic)

    async def run(self) -> Checked:
        """Run the check. Raises ``KafkaError`` if a coordinator does not respond, and ``StorageError`` if a
        store does not respond."""
        positions = {one.partition: one.start for one in self._unit.ranges}
        ends = {one.partition: one.end for one in self._unit.ranges}
        while positions:
            share = max(1, PAGE_BATCHES // len(positions))
            rows = await self._coordinators.find(self._coordinator_id, self._topic_id, positions, share)
            found = [self._checked(row, positions, ends) for row in rows]
            await self._read([batches for batches in found if batches])
        return self._findings.result()

    def _checked(
        self,
        row: FoundPartition,
        positions: dict[int, int],
        ends: dict[int, int],
    ) -> list[BatchCoordinate]:
        """Check the coordinates in a response, and return those whose bytes must be checked. Advance the
        partition's entry in ``positions``, or remove the entry when the range of the partition ends."""
        partition = row.partition_index
        position, end = positions[partition], ends[partition]
        if row.error in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id):
            return self._passed(positions, partition, end, end)  # the partition was deleted in the meantime
        behind = row.wal_start_offset if row.moved_to_tier else row.log_start_offset
        if row.moved_to_tier or row.error is ErrorCode.offset_out_of_range:
            if behind > position:
                return self._passed(positions, partition, min(behind, end), end)
            reason = f"the coordinator has no batch at this offset, and its first offset is {behind}"
            self._findings.bad(GAP, partition, position, end - 1, reason)
            del positions[partition]
            return []
        if row.error is not ErrorCode.none:
            raise KafkaError(row.error, f"{self._unit.topic}-{partition}: {row.error.name}")
        batches = [one for one in row.batches if one.base_offset < end]
        reached = batches[-1].last_offset + 1 if batches else end
        is_last = not batches or reached >= end or len(batches) < len(row.batches)
        for first, last in find_gaps(batches, position, end if is_last else reached):
            self._findings.bad(GAP, partition, first, last, "these offsets are in no batch or in several")
        if is_last:
            del positions[partition]
        else:
            positions[partition] = reached
        if batches and batches[0].base_offset < position != self._unit.begins.get(partition, position):
            return batches[1:]  # another unit reads this batch
        return batches

    def _passed(
        self, positions: dict[int, int], partition: int, behind: int, end: int
    ) -> list[BatchCoordinate]:
        self._findings.moved += behind - positions[partition]
        positions[partition] = behind
        if behind >= end:
            del positions[partition]
        return []

    async def _read(self, partitions: Sequence[Sequence[BatchCoordinate]]) -> None:
        # Transaction markers are not stored in objects.
        coordinates = in_object_order([[one for one in some if one.marker is None] for some in partitions])
        reads = plan_reads(coordinates, GAP_BYTES)
        async for read, view in self._fetched(reads):
            members = [coordinates[member] for member in read.members]
            if view is None:
                for one in members:
                    await self._read_alone(one)
                continue
            for one in members:
                begin = one.byte_offset - read.start
                self._check_batch(one, view[begin : begin + one.size_bytes])

    async def _fetched(
        self, reads: Sequence[PlannedRead]
    ) -> AsyncIterator[tuple[PlannedRead, memoryview | None]]:
        """Yield each range with its bytes. A few ranges are read in advance. The bytes are ``None`` if the
        object is missing or too short."""
        todo, flights = deque(reads), deque[tuple[PlannedRead, asyncio.Task[memoryview | None]]]()
        try:
            while todo or flights:
                while todo and len(flights) < READS_AHEAD:
                    read = todo.popleft()
                    flights.append((read, asyncio.ensure_future(self._range(read))))
                read, flight = flights.popleft()
                yield read, await flight
        finally:
            for _, flight in flights:
                flight.cancel()
            await asyncio.gather(*(flight for _, flight in flights), return_exceptions=True)

    async def _range(self, read: PlannedRead) -> memoryview | None:
        try:
            return await self._ranges.fetch(read.object_key, read.start, read.size_bytes)
        except StorageError as error:
            if error.transient:
                raise
            return None

    def _check_batch(self, one: BatchCoordinate, data: memoryview) -> None:
        reason = compare_batch(data, one)
        if reason is None:
            self._findings.good(one.last_offset - one.base_offset + 1, one.size_bytes)
        else:
            self._bad(CORRUPT, one, reason)

    def _bad(self, kind: str, one: BatchCoordinate, reason: str) -> None:
        self._findings.bad(
            kind, one.partition_index, one.base_offset, one.last_offset, reason, one.object_key
        )

    async def _read_alone(self, one: BatchCoordinate) -> None:
        """Check one batch of a range that could not be read. The batch may have moved since its coordinates
        were looked up."""
        try:
            data = await self._ranges.fetch(one.object_key, one.byte_offset, one.size_bytes)
        except StorageError as error:
            if error.transient:
                raise
            if not await self._is_still_there(one):
                self._findings.moved += one.last_offset - one.base_offset + 1
                return
            kind = MISSING if isinstance(error, ObjectNotFoundError) else CORRUPT
            self._bad(kind, one, str(error))
            return
        self._check_batch(one, data)

    async def _is_still_there(self, one: BatchCoordinate) -> bool:
        """Whether the batch's last offset is still in this object, according to the coordinator."""
        rows = await self._coordinators.find(
            self._coordinator_id, self._topic_id, {one.partition_index: one.last_offset}, 1
        )
        keys = [batch.object_key for row in rows for batch in row.batches]
        return keys == [one.object_key]
