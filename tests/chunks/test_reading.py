"""Reads before the active chunk. The test sets the response of each inactive chunk."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from registered_chunks import chunk, partition

from moldau.chunks.calls import ChunkRead, ChunkRecords
from moldau.chunks.reading import ChunkedPart
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.replication.partition_interface import PartitionKey, ReadOutcome, ReadRequest
from moldau.runtime.errors import ErrorCode

KNOWN = ReadOutcome(high_watermark=30, last_stable_offset=30)
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
    """The active chunk. Its log on the disk begins at offset 20."""

    topic = "t"
    key = PartitionKey(UUID(int=1), 0)
    log = SimpleNamespace(local_log_start_offset=20, log_start_offset=0)

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def read(self, request: ReadRequest) -> ReadOutcome:
        self.offsets.append(request.offset)
        return ReadOutcome(size_bytes=7)


def read(registration: PartitionRegistration, **fields: Any) -> tuple[ReadOutcome, Chunks, Active]:
    chunks, active = Chunks(), Active()
    part: Any = ChunkedPart(active, lambda: registration, chunks)  # type: ignore[arg-type]

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
