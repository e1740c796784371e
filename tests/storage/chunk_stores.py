"""Stores of inactive chunks, for tests."""

import uuid
from typing import Any

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager

NAME = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=9)
FIRST = ChunkId(TOPIC_ID, 0, 0)


def append(box: Any, log: PartitionLog, count: int, epoch: int = 0) -> None:
    for number in range(count):
        batch = build_batch([Record(0, box.clock.time_ms + number, None, b"v", ())])
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), epoch)
        log.high_watermark = log.log_end_offset


async def with_one_chunk(box: Any, count: int) -> tuple[LogManager, ChunkStore]:
    """Logs in one folder, and a chunk with ``count`` records."""
    logs = LogManager(box.machine, ["/data"])
    await logs.start(lambda _: LogConfig())
    append(box, await get_or_create(logs, NAME, LogConfig(), TOPIC_ID), count)
    store = ChunkStore(box.machine, logs)
    await store.carve(NAME, FIRST, count)
    return logs, store


class Copied:
    """A fake of another broker, which has the files of a chunk."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self._content = content

    async def files(self) -> dict[str, int]:
        return {name: len(content) for name, content in self._content.items()}

    async def read(self, name: str, position: int) -> bytes:
        return self._content[name][position : position + 100]
