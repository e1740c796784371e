"""Handles the reads of consumers on a broker that has inactive chunks of a partition, but no replica of its
active chunk.

The leader sends consumers to this broker (KIP-392). They read the chunks of this broker, and are then sent to
the broker of the next chunk, or back to the leader. This broker refuses all other requests, because only the
leader handles them.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from moldau.chunks.calls import ChunkRead, ChunkRecords
from moldau.chunks.holder import ChunkHolder
from moldau.chunks.leader_start import LeaderStart
from moldau.chunks.meters import ChunkMeters
from moldau.chunks.reading import READ_MAX_BYTES
from moldau.chunks.redirects import ChunkRedirects
from moldau.cluster.image.chunks import ChunkRegistration, chunk_containing
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import (
    AppendAnswer,
    AppendOutcome,
    FoundOffset,
    Partition,
    PartitionStatus,
    ProducerTurn,
    ReadAnswer,
    ReadOutcome,
    ReadRequest,
    TransactionalBatch,
    TransactionMarker,
    TransactionParticipant,
    WithoutLog,
)
from moldau.replication.traffic import PartitionTraffic
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.fair_lane import FairClient
from moldau.storage.chunks.chunk_store import ChunkId

logger = logging.getLogger(__name__)

_NOT_HERE: Final = ReadOutcome(error=ErrorCode.not_leader_or_follower)


class _TransactionsElsewhere(TransactionParticipant):
    """Refuses batches and transaction markers, because only the leader can append them."""

    any_broker_marks = False

    def append(self, batch: TransactionalBatch, turn: ProducerTurn) -> AppendAnswer:
        raise KafkaError(ErrorCode.not_leader_or_follower)

    async def write_marker(self, marker: TransactionMarker) -> None:
        raise KafkaError(ErrorCode.not_leader_or_follower)


@dataclass(frozen=True, slots=True)
class PartitionElsewhere:
    """A partition whose active chunk is only on other brokers."""

    key: PartitionKey
    topic: str
    registration: Callable[[], PartitionRegistration | None]
    """Returns the partition in the newest image."""
    leader_start: LeaderStart
    """The first offset of the partition, from its leader."""

    def chunk_id(self, chunk: ChunkRegistration) -> ChunkId:
        return ChunkId(*self.key, chunk.start_offset)


class ChunkStandIn(WithoutLog, Partition):
    """The inactive chunks of a partition on this broker, for consumers that the leader or another broker has
    sent to this broker."""

    is_leader = False
    is_under_replicated = False

    def __init__(
        self,
        partition: PartitionElsewhere,
        holder: ChunkHolder,
        redirects: ChunkRedirects,
        traffic: PartitionTraffic,
        meters: ChunkMeters,
    ) -> None:
        """``traffic`` and ``meters`` count the bytes that consumers read."""
        self._partition = partition
        self._holder = holder
        self._redirects = redirects
        self._traffic = traffic
        self._meters = meters

    @property
    def key(self) -> PartitionKey:
        return self._partition.key

    @property
    def topic(self) -> str:
        return self._partition.topic

    @property
    def leader_epoch(self) -> int:
        found = self._partition.registration()
        return -1 if found is None else found.leader_epoch

    @property
    def transactions(self) -> TransactionParticipant:
        return _TransactionsElsewhere()

    # -- reads ----------------------------------------------------------------------------------

    def read(self, request: ReadRequest) -> ReadAnswer:
        partition = self._partition.registration()
        if partition is None or request.replica_id >= 0 or request.memory is None:
            return _NOT_HERE
        epoch = request.current_leader_epoch
        if epoch >= 0 and epoch != partition.leader_epoch:
            is_old = epoch < partition.leader_epoch
            return ReadOutcome(
                error=ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch
            )
        chunk = chunk_containing(partition.chunks, request.offset)
        if chunk is None or not self._has(chunk):
            return self._sent_on(partition, request, request.offset)
        return asyncio.get_running_loop().create_task(self._read(partition, chunk, request))

    def _has(self, chunk: ChunkRegistration) -> bool:
        return self._holder.has(self._partition.chunk_id(chunk))

    async def _read(
        self, partition: PartitionRegistration, chunk: ChunkRegistration, request: ReadRequest
    ) -> ReadOutcome:
        start_offset = await self._partition.leader_start.offset(partition)
        if request.offset < start_offset:
            return self._sent_back(partition, request)  # The record was deleted.
        try:
            found = await self._read_here(chunk, request)
        except KafkaError as error:
            logger.warning("chunk %d of %s cannot be read: %s", chunk.start_offset, self.topic, error)
            return _NOT_HERE
        if found is None:
            return self._sent_back(partition, request)
        if not found.size_bytes and request.min_one_batch:
            return self._sent_on(partition, request, chunk.end_offset + 1)
        self._traffic.fetched(found.size_bytes)
        self._meters.local_bytes.mark(found.size_bytes)
        return self._found(partition, found, request, start_offset)

    async def _read_here(self, chunk: ChunkRegistration, request: ReadRequest) -> ChunkRecords | None:
        """Read the chunk on this broker. The result is ``None`` if only the leader can send the records."""
        bound, chunk_id = chunk.end_offset + 1, self._partition.chunk_id(chunk)
        if request.offset < await self._holder.first_offset(self.topic, chunk_id):
            return None  # Only the leader reads records from the remote tier.
        if request.read_committed:
            unstable = await self._holder.open_offset(self.topic, chunk_id)
            if unstable >= 0:
                # Only the leader knows the outcome of the transaction that begins at this offset.
                bound = min(bound, unstable)
        if request.offset >= bound:
            return None
        return await self._holder.read(self.topic, self._wanted(chunk, request, bound))

    def _wanted(self, chunk: ChunkRegistration, request: ReadRequest, bound: int) -> ChunkRead:
        return ChunkRead(
            *self.key,
            chunk.start_offset,
            request.offset,
            min(request.max_bytes, READ_MAX_BYTES),
            request.min_one_batch,
            bound,
            request.read_committed,
        )

    @staticmethod
    def _known(partition: PartitionRegistration) -> ReadOutcome:
        """The known offsets of the partition. All records before the active chunk are committed."""
        first = partition.chunks[0].start_offset if partition.chunks else partition.start_offset
        return ReadOutcome(
            high_watermark=partition.start_offset,
            last_stable_offset=partition.start_offset,
            log_start_offset=first,
        )

    def _found(
        self, partition: PartitionRegistration, found: ChunkRecords, request: ReadRequest, start_offset: int
    ) -> ReadOutcome:
        known = self._known(partition)
        return known._replace(
            log_start_offset=max(known.log_start_offset, start_offset),
            views=found.views,
            size_bytes=found.size_bytes,
            aborted=found.aborted if request.read_committed else None,
            is_cut=True,
        )

    def _sent_on(self, partition: PartitionRegistration, request: ReadRequest, offset: int) -> ReadOutcome:
        """Send a consumer to the broker that has the next chunk, or to the leader."""
        chunk, target = chunk_containing(partition.chunks, offset), -1
        if chunk is not None and request.memory is not None:
            target = self._redirects.target(self.key, chunk, request.client_rack, request.memory)
        if target < 0:
            return self._sent_back(partition, request)
        return self._known(partition)._replace(preferred_read_replica=target)

    def _sent_back(self, partition: PartitionRegistration, request: ReadRequest) -> ReadOutcome:
        """Send a consumer to the leader."""
        memory = request.memory
        if partition.leader < 0 or memory is None:
            return _NOT_HERE
        if not self._redirects.may_send_back(self.key, partition.leader_epoch, memory):
            return _NOT_HERE
        return self._known(partition)._replace(preferred_read_replica=partition.leader)

    # -- other requests -------------------------------------------------------------------------

    def append(
        self, records: memoryview, *, required_acks: int, timeout_ms: int, client: FairClient | None = None
    ) -> AppendAnswer:
        return AppendOutcome(ErrorCode.not_leader_or_follower)

    async def find_offset(
        self,
        timestamp_ms: int,
        *,
        read_committed: bool,
        current_leader_epoch: int,
        client: FairClient | None = None,
        is_replica: bool = False,
        deadline_s: float | None = None,
    ) -> FoundOffset:
        raise KafkaError(ErrorCode.not_leader_or_follower)

    async def delete_records(self, before_offset: int, timeout_s: float | None = None) -> int:
        raise KafkaError(ErrorCode.not_leader_or_follower)

    def end_offset_for_epoch(self, leader_epoch: int, current_leader_epoch: int) -> tuple[int, int]:
        raise KafkaError(ErrorCode.not_leader_or_follower)

    def state(self) -> PartitionStatus:
        raise KafkaError(ErrorCode.not_leader_or_follower)
