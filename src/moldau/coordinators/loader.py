"""Brings a shard to the state of its log: restore, then replay, a bounded chunk at a time."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from moldau.coordinators.effects import BatchKind
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.shard import RecordCodec, Shard
from moldau.records.batch import BatchHeader, iter_headers
from moldau.records.control import EndTransactionMarker, parse_control_record
from moldau.records.record import iter_records
from moldau.runtime import ErrorCode, KafkaError

R = TypeVar("R")

CHUNK_BYTES: Final = 1 << 20
RECORDS_PER_TURN: Final = 1000
"""After so many records the loop gets a turn: loading must not hold up the node's other requests."""


class ShardLoader(Generic[R]):
    """Replays the log from ``offset`` up to its end, including what is not committed yet.

    A leader's whole log will be committed (or this node stops leading), and decisions must build on
    all of it; readers wait for the high watermark instead.
    """

    def __init__(
        self,
        shard: Shard[R],
        codec: RecordCodec[R],
        log: CoordinatorLog,
        on_record: Callable[[int, R], None] | None = None,
    ) -> None:
        self._shard = shard
        self._codec = codec
        self._log = log
        self._on_record = on_record
        self._since_turn = 0
        self.records_replayed = 0

    async def run(self, offset: int, after_chunk: Callable[[], None] | None = None) -> int:
        """Replay from ``offset``; return the offset after the last record replayed."""
        while offset < self._log.log_end_offset:
            chunk = memoryview(await self._log.read(offset, CHUNK_BYTES))
            reached = offset
            for position, header in iter_headers(chunk):
                batch = chunk[position : position + header.size_bytes]
                self._replay(header, batch, offset)
                reached = max(reached, header.last_offset + 1)
                if self._since_turn >= RECORDS_PER_TURN:
                    self._since_turn = 0
                    await asyncio.sleep(0)
            if reached == offset:
                raise KafkaError(ErrorCode.kafka_storage_error, f"No batch could be read at offset {offset}.")
            offset = reached
            if after_chunk is not None:
                after_chunk()
        return offset

    def _replay(self, header: BatchHeader, batch: memoryview, from_offset: int) -> None:
        if header.is_control:
            self._replay_marker(header, batch)
            return
        kind = BatchKind(header.producer_id, header.producer_epoch, header.is_transactional)
        shard, decode, on_record = self._shard, self._codec.decode, self._on_record
        for entry in iter_records(batch):
            self._since_turn += 1
            if entry.offset < from_offset:
                continue
            record = decode(entry.key, entry.value)
            if record is None:
                continue
            shard.replay(entry.offset, record, kind)
            self.records_replayed += 1
            if on_record is not None:
                on_record(entry.offset, record)

    def _replay_marker(self, header: BatchHeader, batch: memoryview) -> None:
        for entry in iter_records(batch):
            marker = parse_control_record(entry)
            if isinstance(marker, EndTransactionMarker):
                self._shard.replay_marker(header.producer_id, header.producer_epoch, marker.committed)
