"""Presents the inactive chunks of a partition as the remote part of its log.

A read of offsets before the active chunk uses this broker's copy of the chunk. If this broker has no copy,
another broker with a copy responds. The reader gets the data of one log: batches, aborted transactions of the
whole partition, and lookups by timestamp.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from moldau.chunks.calls import ChunkFileFetch, ChunkFilePiece, ChunkRead, ChunkRecords, ChunkSearch
from moldau.chunks.redirects import ChunkRedirects
from moldau.cluster.image.chunks import ChunkRegistration, Chunks, chunk_containing
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.partitions import PartitionKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import AbortedTransaction, FoundOffset, ReadOutcome, ReadRequest
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.folders.checkpoint import CheckpointError
from moldau.storage.folders.file_names import LEADER_EPOCHS, PRODUCER_SNAPSHOT_SUFFIX, segment_file
from moldau.storage.log.append_info import ReadResult
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.files.leader_epoch_file import parse_leader_epochs
from moldau.storage.producers.producer_snapshot import CorruptSnapshotError, decode_producer_snapshot

logger = logging.getLogger(__name__)

READ_MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum for a client's size limit. A larger limit is reduced to this maximum. The first batch may be larger
than the limit."""


class ChunkReads(Protocol):
    """Reads chunks on any broker. The methods raise ``KafkaError``."""

    async def read(self, topic: str, chunk: ChunkRegistration, wanted: ChunkRead) -> ChunkRecords: ...

    async def fetch_file(self, chunk: ChunkRegistration, wanted: ChunkFileFetch) -> ChunkFilePiece: ...

    async def find(
        self, topic: str, chunk: ChunkRegistration, wanted: ChunkSearch, lookup: RecordLookup
    ) -> FoundOffset: ...

    async def handed_over(self, key: PartitionKey, partition: PartitionRegistration) -> AuxiliaryState | None:
        """The state at the first offset of the active chunk, from a broker of this chunk. The result is
        ``None`` if no broker of the chunk has the state."""
        ...


