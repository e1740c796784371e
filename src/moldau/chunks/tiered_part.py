"""The records before the active chunk of a tiered partition. They are in the remote tier and in the inactive
chunks. The inactive chunks also have records with higher offsets than the tier.

The remote tier has no gaps. It begins at the start of the log, and ends at its *copied end*. Chunks before
the copied end are removed from the brokers when local retention no longer keeps them. A chunk that still
exists is read from its brokers. If none of these brokers can send a record, the record is read from the tier,
if the tier has it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from moldau.chunks.reading import ChunkedPart
from moldau.cluster.image.chunks import ChunkRegistration, Chunks, chunk_containing
from moldau.cluster.image.partition import PartitionRegistration
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import (
    AbortedTransaction,
    FoundOffset,
    ReadOutcome,
    ReadRequest,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.log.auxiliary_state import AuxiliaryState

logger = logging.getLogger(__name__)

_EXHAUSTED: Final = ReadOutcome(error=ErrorCode.offset_out_of_range)
"""The result of a read when the tier has no batch at or after the offset. The object is compared by
identity."""
_BASE_OFFSET_BYTES: Final = 8


class TierBelow(Protocol):
    """The records of a partition in the remote tier."""

    def read_below_chunks(
        self,
        request: ReadRequest,
        known: ReadOutcome,
        end_offset: int,
        aborted_behind: Sequence[AbortedTransaction],
        exhausted: ReadOutcome,
    ) -> "asyncio.Future[ReadOutcome]":
        """Read batches before ``end_offset``. ``aborted_behind`` has the transactions whose markers are not
        in the tier. The result is ``exhausted`` if the tier has no batch in this range."""
        ...

    async def until_ready(self) -> None:
        """Wait until the metadata of the tier are loaded. Raises ``KafkaError``."""
        ...

    def copied_until(self, offset: int, end_offset: int) -> int:
        """The first offset from ``offset`` to ``end_offset`` that is not in the tier."""
        ...

    async def auxiliary_state(
        self, leader_epoch: int, end_offset: int, log_start_offset: int
    ) -> AuxiliaryState: ...

    async def state_before(self, offset: int) -> AuxiliaryState | None: ...

    async def find_timestamp(
        self, timestamp_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None: ...

    async def find_max_timestamp(
        self, above_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None: ...


class TieredChunkedPart:
    """A :class:`moldau.replication.remote.RemotePart` over the remote tier and the inactive chunks, and its
    :class:`moldau.replication.remote.EarlierChunks`."""

    def __init__(
        self,
        partition: ClassicPartition,
        registration: Callable[[], PartitionRegistration | None],
        chunks: ChunkedPart,
        tier: TierBelow,
    ) -> None:
        self._partition = partition
        self._registration = registration
        self._chunked = chunks
        self._tier = tier

    @property
    def _chunks(self) -> Chunks:
        found = self._registration()
        return () if found is None else found.chunks

    def _copied_end(self) -> int:
        """The first offset that is not in the tier, or the start of the local log if all earlier offsets are
        in the tier. Chunks before this offset are not needed.
        """
        log, chunks = self._partition.log, self._chunks
        if not chunks:
            return log.local_log_start_offset
        first = max(chunks[0].start_offset, log.log_start_offset)
        return self._tier.copied_until(first, log.local_log_start_offset)

    def first_local_offset(self) -> int:
        if self._is_log_shortened():
            return self._partition.log.local_log_start_offset  # The local records before it have a gap.
        return self._chunked.first_local_offset()

    def border(self) -> int:
        return self._chunked.border()

    # -- reads ----------------------------------------------------------------------------------

    def read(self, request: ReadRequest, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        loop, chunk = asyncio.get_running_loop(), chunk_containing(self._chunks, request.offset)
        if chunk is None or self._is_log_shortened():
            return loop.create_task(self._guarded(self._read_tier(request, known), request, known))
        redirected = self._chunked.redirected(request, known)
        if redirected is not None:
            return redirected
        return loop.create_task(self._guarded(self._read_chunk(chunk, request, known), request, known))

    async def _guarded(
        self, reading: Coroutine[Any, Any, ReadOutcome], request: ReadRequest, known: ReadOutcome
    ) -> ReadOutcome:
        name = f"{self._partition.topic}-{self._partition.key.partition}"
        try:
            return await reading
        except KafkaError as error:
            logger.warning("%s: offset %d cannot be read: %s", name, request.offset, error)
            return known._replace(error=ErrorCode.kafka_storage_error)
        except Exception:
            logger.exception("%s: a read of offset %d failed", name, request.offset)
            return known._replace(error=ErrorCode.unknown_server_error)

    def _is_log_shortened(self) -> bool:
        """Whether the first segments of the active chunk are only in the tier. If so, all inactive chunks are
        in the tier, too, and these segments may contain the markers of transactions of inactive chunks."""
        found = self._registration()
        return found is not None and self._partition.log.local_log_start_offset > found.start_offset

    async def _read_chunk(
        self, chunk: ChunkRegistration, request: ReadRequest, known: ReadOutcome
    ) -> ReadOutcome:
        answer = await self._chunked.read_here(request, known)
        has_failed = answer.error is not ErrorCode.none
        lacks_first = answer.size_bytes > 0 and _base_offset(answer) > request.offset
        if not (has_failed or lacks_first or self._is_log_shortened()):
            return answer
        # A broker may have removed the first segments of a chunk before the chunk ended. These segments are
        # in the tier.
        await self._tier.until_ready()
        end_offset = self._tier.copied_until(request.offset, chunk.end_offset + 1)
        found = _EXHAUSTED
        if end_offset > request.offset:
            found, _ = await self._read_tier_before(request, known, end_offset)
        if found is not _EXHAUSTED:
            return found
        # The partition has this offset. The consumer repeats the request, and must not reset its position.
        return known if answer.error is ErrorCode.offset_out_of_range else answer

    async def _read_tier(self, request: ReadRequest, known: ReadOutcome) -> ReadOutcome:
        """Read an offset that is in no chunk."""
        later = (each.start_offset for each in self._chunks if each.start_offset > request.offset)
        end_offset = next(later, self._partition.log.local_log_start_offset)
        answer, end_offset = await self._read_tier_before(request, known, end_offset)
        if answer is not _EXHAUSTED:
            return answer
        behind = self._partition.read(request._replace(offset=end_offset))
        return behind if isinstance(behind, ReadOutcome) else await behind

    async def _read_tier_before(
        self, request: ReadRequest, known: ReadOutcome, end_offset: int
    ) -> tuple[ReadOutcome, int]:
        """Read batches of the tier. The records of the tier have no gap from the requested offset to the
        copied end. The caller passes a lower bound of the copied end as ``end_offset``. The second result is
        the copied end.
        """
        await self._tier.until_ready()
        log, chunks, aborted = self._partition.log, self._chunks, list[AbortedTransaction]()
        end_offset = max(end_offset, self._tier.copied_until(request.offset, log.local_log_start_offset))
        if request.read_committed:
            # Markers at or after the end of the tier are in the chunks and in the log.
            aborted = await self._chunked.aborted_from(chunks, end_offset, request.offset, end_offset)
        read = self._tier.read_below_chunks(request, known, end_offset, aborted, _EXHAUSTED)
        return await read, end_offset

    # -- lookups --------------------------------------------------------------------------------

    async def find_timestamp(
        self, timestamp_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        await self._tier.until_ready()
        copied_end = self._copied_end()
        if self._partition.log.log_start_offset < copied_end:
            before_tier = min(before_offset, copied_end)
            found = await self._tier.find_timestamp(timestamp_ms, before_tier, lookup)
            if found is not None:
                return found
        return await self._chunked.find_timestamp(timestamp_ms, before_offset, lookup, from_offset=copied_end)

    async def find_max_timestamp(
        self, above_ms: int, before_offset: int, lookup: RecordLookup
    ) -> FoundOffset | None:
        await self._tier.until_ready()
        copied_end, found = self._copied_end(), None
        if self._partition.log.log_start_offset < copied_end:
            before_tier = min(before_offset, copied_end)
            found = await self._tier.find_max_timestamp(above_ms, before_tier, lookup)
        above_ms = above_ms if found is None else max(above_ms, found.timestamp_ms)
        later = await self._chunked.find_max_timestamp(
            above_ms, before_offset, lookup, from_offset=copied_end
        )
        return found if later is None else later

    async def highest_offset(self) -> int:
        await self._tier.until_ready()
        log = self._partition.log
        copied_end = self._copied_end()
        if copied_end >= log.local_log_start_offset:
            copied_end = self._tier.copied_until(log.local_log_start_offset, log.log_end_offset)
        return -1 if copied_end <= log.log_start_offset else copied_end - 1

    async def auxiliary_state(
        self, leader_epoch: int, end_offset: int, log_start_offset: int
    ) -> AuxiliaryState:
        registration = self._registration()
        if registration is not None and end_offset == registration.start_offset:
            try:
                return await self._chunked.auxiliary_state(leader_epoch, end_offset, log_start_offset)
            except KafkaError:
                pass  # The chunk before the border may be only in the tier.
        return await self._tier.auxiliary_state(leader_epoch, end_offset, log_start_offset)

    async def state_before(self, offset: int) -> AuxiliaryState | None:
        return None if self._chunks else await self._tier.state_before(offset)


def _base_offset(answer: ReadOutcome) -> int:
    return int.from_bytes(answer.views[0][:_BASE_OFFSET_BYTES], "big")
