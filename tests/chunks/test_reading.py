"""Reads before the active chunk. The test sets the response of each inactive chunk."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from registered_chunks import chunk, partition

from moldau.chunks.calls import ChunkRead, ChunkRecords, ChunkSearch
from moldau.chunks.reading import ChunkedPart
from moldau.chunks.redirects import REMEMBERED_MAX, ChunkRedirects
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.metrics.meters import Counter
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import FoundOffset, ReadOutcome, ReadRequest
from moldau.runtime.errors import ErrorCode

KNOWN = ReadOutcome(high_watermark=30, last_stable_offset=30)
BROKERS = PersistentMap(
    {
        each: BrokerRegistration(
            broker_id=each,
            epoch=each,
            incarnation_id=UUID(int=each),
            endpoints=(),
            fenced=each == 5,
            rack="b" if each == 4 else "a",
        )
        for each in range(1, 6)
    }
)
"""Brokers 1 to 5. Broker 5 is fenced, and broker 4 is in another rack."""
MIN_BYTES = 1000
FIRST, SECOND = chunk(0, 9, 1), chunk(10, 19, 1)


class Chunks:
    """Inactive chunks. Each contains one batch of 100 bytes."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []

    async def read(self, topic: str, chunk: ChunkRegistration, wanted: ChunkRead) -> ChunkRecords:
        self.reads.append((chunk.start_offset, wanted.fetch_offset))
        if wanted.max_bytes < 100 and not wanted.min_one_batch:
            return ChunkRecords((), 0, wanted.fetch_offset)
        return ChunkRecords([bytes(100)], 100, chunk.end_offset + 1)


class Active:
    """The active chunk, led by broker 1. Its log on the disk begins at offset 20."""

    topic = "t"
    is_leader = True
    key = PartitionKey(UUID(int=1), 0)
    log = SimpleNamespace(local_log_start_offset=20, log_start_offset=0)

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def read(self, request: ReadRequest) -> ReadOutcome:
        self.offsets.append(request.offset)
        return ReadOutcome(size_bytes=7)


def read(registration: PartitionRegistration, **fields: Any) -> tuple[ReadOutcome, Chunks, Active]:
    chunks, active = Chunks(), Active()
    redirects = ChunkRedirects(1, lambda: BROKERS, Counter(), MIN_BYTES)
    part: Any = ChunkedPart(active, lambda: registration, chunks, redirects)  # type: ignore[arg-type]

    async def run() -> ReadOutcome:
        outcome: ReadOutcome = await part.read(ReadRequest(**fields), KNOWN)
        return outcome

    return asyncio.run(run()), chunks, active


def test_a_batch_that_does_not_fit_is_not_skipped() -> None:
    for registration in (partition(FIRST), partition(FIRST, SECOND)):
        found, chunks, active = read(registration, offset=3, max_bytes=99, min_one_batch=False)
        assert (found.error, found.size_bytes) == (ErrorCode.none, 0)
        assert chunks.reads == [(0, 3)]
        assert active.offsets == []


def test_a_first_batch_may_be_larger_than_the_limit() -> None:
    found, _, _ = read(partition(FIRST, SECOND), offset=3, max_bytes=99, min_one_batch=True)
    assert found.size_bytes == 100


def test_an_offset_that_is_in_no_chunk_any_more_is_out_of_range() -> None:
    found, chunks, active = read(replace(partition(FIRST, SECOND), chunks=()), offset=3, max_bytes=99)
    assert found.error is ErrorCode.offset_out_of_range
    assert (chunks.reads, active.offsets) == ([], [])


def large(start: int, end: int, *isr: int) -> ChunkRegistration:
    """A chunk that is so large that consumers are sent to its brokers."""
    return replace(chunk(start, end, *isr), size_bytes=MIN_BYTES)


def test_a_consumer_with_a_rack_is_sent_once_to_a_broker_of_the_chunk() -> None:
    registration, memory = partition(large(0, 9, 2), large(10, 19, 3)), dict[str, Any]()
    for offset, target in ((0, 2), (0, -1), (5, -1), (10, 3), (10, -1)):
        found, chunks, _ = read(registration, offset=offset, max_bytes=99, client_rack="a", memory=memory)
        assert found.preferred_read_replica == target
        assert bool(chunks.reads) == (target < 0), "the leader reads the chunk itself"


