"""Fakes for tests of the writer: a small coordinator in memory, batches to write, and virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    BatchToCommit,
    CommitFileCall,
    CommitFileResult,
    CommittedBatch,
    DeletedRecords,
    FindBatchesCall,
    FoundPartition,
    ListedOffset,
    OffsetToDelete,
    TimestampToList,
)
from moldau.diskless.writing.writer import DisklessWriter
from moldau.protocol.partitions import PartitionKey
from moldau.records import BatchHeader, Record, build_batch, parse_header
from moldau.runtime import Entropy, ErrorCode, KafkaError, Machine
from moldau.simulation.world.world import World

T = TypeVar("T")


def run_in_virtual_time(story: Callable[[Machine], Coroutine[Any, Any, T]], seed: int = 7) -> T:
    """Run a test on a simulated host, on which a time-out of minutes takes no real time."""
    with World(seed) as world:
        process = world.host("broker").start(story)
        assert process.main is not None
        result: T = world.run(asyncio.wait_for(process.main, 3_000))
        assert not world.errors()
        return result


async def until_room(writer: DisklessWriter) -> None:
    """Wait until the writer's buffer has room again. The network code also reads no requests of producers
    while the writer is full."""
    for _ in range(100_000):
        if not writer.is_full:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{writer.buffered_bytes} bytes stay in the buffer")


def topic(number: int) -> UUID:
    return UUID(int=number << 64 | 1)


def key(topic_number: int = 1, partition: int = 0) -> PartitionKey:
    return PartitionKey(topic(topic_number), partition)


def batch(
    value: bytes = b"x", *, count: int = 1, producer_id: int = -1, epoch: int = -1, sequence: int = -1
) -> tuple[memoryview, BatchHeader]:
    """A produced batch and its header."""
    records = [Record(offset, 1_000 + offset, None, value, ()) for offset in range(count)]
    content = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return memoryview(content), parse_header(content)


@dataclass
class PartitionState:
    next_offset: int = 0
    committed: list[tuple[int, str, BatchToCommit]] = field(default_factory=list)
    next_sequence: dict[int, int] = field(default_factory=dict)


class FakeCoordinator:
    """Assigns offsets like a real coordinator. A commit with the same key has no second effect, and sequences
    must be in order. Tests inject errors.

    A partition belongs to the coordinator ``partition_index % coordinator_count``.
    """

    def __init__(self, entropy: Entropy, *, coordinator_count: int = 1, latency_s: float = 0.0) -> None:
        self._entropy = entropy
        self._count = coordinator_count
        self._results: dict[tuple[int, str], CommitFileResult] = {}
        self.latency_s = latency_s
        self.partitions: dict[PartitionKey, PartitionState] = {}
        self.calls: list[tuple[int, CommitFileCall]] = []
        self.lose_request_chance = 0.0
        self.lose_answer_chance = 0.0
        self.refuse_with: ErrorCode | None = None
        self.rejected: set[PartitionKey] = set()
        self.unknown: set[PartitionKey] = set()
        self.is_away = False

    def coordinator_of(self, topic_id: UUID, partition_index: int) -> int:
        if PartitionKey(topic_id, partition_index) in self.unknown:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "no such topic")
        return partition_index % self._count

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        self.calls.append((coordinator_id, call))
        await asyncio.sleep(self._entropy.uniform(0, self.latency_s))
        if self.refuse_with is not None:
            raise KafkaError(self.refuse_with, "refused")
        if self.is_away or self._entropy.uniform(0, 1) < self.lose_request_chance:
            raise KafkaError(ErrorCode.coordinator_not_available, "away")
        known = self._results.get((coordinator_id, call.object_key))
        if known is None:
            known = CommitFileResult([self._commit(call.object_key, one) for one in call.batches])
            self._results[coordinator_id, call.object_key] = known
        await asyncio.sleep(self._entropy.uniform(0, self.latency_s))
        if self._entropy.uniform(0, 1) < self.lose_answer_chance:
            raise TimeoutError
        return known

    def _commit(self, object_key: str, one: BatchToCommit) -> CommittedBatch:
        partition = PartitionKey(one.topic_id, one.partition_index)
        if partition in self.rejected:
            return CommittedBatch(ErrorCode.policy_violation, message="rejected")
        state = self.partitions.setdefault(partition, PartitionState())
        if one.producer_id >= 0:
            expected = state.next_sequence.get(one.producer_id, 0)
            if one.base_sequence < expected:
                return CommittedBatch(ErrorCode.none, one.base_sequence, is_duplicate=True)
            if one.base_sequence > expected:
                return CommittedBatch(ErrorCode.out_of_order_sequence_number)
            state.next_sequence[one.producer_id] = one.last_sequence + 1
        base_offset = state.next_offset
        state.next_offset += one.last_offset_delta + 1
        state.committed.append((base_offset, object_key, one))
        return CommittedBatch(ErrorCode.none, base_offset, -1, 0)

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        raise NotImplementedError

    async def list_offsets(self, partitions: Sequence[TimestampToList]) -> Sequence[ListedOffset]:
        raise NotImplementedError

    async def delete_records(self, offsets: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]:
        raise NotImplementedError
