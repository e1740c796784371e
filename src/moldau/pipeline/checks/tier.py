"""Verifies records that are no longer in the WAL. It reads the objects of remote segments, or reads through
the partition's leader."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.client.cluster import EARLIEST, Client
from moldau.client.errors import ToolError
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.pipeline.checks.damage import CORRUPT, GAP, MISSING, UNREADABLE, Checked, Findings
from moldau.pipeline.reading.broker import BrokerReader
from moldau.pipeline.reading.object_ranges import RangeReader
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.tier_plan import SegmentObject
from moldau.pipeline.reading.tier_segments import Tier, list_segments
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.protocol.messages.fetch import PartitionData
from moldau.records.batch import HEADER_SIZE_BYTES, check_batch, iter_headers, parse_header
from moldau.records.errors import CorruptRecordError
from moldau.runtime.errors import KafkaError

CHUNK_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerifyUnit:
    """Offsets of one topic to verify. They belong to several partitions of one coordinator, or to one
    partition in the tier.

    In the tier, the unit reads the objects of ``segments``. If there are no segments, it reads through the
    leader.
    """

    topic: str
    topic_id: str
    ranges: tuple[OffsetRange, ...]
    coordinator_id: int | None
    """The coordinator of the partitions; ``None`` for a unit in the tier."""
    begins: Mapping[int, int] = field(default_factory=dict)
    """The first offset that is not deleted, by partition. If a batch begins before this offset, it is checked
    only by the unit whose range begins at this offset."""
    segments: tuple[SegmentObject, ...] = ()
    """The remote segments that contain the range of a unit in the tier. A unit in the tier has only one
    range."""


class SegmentCheck:
    """Reads the log objects of segments from their first byte to their last."""

    def __init__(self, client: Client, ranges: RangeReader, tier: Tier, unit: VerifyUnit) -> None:
        self._client = client
        self._ranges = ranges
        self._tier = tier
        self._unit = unit
        (self._range,) = unit.ranges
        self._findings = Findings(unit.topic)

    async def run(self) -> Checked:
        """Run the check. Raises ``KafkaError`` if a broker does not respond, and ``StorageError`` if a store
        does not respond."""
        for segment in self._unit.segments:
            try:
                await self._check(segment)
            except StorageError as error:
                if error.transient:
                    raise
                if await self._is_live(segment):
                    kind = MISSING if isinstance(error, ObjectNotFoundError) else CORRUPT
                    self._bad(kind, segment, segment.start_offset, str(error))
                else:
                    self._findings.moved += segment.end_offset - segment.start_offset + 1
        return self._findings.result()

    def _bad(self, kind: str, segment: SegmentObject, first: int, reason: str) -> None:
        partition = self._range.partition
        self._findings.bad(kind, partition, first, segment.end_offset, reason, segment.object_key)

    async def _is_live(self, segment: SegmentObject) -> bool:
        topic = await self._client.topic(self._unit.topic)
        if str(topic.topic_id) != self._unit.topic_id:
            return False
        found = await list_segments(self._client, topic, self._range.partition, self._tier)
        return any(one.id == segment.id for one in found)

    async def _check(self, segment: SegmentObject) -> None:
        """Check a segment up to the first damaged batch. After that batch, the start of the next batch is
        unknown."""
        position = segment.start_offset
        async for data in self._batches(segment):
            try:
                header = check_batch(data)
            except CorruptRecordError as error:
                self._bad(CORRUPT, segment, position, str(error))
                return
            if header.base_offset != position:
                reason = f"offset {position} is followed by {header.base_offset}"
                self._bad(GAP, segment, position, reason)
                return
            self._findings.good(header.last_offset - header.base_offset + 1, header.size_bytes)
            position = header.next_offset
        if position != segment.end_offset + 1:
            self._bad(GAP, segment, position, f"the segment ends before offset {position}")

    async def _batches(self, segment: SegmentObject) -> AsyncIterator[memoryview]:
        """Yield each batch of a segment. The sizes in the headers show where a batch begins. Remaining bytes
        at the end of the segment are returned as a batch, too."""
        at = 0
        while at < segment.size_bytes:
            size = min(CHUNK_BYTES, segment.size_bytes - at)
            view = await self._ranges.fetch(segment.object_key, at, size)
            used = 0
            while (batch := _whole_batch(view[used:])) is not None:
                yield batch
                used += len(batch)
            if used == 0 and at + size < segment.size_bytes:
                whole = parse_header(view).size_bytes if size >= HEADER_SIZE_BYTES else 0
                if size < whole <= segment.size_bytes - at:
                    yield await self._ranges.fetch(segment.object_key, at, whole)
                    at += whole
                    continue
            if used == 0:
                yield view
                return
            at += used


def _whole_batch(view: memoryview) -> memoryview | None:
    if len(view) < HEADER_SIZE_BYTES:
        return None
    size = parse_header(view).size_bytes
    return view[:size] if HEADER_SIZE_BYTES <= size <= len(view) else None


class _AllBatches(BrokerReader):
    """A reader that also returns control batches. Without them, the offsets of control batches would look
    like gaps."""

    def _batches_to_decode(self, data: PartitionData) -> list[memoryview]:
        if not data.records:
            return []
        assert isinstance(data.records, memoryview)
        found = []
        for at, header in iter_headers(data.records):
            if header.base_offset >= self._wanted.end:
                break
            found.append(data.records[at : at + header.size_bytes])
            self._position = max(self._position, header.next_offset)
        return found


class BrokerCheck:
    """Checks offsets in the tier by reading them through the broker that leads the partition."""

    def __init__(self, client: Client, bootstrap: str, unit: VerifyUnit, timeout_s: float) -> None:
        (self._range,) = unit.ranges
        self._begin = unit.begins.get(self._range.partition, self._range.start)
        self._client = client
        self._topic = unit.topic
        self._source = TopicSource(
            bootstrap, unit.topic, unit.topic_id, committed_only=False, may_lose=True, timeout_s=timeout_s
        )
        self._findings = Findings(unit.topic)
        self._position = self._range.start

    async def run(self) -> Checked:
        end = self._range.end
        try:
            async for chunk in _AllBatches(self._client, self._source, self._range).chunks():
                for data in chunk:
                    await self._check_next(data)
        except (KafkaError, ToolError, CorruptRecordError) as error:
            await self._not_there(UNREADABLE, end, str(error))
            return self._findings.result()
        if self._position < end:
            await self._not_there(GAP, end, "the tier has no batch for these")
        return self._findings.result()

    async def _check_next(self, data: memoryview) -> None:
        try:
            header = check_batch(data)
        except CorruptRecordError as error:
            position = self._position
            self._findings.bad(CORRUPT, self._range.partition, position, position, str(error))
            return
        if header.base_offset > self._position:
            await self._not_there(GAP, header.base_offset, "the tier has no batch for these")
        # If a batch begins before the range, another unit counts it. There is only one exception: if the
        # range begins at the first offset that is not deleted, this unit counts the batch.
        if not header.base_offset < self._range.start != self._begin:
            self._findings.good(header.last_offset - header.base_offset + 1, header.size_bytes)
        self._position = max(self._position, header.next_offset)

    async def _not_there(self, kind: str, behind: int, reason: str) -> None:
        """Report missing offsets, except those that retention deleted in the meantime."""
        partition = self._range.partition
        topic = await self._client.topic(self._topic)
        first = (await self._client.offsets(topic, {partition: EARLIEST}))[partition].offset
        kept = max(self._position, min(first, behind))
        self._findings.moved += kept - self._position
        if kept < behind:
            self._findings.bad(kind, partition, kept, behind - 1, reason)
