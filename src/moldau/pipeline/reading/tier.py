"""Reads a range of a partition from objects in the remote tier if possible, and otherwise from the leader.

The leader lists the segments when the range is read. The list therefore includes the changes that retention
and consolidation made since the planning. If objects are removed during the read, the segments are listed
again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from moldau.client.cluster import EARLIEST, RETRY_BACKOFF_S, Client, ClusterTopic
from moldau.client.errors import ToolError
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.pipeline.reading.broker import BrokerReader, same_topic
from moldau.pipeline.reading.decoding import FoundBatch
from moldau.pipeline.reading.object_ranges import RangeReader, open_ranges
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.tier_plan import EpochSpan, SegmentObject, TierPart, plan_parts
from moldau.pipeline.reading.tier_segments import Tier, list_segments
from moldau.pipeline.reading.tier_transactions import AbortedRanges, find_at_leader, find_in_tier
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.records.batch import CONTROL_BIT, HEADER_SIZE_BYTES, TRANSACTIONAL_BIT, parse_header
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.segments.offset_index import OffsetIndex

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 8 * 1024 * 1024
READS_AHEAD: Final = 4
INDEX_ENTRY: Final = OffsetIndex.entry
VANISHED_MAX: Final = 3
"""Maximum number of times that objects may be missing at one position. Each time, the segments are listed
again. If objects are missing more often, the broker is used."""


class TierPartitionReader:
    """Reads one range of offsets, in order."""

    def __init__(self, client: Client, source: TopicSource, wanted: OffsetRange) -> None:
        self._client = client
        self._source = source
        self._partition = wanted.partition
        self._position = self._first = wanted.start
        self._end = wanted.end
        self._where = f"{source.topic}-{wanted.partition}"
        self._vanished = 0
        self._listed: list[TierPart] = []
        """The parts of the last listing, which go from the read position at that time to the end of the
        tier."""
        self._aborted: AbortedRanges | None = None
        """The aborted transactions of the offsets up to the next gap between segments; ``None`` until they
        are needed."""

    async def chunks(self) -> AsyncIterator[list[FoundBatch]]:
        """Batches with the range's records. The first and the last batch may extend beyond the range.

        Raises the errors of :meth:`BrokerReader.chunks`.
        """
        tier = self._source.tier
        while tier is not None and self._position < self._end:
            try:
                ranges = open_ranges(tier.storage)
                parts = await self._parts(tier)
            except (KafkaError, StorageError, ProtocolError) as error:
                self._warn(error)
                break
            if all(part.segment is None for part in parts):
                break
            for part in parts:
                try:
                    async for chunk in self._read(ranges, part):
                        yield chunk
                except ObjectNotFoundError as error:
                    self._vanished += 1
                    if self._vanished > VANISHED_MAX:
                        self._warn(error)
                        tier = None
                    else:
                        logger.info("%s: looking its segments up again", error)
                        await asyncio.sleep(RETRY_BACKOFF_S)
                    break
                except StorageError as error:
                    self._warn(error)
                    tier = None
                    break
        async for chunk in self._by_broker(self._end):
            yield chunk

    def _warn(self, error: Exception) -> None:
        logger.warning(
            "%s: offsets %d to %d are read through the broker: %s",
            self._where, self._position, self._end - 1, error,
        )  # fmt: skip

    async def _by_broker(self, end: int) -> AsyncIterator[list[FoundBatch]]:
        if self._position >= end:
            return
        wanted = OffsetRange(self._partition, self._position, end)
        if self._source.wal is not None:
            logger.info("%s: offsets %d to %d come through the broker", self._where, self._position, end - 1)
        reader = BrokerReader(self._client, self._source, wanted)
        async for batches in reader.chunks():
            first = max(self._first, reader.first_offset)
            yield [FoundBatch(batch, self._partition, first_offset=first) for batch in batches]
        self._position = end

    # -- segments -------------------------------------------------------------------------------

    async def _parts(self, tier: Tier) -> list[TierPart]:
        topic = await same_topic(self._client, self._source)
        segments = await list_segments(self._client, topic, self._partition, tier)
        # Markers of the range's transactions may be in later segments.
        last = None if self._source.committed_only else self._end
        segments = [
            one
            for one in segments
            if one.end_offset >= self._position and (last is None or one.start_offset < last)
        ]
        if segments:
            # Ask for the first offset, because objects may still contain records that were deleted a short
            # time ago.
            found = await self._client.offsets(topic, {self._partition: EARLIEST})
            self._skip_lost(found[self._partition].offset)
        epochs = None if self._source.wal is not None else await self._epochs(topic, segments)
        behind = max((segment.end_offset + 1 for segment in segments), default=self._position)
        self._listed, self._aborted = plan_parts(segments, self._position, behind, epochs), None
        return plan_parts(segments, self._position, self._end, epochs)

    def _skip_lost(self, first: int) -> None:
        if first <= self._position:
            return
        if not self._source.may_lose:
            raise ToolError(f"{self._where}: offsets {self._position} to {first - 1} were deleted meanwhile")
        self._position = self._first = min(first, self._end)

    async def _epochs(self, topic: ClusterTopic, segments: list[SegmentObject]) -> Mapping[int, EpochSpan]:
        """Return, for each leader epoch of the segments, the range of offsets that the leader's log has in
        this epoch. The ranges of earlier epochs do not change any more."""
        known = sorted({epoch for segment in segments for epoch, _ in segment.epochs})
        spans: dict[int, EpochSpan] = {}
        for epoch in known:
            answer = await self._epoch_end(topic, epoch)
            if answer.leader_epoch == epoch:
                before = await self._epoch_end(topic, epoch - 1) if epoch > 0 else None
                spans[epoch] = EpochSpan(0 if before is None else before.end_offset, answer.end_offset)
        return spans

    async def _epoch_end(self, topic: ClusterTopic, epoch: int) -> Any:
        """Request the largest epoch in the leader's log that is at most ``epoch``, and the end offset of that
        epoch."""
        row = OffsetForLeaderPartition(partition=self._partition, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic=topic.name, partitions=[row])]
        )

        async def ask() -> Any:
            leader = (await self._client.topic(topic.name)).leaders[self._partition]
            response = await self._client.ask(request, broker=leader)
            (found,) = response.topics[0].partitions
            if found.error_code is not ErrorCode.none:
                raise KafkaError(found.error_code, f"{self._where}: {found.error_code.name}")
            return found

        return await self._client.retrying(ask)

    async def _find_aborted(self, ranges: RangeReader) -> bool:
        """Find the aborted transactions of the offsets up to the next gap between segments. Returns False if
        they are not known, because the request to the leader failed or the response was not complete.

        The response of a leader contains only transactions that begin before the requested offset or soon
        after it. Therefore the transactions after a gap are requested only after the gap was read.
        """
        parts = [part for part in self._listed if part.end > self._position]
        end = min([self._end, *(part.start for part in parts if part.segment is None)])
        found, behind = await find_in_tier(
            ranges, parts, end, is_whole_in_segment=self._source.wal is not None
        )
        if behind is not None:
            topic = await same_topic(self._client, self._source)
            try:
                if not await find_at_leader(self._client, topic, self._partition, behind, found):
                    return False
            except KafkaError as error:
                logger.info("%s: its aborted transactions are not known: %s", self._where, error)
                return False
        self._aborted = found
        return True

    # -- bytes ----------------------------------------------------------------------------------

    async def _read(self, ranges: RangeReader, part: TierPart) -> AsyncIterator[list[FoundBatch]]:
        """Read one part. Some batches are read through the broker: missing batches, and batches whose
        transaction only the broker knows."""
        segment = part.segment
        if segment is not None:
            begin, stop = await _bytes_of(ranges, segment, part)
            async with aclosing(_batches(ranges, segment.object_key, begin, stop)) as chunks:
                async for batches in chunks:
                    found, is_known = self._taken(batches, part.end)
                    if not is_known and await self._find_aborted(ranges):
                        more, is_known = self._taken(batches, part.end)
                        found += more
                    if found:
                        self._vanished = 0
                        yield found
                    if not is_known:
                        segment = None
                        break
        if segment is None:
            self._aborted = None
            async for chunk in self._by_broker(part.end):
                yield chunk
        self._position = max(self._position, part.end)

    def _taken(self, batches: list[memoryview], end: int) -> tuple[list[FoundBatch], bool]:
        """Return the batches to decode. If the aborted transactions are not known, the result ends before the
        first transactional batch, and the second value is False."""
        found: list[FoundBatch] = []
        for data in batches:
            header = parse_header(data)
            if header.base_offset >= end:
                break
            if header.last_offset < self._position:
                continue
            is_read = True
            if self._source.committed_only and header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
                if self._aborted is None:
                    return found, False
                is_read = not (header.is_control or self._aborted.covers(header))
            if is_read:
                found.append(FoundBatch(data, self._partition, first_offset=self._first))
            self._position = header.next_offset
        return found, True


async def _bytes_of(ranges: RangeReader, segment: SegmentObject, part: TierPart) -> tuple[int, int]:
    """The byte range of the part's batches in the segment's object. The range may be slightly larger than the
    batches."""
    whole = part.start <= segment.start_offset and part.end > segment.end_offset
    if whole or segment.offset_index is None or segment.size_bytes <= CHUNK_BYTES:
        return 0, segment.size_bytes
    key, position, size = segment.offset_index
    content = await ranges.fetch(key, position, size - size % INDEX_ENTRY.size)
    begin, stop = 0, segment.size_bytes
    is_behind = False
    # An entry contains the last offset of a batch, relative to the segment's first offset, and the batch's
    # position.
    for last, at in INDEX_ENTRY.iter_unpack(content):
        if last + segment.start_offset <= part.start:
            begin = at
        elif is_behind:
            stop = at
            break
        is_behind = last + segment.start_offset >= part.end
    return begin, stop


async def _batches(
    ranges: RangeReader, key: str, begin: int, stop: int
) -> AsyncGenerator[list[memoryview], None]:
    """The batches in a range of an object, some MiB at a time. The range must begin at the start of a
    batch."""
    rest = memoryview(b"")
    async with aclosing(_views(ranges, key, begin, stop)) as views:
        async for view in views:
            found: list[memoryview] = []
            if rest:  # the last batch of a piece may continue in the next piece
                missing = HEADER_SIZE_BYTES - len(rest)
                if missing <= 0 or len(view) >= missing:
                    header = b"".join((rest[:HEADER_SIZE_BYTES], view[: max(0, missing)]))
                    missing = parse_header(header).size_bytes - len(rest)
                rest, view, missing = (
                    memoryview(b"".join((rest, view[:missing]))), view[missing:], missing - len(view),
                )  # fmt: skip
                if missing > 0:
                    continue
                found.append(rest)
            whole = list(_whole(view))
            yield found + whole
            rest = view[sum(map(len, whole)) :]
    if rest:
        raise StorageError(f"{key} ends inside a batch", transient=False)


def _whole(view: memoryview) -> Iterator[memoryview]:
    at = 0
    while len(view) - at >= HEADER_SIZE_BYTES:
        size = parse_header(view, at).size_bytes
        if size < HEADER_SIZE_BYTES:
            raise StorageError(f"a batch of {size} bytes cannot be", transient=False)
        if size > len(view) - at:
            return
        yield view[at : at + size]
        at += size


async def _views(ranges: RangeReader, key: str, begin: int, stop: int) -> AsyncGenerator[memoryview, None]:
    """The bytes of a range in pieces. Some pieces are read in advance."""
    todo = deque((at, min(CHUNK_BYTES, stop - at)) for at in range(begin, stop, CHUNK_BYTES))
    flights: deque[asyncio.Task[memoryview]] = deque()
    try:
        while todo or flights:
            while todo and len(flights) < READS_AHEAD:
                flights.append(asyncio.ensure_future(ranges.fetch(key, *todo.popleft())))
            yield await flights.popleft()
    finally:
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