def test_consumers_without_a_rack_and_consumers_of_small_chunks_stay() -> None:
    for registration, memory in ((partition(large(0, 9, 2)), None), (partition(chunk(0, 9, 2)), {})):
        found, chunks, _ = read(registration, offset=0, max_bytes=99, client_rack="a", memory=memory)
        assert (found.preferred_read_replica, len(chunks.reads)) == (-1, 1)


def test_brokers_of_the_rack_come_first_and_fenced_brokers_are_not_chosen() -> None:
    redirects, key = ChunkRedirects(9, lambda: BROKERS, Counter(), MIN_BYTES), PartitionKey(UUID(int=1), 0)
    found = {
        (rack, redirects.target(key, large(start, start + 9, *isr), rack, {}))
        for start in range(0, 400, 10)
        for rack, isr in (("a", (2, 3, 4, 5)), ("b", (2, 3, 4, 5)), ("c", (2, 3, 5)))
    }
    assert found == {("a", 2), ("a", 3), ("b", 4), ("c", 2), ("c", 3)}
    assert redirects.target(key, large(0, 9, 5), "a", {}) == -1
    assert (
        ChunkRedirects(4, lambda: BROKERS, Counter(), MIN_BYTES).target(key, large(0, 9, 2, 4), "b", {}) == -1
    )


def test_a_connection_remembers_a_limited_number_of_chunks() -> None:
    redirects, key, memory = (
        ChunkRedirects(1, lambda: BROKERS, Counter(), MIN_BYTES),
        PartitionKey(UUID(int=1), 0),
        dict[str, Any](),
    )
    for start in range(REMEMBERED_MAX + 5):
        assert redirects.target(key, large(start, start, 2), "a", memory) == 2
    assert [len(each) for each in memory.values()] == [REMEMBERED_MAX]


class Timestamps:
    """Inactive chunks whose records have the timestamps of this table, by the offsets of the records."""

    def __init__(self, timestamps: dict[int, int]) -> None:
        self._timestamps = timestamps
        self.searched: list[int] = []

    async def find(self, topic: str, chunk: ChunkRegistration, wanted: ChunkSearch, _: Any) -> FoundOffset:
        self.searched.append(chunk.start_offset)
        for offset in range(wanted.from_offset, chunk.end_offset + 1):
            if self._timestamps.get(offset, 0) >= wanted.timestamp:
                return FoundOffset(offset, self._timestamps[offset])
        return FoundOffset()


@pytest.mark.parametrize(("log_start_offset", "expected"), [(0, 4), (5, 15), (10, 15), (16, None)])
def test_the_largest_timestamp_is_looked_for_after_the_deleted_records(
    log_start_offset: int, expected: int | None
) -> None:
    """The first chunk is still there after the deletion of its record with the largest timestamp."""
    chunks = replace(FIRST, max_timestamp_ms=900), replace(SECOND, max_timestamp_ms=500)
    active: Any = Active()
    active.log = SimpleNamespace(log_start_offset=log_start_offset)
    reads: Any = Timestamps({4: 900, 15: 500})
    part = ChunkedPart(active, lambda: partition(*chunks), reads, cast(Any, None))
    found = asyncio.run(part.find_max_timestamp(100, 30, cast(Any, None)))
    assert (None if found is None else found.offset) == expected


@pytest.mark.parametrize(
    ("timestamp_ms", "expected", "searched"),
    [(150, 15, [10]), (100, 5, [0]), (250, 25, [20]), (301, None, []), (0, 0, [0])],
)
def test_only_the_chunk_with_the_time_is_searched(
    timestamp_ms: int, expected: int | None, searched: list[int]
) -> None:
    """The metadata have the largest timestamp of each chunk, so no other broker has to be asked."""
    chunks = [replace(chunk(start, start + 9, 1), max_timestamp_ms=start * 10 + 100) for start in (0, 10, 20)]
    active: Any = Active()
    reads: Any = Timestamps({5: 100, 15: 200, 25: 300})
    reads._timestamps |= {0: 10}
    part = ChunkedPart(active, lambda: partition(*chunks), reads, cast(Any, None))
    found = asyncio.run(part.find_timestamp(timestamp_ms, 30, cast(Any, None)))
    assert (None if found is None else found.offset) == expected
    assert reads.searched == searched
