"""Segments, and a topic in memory that can behave in all ways of the real topic."""

import asyncio
from uuid import UUID

from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.manager import RemoteMetadataNotReadyError, RemoteMetadataUnknownOutcomeError
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from moldau.tiered.metadata.topic import EventWriter, TopicDescription, TopicOffsets, TopicRecords
from moldau.tiered.storage.storage_manager import LogSegmentData

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

ORDERS = TopicIdPartition(UUID(int=0xABCDEF << 90 | 77), "orders", 3)


def segment(
    number: int,
    start: int,
    end: int,
    *epochs: tuple[int, int],
    partition: TopicIdPartition = ORDERS,
    state: RemoteLogSegmentState = STARTED,
    size_bytes: int = 1000,
    txn_index_empty: bool = True,
    custom_metadata: bytes | None = None,
    at_ms: int = 1,
) -> RemoteLogSegmentMetadata:
    """A segment. Without ``epochs``, all its records belong to epoch 0."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId.of(partition, UUID(int=number)),
        start,
        end,
        max_timestamp_ms=1_700_000_000_000 + end,
        broker_id=1,
        event_timestamp_ms=at_ms,
        segment_size_bytes=size_bytes,
        leader_epochs=tuple(EpochStart(*each) for each in epochs or ((0, start),)),
        custom_metadata=custom_metadata,
        state=state,
        txn_index_empty=txn_index_empty,
    )


def event(
    of: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    *,
    custom_metadata: bytes | None = None,
    at_ms: int = 2,
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(of.id, at_ms, state, 1, custom_metadata)


def segment_data(log: bytes = b"log of the segment", *, aborted: bool = True) -> LogSegmentData:
    return LogSegmentData(
        log_segment=log,
        offset_index=b"offset-index",
        time_index=memoryview(b"time-index!"),
        transaction_index=b"txn" if aborted else None,
        producer_snapshot=b"",
        leader_epochs=b"0\n1\n0 0\n",
    )


class TopicInMemory:
    """A ``MetadataTopic``. Its log remains when a manager ends, and tests inject faults."""

    def __init__(self, partition_count: int = 4) -> None:
        self.topic_id = UUID(int=5)
        self.logs: dict[int, list[bytes]] = {index: [] for index in range(partition_count)}
        self.epoch = 0
        self.epochs: dict[int, list[int]] = {index: [] for index in range(partition_count)}
        self.starts = dict.fromkeys(range(partition_count), 0)
        self.reads: list[tuple[int, int]] = []
        self.writers: list[EventWriter] = []
        """Writers of the events about segments, in order."""
        self.refusals = 0
        """Number of next calls of ``ensure`` and ``offsets`` that fail."""
        self.lost_answers = 0
        """Number of appends that take effect, but whose answers are lost."""
        self.failure: Exception | None = None
        self.read_failure: Exception | None = None
        self.failed = asyncio.Event()
        """Whether a read has failed."""
        self._moved: dict[int, asyncio.Event] = {}

    def _refuse(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.refusals:
            self.refusals -= 1
            raise RemoteMetadataNotReadyError("not yet")

    async def ensure(self) -> TopicDescription:
        self._refuse()
        return TopicDescription(self.topic_id, len(self.logs))

    async def append(self, partition: int, value: bytes, writer: EventWriter | None = None) -> int:
        if writer is not None:
            self.writers.append(writer)
        offset = self.append_now(partition, value)
        await asyncio.sleep(0)
        if self.lost_answers:
            self.lost_answers -= 1
            raise RemoteMetadataUnknownOutcomeError("no answer")
        return offset

    def append_now(self, partition: int, value: bytes) -> int:
        """Append an event as another broker does."""
        self.logs[partition].append(value)
        self.epochs[partition].append(self.epoch)
        self._event(partition).set()
        return self.starts[partition] + len(self.logs[partition]) - 1

    async def read(self, partition: int, offset: int, max_bytes: int) -> TopicRecords:
        self.reads.append((partition, offset))
        await asyncio.sleep(0)
        if self.read_failure is not None:
            self.failed.set()
            raise self.read_failure
        start = self.starts[partition]
        values = self.logs[partition][offset - start : offset - start + 3]
        next_offset = offset + len(values)
        epoch = self.epochs[partition][next_offset - 1 - start] if values else -1
        return TopicRecords(
            [(offset + index, value) for index, value in enumerate(values)], next_offset, epoch
        )

    async def wait_beyond(self, partition: int, offset: int) -> None:
        while (await self.offsets(partition)).end_offset <= offset:
            moved = self._event(partition)
            moved.clear()
            await moved.wait()

    async def offsets(self, partition: int, epoch: int = -1) -> TopicOffsets:
        self._refuse()
        start = self.starts[partition]
        end = start + len(self.logs[partition])
        ends = [start + index + 1 for index, each in enumerate(self.epochs[partition]) if each == epoch]
        return TopicOffsets(start, end, end, max(ends, default=-1))

    def restarted(self) -> None:
        """Use this log on a new event loop."""
        self._moved.clear()
        self.reads.clear()

    def _event(self, partition: int) -> asyncio.Event:
        return self._moved.setdefault(partition, asyncio.Event())
