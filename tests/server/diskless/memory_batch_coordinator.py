"""A plug-in batch coordinator in memory, for ``diskless.batch.coordinator.class.name``."""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    BatchCoordinate,
    CommitFileCall,
    CommitFileResult,
    CommittedBatch,
    DeletedRecords,
    FindBatchesCall,
    FoundPartition,
    ListedOffset,
    OffsetToDelete,
    PruneCall,
    PrunedPartition,
    TimestampToList,
)
from moldau.runtime import ErrorCode, KafkaError, Machine

OWN_KEY = "diskless.batch.coordinator.colour"


class MemoryBatchCoordinator:
    """One coordinator for all partitions. It does not support sequences of producers, or deletions."""

    def __init__(self, properties: Mapping[str, str], machine: Machine) -> None:
        self.colour = properties[OWN_KEY]
        self._clock = machine.clock
        self._batches: dict[tuple[UUID, int], list[BatchCoordinate]] = {}
        self._answers: dict[str, CommitFileResult] = {}
        self._committed = asyncio.Event()

    def coordinator_of(self, topic_id: UUID, partition_index: int) -> int:
        return 0

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        if call.object_key not in self._answers:
            committed = []
            for one in call.batches:
                end = self._end(one.topic_id, one.partition_index)
                committed.append(CommittedBatch(ErrorCode.none, end, -1, 0))
                coordinate = BatchCoordinate(
                    *(one.topic_id, one.partition_index, end, end + one.last_offset_delta, call.object_key),
                    *(one.byte_offset, one.size_bytes, self._clock.now_ms(), one.max_timestamp_ms, 0),
                )
                self._batches.setdefault((one.topic_id, one.partition_index), []).append(coordinate)
            self._answers[call.object_key] = CommitFileResult(committed)
            self._committed.set()
            self._committed = asyncio.Event()
        return self._answers[call.object_key]

    def _end(self, topic_id: UUID, index: int) -> int:
        batches = self._batches.get((topic_id, index))
        return batches[-1].last_offset + 1 if batches else 0

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        found = self._find(call)
        if call.max_wait_ms and not any(partition.batches for partition in found):
            waiting = asyncio.ensure_future(self._committed.wait())
            await asyncio.wait([waiting], timeout=call.max_wait_ms / 1000)
            waiting.cancel()
            found = self._find(call)
        return found

    def _find(self, call: FindBatchesCall) -> list[FoundPartition]:
        return [
            FoundPartition(
                *(one.topic_id, one.partition_index, ErrorCode.none, None, 0, 0),
                self._end(one.topic_id, one.partition_index),
                batches=[
                    batch
                    for batch in self._batches.get((one.topic_id, one.partition_index), ())
                    if batch.last_offset >= one.offset
                ],
            )
            for one in call.partitions
        ]

    async def list_offsets(self, partitions: Sequence[TimestampToList]) -> Sequence[ListedOffset]:
        return [
            ListedOffset(
                topic_id,
                index,
                offset=0 if timestamp_ms == -2 else self._end(topic_id, index),
                log_start_offset=0,
                wal_start_offset=0,
            )
            for topic_id, index, timestamp_ms in partitions
        ]

    async def delete_records(self, offsets: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]:
        raise KafkaError(ErrorCode.policy_violation, "nothing is ever deleted here")

    async def prune(self, call: PruneCall) -> PrunedPartition:
        raise KafkaError(ErrorCode.policy_violation, "nothing is ever deleted here")