class ChunkedPart:
    """A :class:`moldau.replication.remote.RemotePart` over the inactive chunks of a partition, and its
    :class:`moldau.replication.remote.EarlierChunks`."""

    def __init__(
        self,
        partition: ClassicPartition,
        registration: Callable[[], PartitionRegistration | None],
        reads: ChunkReads,
        redirects: ChunkRedirects,
    ) -> None:
        """``registration`` returns the partition in the newest image."""
        self._partition = partition
        self._registration = registration
        self._reads = reads
        self._redirects = redirects

    @property
    def _chunks(self) -> Chunks:
        found = self._registration()
        return () if found is None else found.chunks

    def first_local_offset(self) -> int:
        log = self._partition.log
        first = next((each for each in self._chunks if each.end_offset >= log.log_start_offset), None)
        if first is None:
            return log.local_log_start_offset
        return max(first.start_offset, log.log_start_offset)

    def border(self) -> int:
        found = self._registration()
        return -1 if found is None else found.start_offset

    # -- reads ----------------------------------------------------------------------------------

    def read(self, request: ReadRequest, known: ReadOutcome) -> "asyncio.Future[ReadOutcome]":
        redirected = self.redirected(request, known)
        if redirected is not None:
            return redirected
        return asyncio.get_running_loop().create_task(self.read_here(request, known))

    def redirected(self, request: ReadRequest, known: ReadOutcome) -> "asyncio.Future[ReadOutcome] | None":
        """The answer that sends a consumer to a broker of the chunk; ``None`` if this broker answers."""
        if request.memory is None or not self._partition.is_leader:
            return None
        chunk = chunk_containing(self._chunks, request.offset)
        if chunk is None:
            return None
        target = self._redirects.target(self._partition.key, chunk, request.client_rack, request.memory)
        if target < 0:
            return None
        answer: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        answer.set_result(known._replace(preferred_read_replica=target))
        return answer

    async def read_here(self, request: ReadRequest, known: ReadOutcome) -> ReadOutcome:
        try:
            return await self._read_chunks(request, known)
        except KafkaError as error:
            name = f"{self._partition.topic}-{self._partition.key.partition}"
            logger.warning("%s: offset %d cannot be read from its chunk: %s", name, request.offset, error)
            return known._replace(error=ErrorCode.kafka_storage_error)
        except Exception:
            logger.exception("a read of a chunk of %s failed", self._partition.topic)
            return known._replace(error=ErrorCode.unknown_server_error)

    async def _read_chunks(self, request: ReadRequest, known: ReadOutcome) -> ReadOutcome:
        offset = request.offset
        bound = known.last_stable_offset if request.read_committed else known.high_watermark
        nothing = known._replace(aborted=[]) if request.read_committed else known
        if request.max_bytes <= 0 and not request.min_one_batch:
            return nothing
        # This list of chunks is kept, because chunks that are removed during the read may contain the markers
        # of transactions whose records are read.
        chunks = self._chunks
        for chunk in chunks:
            if chunk.end_offset < offset:
                continue
            if offset >= bound:
                return nothing
            if chunk.start_offset > offset:
                break  # The chunk that contained the offset was removed.
            found = await self._reads.read(
                self._partition.topic, chunk, self._wanted(chunk, request, offset, bound)
            )
            if found.size_bytes:
                aborted = None
                if request.read_committed:
                    aborted = await self._aborted(chunks, chunk, found, offset)
                return known._replace(
                    views=found.views, size_bytes=found.size_bytes, aborted=aborted, is_cut=True
                )
            if not request.min_one_batch:
                return nothing  # The next batch may be larger than the remaining part of the client's limit.
            offset = chunk.end_offset + 1  # The chunk has no batch at or after the offset.
        else:
            if offset < self._partition.log.local_log_start_offset:
                return known._replace(error=ErrorCode.offset_out_of_range)
            answer = self._partition.read(request._replace(offset=offset))
            return answer if isinstance(answer, ReadOutcome) else nothing
        return known._replace(error=ErrorCode.offset_out_of_range)

    def _wanted(self, chunk: ChunkRegistration, request: ReadRequest, offset: int, bound: int) -> ChunkRead:
        return ChunkRead(
            *self._partition.key,
            chunk.start_offset,
            offset,
            min(request.max_bytes, READ_MAX_BYTES),
            request.min_one_batch,
            min(bound, chunk.end_offset + 1),
            request.read_committed,
        )

    async def _aborted(
        self, chunks: Chunks, read_from: ChunkRegistration, found: ChunkRecords, offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions with records in ``[offset, found.next_offset)``.

        The marker of a transaction may be in any later chunk. If a transaction that began before the read's
        end is still open at the end of a chunk, the search continues in the next chunk.
        """
        later = await self.aborted_from(
            chunks, read_from.end_offset + 1, offset, found.next_offset, opened=found.open_offset
        )
        return list(dict.fromkeys([*found.aborted, *later]))

    async def aborted_from(
        self, chunks: Chunks, first_marker: int, offset: int, end_offset: int, *, opened: int = 0
    ) -> list[AbortedTransaction]:
        """The aborted transactions with records in ``[offset, end_offset)`` whose markers are at or after
        ``first_marker``, in these chunks or in the log.

        ``opened`` is the first offset of a transaction that is open at ``first_marker``. It is -1 if there is
        no such transaction, and 0 if this is not known.
        """
        aborted: dict[AbortedTransaction, None] = {}
        # The log is read before the chunks, because the first records of the log may be removed while the
        # chunks are read.
        in_log = self._partition.log.aborted_transactions(offset, ReadResult([], 0, end_offset, 0, 0))
        for chunk in chunks:
            if chunk.end_offset < first_marker:
                continue
            if not 0 <= opened < end_offset:
                return list(aborted)
            wanted = ChunkRead(
                *self._partition.key, chunk.start_offset, offset, 0, False, end_offset, with_aborted=True
            )
            part = await self._reads.read(self._partition.topic, chunk, wanted)
            opened = part.open_offset
            aborted.update(dict.fromkeys(part.aborted))
        if 0 <= opened < end_offset:
            aborted.update({AbortedTransaction(each.producer_id, each.first_offset): None for each in in_log})
        return list(aborted)

    # -- lookups --------------------------------------------------------------------------------

    async def find_timestamp(
        self, timestamp_ms: int, before_offset: int, lookup: RecordLookup, *, from_offset: int = 0
    ) -> FoundOffset | None:
        log_start_offset = max(from_offset, self._partition.log.log_start_offset)
        for chunk in self._chunks:
            if chunk.end_offset < log_start_offset or chunk.max_timestamp_ms < timestamp_ms:
                continue
            if chunk.start_offset >= before_offset:
                return None
            wanted = ChunkSearch(
                *self._partition.key,
                chunk.start_offset,
                timestamp_ms,
                max(chunk.start_offset, log_start_offset),
            )
            found = await self._reads.find(self._partition.topic, chunk, wanted, lookup)
            if found.offset >= 0:
                return found if found.offset < before_offset else None
        return None

    async def find_max_timestamp(
        self, above_ms: int, before_offset: int, lookup: RecordLookup, *, from_offset: int = 0
    ) -> FoundOffset | None:
        start_offset = max(from_offset, self._partition.log.log_start_offset)
        remaining = {chunk.max_timestamp_ms for chunk in self._chunks if chunk.end_offset >= start_offset}
        # The record with the largest timestamp of a chunk may be before the start of the log.
        for latest in sorted(remaining, reverse=True):
            if latest <= above_ms:
                return None
            found = await self.find_timestamp(latest, before_offset, lookup, from_offset=from_offset)
            if found is not None:
                return found
        return None

    async def highest_offset(self) -> int:
        """No chunk is in the remote tier."""
        return -1

    async def auxiliary_state(
        self, leader_epoch: int, end_offset: int, log_start_offset: int
    ) -> AuxiliaryState:
        registration = self._registration()
        if registration is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return await state_at_border(
            self._reads, self._partition.key, registration, end_offset, log_start_offset
        )

    async def state_before(self, offset: int) -> AuxiliaryState | None:
        """Inside of inactive chunks, no state is known."""
        return None


async def state_at_border(
    reads: ChunkReads,
    key: PartitionKey,
    partition: PartitionRegistration,
    border: int,
    log_start_offset: int,
) -> AuxiliaryState:
    """The state at the first offset of the active chunk.

    It is the state that was handed over to a broker of the active chunk. If none of these brokers has the
    state, it is read from a broker that has the previous chunk. Raises ``KafkaError`` if no such broker
    responds.
    """
    if border == partition.start_offset:
        state = await reads.handed_over(key, partition)
        if state is not None:
            return state._replace(log_start_offset=log_start_offset)
    chunk = next((each for each in partition.chunks if each.end_offset == border - 1), None)
    if chunk is None:
        raise KafkaError(ErrorCode.offset_moved_to_tiered_storage, f"no inactive chunk ends before {border}")
    names = (await reads.fetch_file(chunk, ChunkFileFetch(*key, chunk.start_offset))).files
    snapshot, producers = segment_file(border, PRODUCER_SNAPSHOT_SUFFIX), []
    epochs = await _file(reads, key, chunk, LEADER_EPOCHS)
    try:
        if snapshot in names:
            producers = decode_producer_snapshot(await _file(reads, key, chunk, snapshot), snapshot)
        return AuxiliaryState(border, log_start_offset, parse_leader_epochs(epochs, LEADER_EPOCHS), producers)
    except (CorruptSnapshotError, CheckpointError) as error:
        raise KafkaError(ErrorCode.corrupt_message, str(error)) from error


async def _file(reads: ChunkReads, key: PartitionKey, chunk: ChunkRegistration, name: str) -> bytes:
    content = b""
    while True:
        wanted = ChunkFileFetch(*key, chunk.start_offset, name, len(content), READ_MAX_BYTES)
        piece = (await reads.fetch_file(chunk, wanted)).content
        content += piece
        if not piece:
            return content
