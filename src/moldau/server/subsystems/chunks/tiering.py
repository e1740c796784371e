"""Inactive chunks of tiered partitions: their copies in the remote tier, and their removal from the brokers.

The leader of the active chunk copies the chunks in order, before the segments of its own log. Only the leader
writes the metadata of the tier. A broker that has the chunk uploads the segment itself. So the bytes of the
segment are sent over the network only once. If a chunk is completely in the tier and local retention no
longer keeps it, the chunk is removed from its brokers.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol
from uuid import UUID

from moldau.chunks.calls import ChunkSegment, SegmentCopy
from moldau.chunks.chunk_retention import retained_start
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.copied_end import copied_until
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from moldau.tiered.storage.storage_manager import (
    LogSegmentData,
    RemoteStorageError,
    RemoteStorageManager,
    check_custom_metadata,
)
from moldau.tiered.tasks.context import EarlierPart, RemoteTaskContext, TaskPartition
from moldau.tiered.tasks.segment_data import ClosedSegment, epochs_of, read_segment

logger = logging.getLogger(__name__)

_FINISHED: Final = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

Registration = Callable[[PartitionKey], Callable[[], PartitionRegistration | None]]


class SegmentStores(Protocol):
    """Brokers that store segments of their chunks in the tier. The methods raise ``KafkaError``."""

    def holders(self, chunk: ChunkRegistration, wanted: SegmentCopy) -> list[int]:
        """The brokers that have a chunk, in the order in which they are asked."""
        ...

    async def store_segment(self, broker_id: int, wanted: SegmentCopy) -> ChunkSegment: ...


class ChunkSegmentStore:
    """Describes the segments of this broker's chunks, and stores them in the remote tier."""

    def __init__(self, machine: Machine, store: ChunkStore, storage: RemoteStorageManager) -> None:
        self._machine = machine
        self._store = store
        self._storage = storage

    async def store_segment(self, topic: str, wanted: SegmentCopy) -> ChunkSegment:
        """Raises ``KafkaError``."""
        chunk = ChunkId(*wanted[:3])
        if chunk not in self._store:
            raise KafkaError(ErrorCode.kafka_storage_error, f"chunk {chunk.start_offset} is not here")
        log = await self._store.open(TopicPartition(topic, chunk.partition), chunk)
        closed = _segment_at(log, wanted.segment_offset)
        found = _described(log, closed)
        if not wanted.is_stored:
            return found
        partition = TopicIdPartition(chunk.topic_id, topic, chunk.partition)
        metadata = _metadata(partition, found, wanted)
        try:
            data = await self._read(log, closed)
            custom = await self._storage.copy_log_segment_data(metadata, data)
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{metadata.id}: {error}") from error
        except RemoteStorageError as error:
            raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
        return found._replace(custom_metadata=custom)

    async def _read(self, log: PartitionLog, closed: ClosedSegment) -> LogSegmentData:
        # The log may be closed while a worker reads it, because other chunks are read.
        log.segments.hold_files()
        try:
            return await self._machine.workers.run(read_segment, self._machine.disk, log, closed)
        finally:
            log.segments.release_files()


def _name_of(partition: ClassicPartition) -> TopicIdPartition:
    return TopicIdPartition(partition.key.topic_id, partition.topic, partition.key.partition)


def _segment_at(log: PartitionLog, offset: int) -> ClosedSegment:
    """The segment of a chunk that contains an offset. All segments of a chunk are closed."""
    if not log.local_log_start_offset <= offset < log.log_end_offset:
        raise KafkaError(ErrorCode.offset_out_of_range, f"offset {offset} is not in this copy of the chunk")
    index = log.segments.index_holding(offset)
    return ClosedSegment(log.segments.segments[index], log.segments.end_of(index))


def _described(log: PartitionLog, closed: ClosedSegment) -> ChunkSegment:
    segment = closed.segment
    return ChunkSegment(
        segment.base_offset,
        closed.next_offset - 1,
        segment.retention_timestamp_ms,
        segment.size_bytes,
        len(segment.transaction_index) > 0,
        [(each.epoch, each.start_offset) for each in epochs_of(log, closed)],
    )


def _epoch_at(segment: ChunkSegment, offset: int) -> int | None:
    return max((epoch for epoch, start in segment.leader_epochs if start <= offset), default=None)


def _metadata(
    partition: TopicIdPartition, segment: ChunkSegment, copy: SegmentCopy
) -> RemoteLogSegmentMetadata:
    """The metadata of a segment. The leader records these metadata, and the broker with the chunk stores the
    segment with the same metadata."""
    return RemoteLogSegmentMetadata(
        id=RemoteLogSegmentId.of(partition, copy.segment_id),
        start_offset=segment.base_offset,
        end_offset=segment.end_offset,
        max_timestamp_ms=segment.max_timestamp,
        broker_id=copy.leader_id,
        event_timestamp_ms=copy.event_timestamp,
        segment_size_bytes=segment.size_bytes,
        leader_epochs=[EpochStart(epoch, start) for epoch, start in segment.leader_epochs],
        txn_index_empty=not segment.has_aborted,
    )


class ChunkTiering(EarlierPart):
    """The inactive chunks of the partitions that this broker leads. Their offsets are between the end of the
    remote tier and the start of the partition's log."""

    def __init__(self, tiered: TieredSubsystem, stores: SegmentStores, registration: Registration) -> None:
        self._manager = tiered.manager
        self._stores = stores
        self._registration = registration
        # The copy tasks of partitions are made later, and get this context.
        self._manager.context = replace(self._manager.context, earlier=self)

    @property
    def _context(self) -> RemoteTaskContext:
        return self._manager.context

    def _registered(self, topic_id: UUID, partition: int) -> PartitionRegistration | None:
        return self._registration(PartitionKey(topic_id, partition))()

    def _chunks(self, partition: TaskPartition) -> tuple[ChunkRegistration, ...]:
        found = self._registered(partition.partition.topic_id, partition.partition.partition)
        if found is None:
            return ()
        return tuple(each for each in found.chunks if each.end_offset >= partition.log.log_start_offset)

    def _copied_until(self, name: TopicIdPartition, log: PartitionLog, chunk: ChunkRegistration) -> int:
        first = max(chunk.start_offset, log.log_start_offset)
        lineage = LogLineage(log.leader_epochs)
        return copied_until(self._context.metadata, name, lineage, first, chunk.end_offset + 1)

    # -- the EarlierPart ------------------------------------------------------------------------

    def start_offset(self, partition: TaskPartition) -> int:
        chunks, log = self._chunks(partition), partition.log
        return min([log.local_log_start_offset, *(each.start_offset for each in chunks)])

    def uncopied_bytes(self, partition: TaskPartition) -> int:
        name, log, total_bytes = partition.partition, partition.log, 0
        for chunk in self._chunks(partition):
            end_offset = self._copied_until(name, log, chunk)
            if end_offset > chunk.end_offset:
                continue
            if end_offset <= chunk.start_offset:
                total_bytes += chunk.size_bytes
                continue
            # The chunks are copied in order. So at most one chunk can be partly in the tier: the first chunk
            # that is not completely there.
            copied_bytes = sum(
                each.segment_size_bytes
                for each in self._context.metadata.list_remote_log_segments(name)
                if each.state is _FINISHED and chunk.start_offset <= each.start_offset < end_offset
            )
            total_bytes += max(0, chunk.size_bytes - copied_bytes)
        return total_bytes

    async def copy(self, partition: TaskPartition) -> bool:
        name, log = partition.partition, partition.log
        for chunk in self._chunks(partition):
            while (offset := self._copied_until(name, log, chunk)) <= chunk.end_offset:
                if not await self._copy_one(partition, chunk, offset):
                    return False
        return True

    async def _copy_one(self, partition: TaskPartition, chunk: ChunkRegistration, offset: int) -> bool:
        """Copy the segment that contains an offset. Returns False if a transaction is open in the segment."""
        name = partition.partition
        wanted = SegmentCopy(name.topic_id, name.partition, chunk.start_offset, offset)
        broker_id, segment = await self._find_segment(partition, chunk, wanted)
        if segment.end_offset >= partition.log.last_stable_offset(partition.replica.high_watermark):
            return False
        await self._context.keep_copy_quota(segment.size_bytes)
        copy = wanted._replace(
            segment_id=self._context.machine.entropy.uuid4(),
            leader_id=self._context.broker_id,
            event_timestamp=self._context.now_ms(),
        )
        self._context.being_copied.add(copy.segment_id)
        try:
            await self._store(name, broker_id, segment, copy)
        finally:
            self._context.being_copied.discard(copy.segment_id)
        return True

    async def _find_segment(
        self, partition: TaskPartition, chunk: ChunkRegistration, wanted: SegmentCopy
    ) -> tuple[int, ChunkSegment]:
        """Find a broker that can copy the segment with the wanted offset. Returns the id of the broker and
        the description of the segment. Raises ``KafkaError`` or ``RemoteStorageError``."""
        name, offset = partition.partition, wanted.segment_offset
        epoch = LogLineage(partition.log.leader_epochs).epoch_for_offset(offset)
        error: Exception = KafkaError(ErrorCode.kafka_storage_error, "no broker with the chunk is alive")
        for broker_id in self._stores.holders(chunk, wanted):
            try:
                segment = await self._stores.store_segment(broker_id, wanted)
                if _epoch_at(segment, offset) == epoch:
                    return broker_id, segment
                # Readers find a remote segment by the leader epochs of the leader's log. With other epochs,
                # they would not find this segment, and the leader would copy it again and again. The copy of
                # another broker may still have the offset: an earlier leader may have moved the start of the
                # log further on some replicas than on others.
                reason = f"{name}: the leader epoch at offset {offset} is another on broker {broker_id}"
                error = RemoteStorageError(reason, transient=False)
            except KafkaError as failure:
                error = failure
            logger.info(
                "broker %d cannot copy chunk %d of %s: %s", broker_id, wanted.start_offset, name, error
            )
        raise error

    async def _store(
        self, name: TopicIdPartition, broker_id: int, segment: ChunkSegment, copy: SegmentCopy
    ) -> None:
        context, metadata = self._context, _metadata(name, segment, copy)
        await context.metadata.add_remote_log_segment_metadata(metadata)
        context.meters.copy_request(name.topic)
        stored = await self._stores.store_segment(broker_id, copy)
        if stored._replace(custom_metadata=None) != segment:
            raise RemoteStorageError(f"{metadata.id}: broker {broker_id} has stored another segment")
        custom = stored.custom_metadata
        check_custom_metadata(str(metadata.id), custom, context.custom_metadata_max_bytes)
        await context.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                metadata.id, context.now_ms(), _FINISHED, context.broker_id, custom
            )
        )
        context.meters.copied(name.topic, segment.size_bytes)
        logger.info(
            "copied a segment of a chunk",
            extra={"segment": str(metadata.id), "start": segment.base_offset, "end": segment.end_offset},
        )

    # -- local retention ------------------------------------------------------------------------

    def local_start(self, partition: ClassicPartition, metadata: PartitionRegistration, now_ms: int) -> int:
        """Return the offset before which the brokers need no chunks, because local retention no longer keeps
        these chunks and the remote tier has all their records. The result is never below the start of the
        log."""
        log, name = partition.log, _name_of(partition)
        start_offset = log.log_start_offset
        if not self._context.metadata.is_ready(name):
            return start_offset
        kept = [each for each in metadata.chunks if each.end_offset >= start_offset]
        copied = []
        for chunk in kept:
            if self._copied_until(name, log, chunk) <= chunk.end_offset:
                break
            copied.append(chunk)
        uncopied = kept[len(copied) :]
        config = replace(
            log.config,
            cleanup_delete=True,
            retention_ms=log.config.local_retention_ms,
            retention_bytes=log.config.local_retention_bytes,
        )
        return retained_start(
            copied,
            config,
            log_start_offset=start_offset,
            active_size_bytes=log.size_bytes + sum(each.size_bytes for each in uncopied),
            active_since_ms=uncopied[0].start_timestamp_ms if uncopied else metadata.start_timestamp_ms,
            now_ms=now_ms,
        )
