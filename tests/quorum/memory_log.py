"""A ``ReplicatedLog`` in memory with real batches. A test may delay its flushes."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from moldau.records.batch import iter_headers, set_base_offset_and_epoch
from moldau.storage.log.append_info import AppendInfo, ReadResult
from moldau.storage.snapshots.replicated_log import Divergence, LogPosition, OffsetValidation


class Stored(NamedTuple):
    base_offset: int
    last_offset: int
    epoch: int
    data: bytes


class MemorySnapshot:
    """The reader and the writer of the log in one class."""

    def __init__(self, log: "MemoryReplicatedLog", snapshot_id: LogPosition) -> None:
        self._log = log
        self.snapshot_id = snapshot_id
        self.content = bytearray()

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def append(self, content: bytes | Sequence[bytes]) -> None:
        self.content += content if isinstance(content, bytes | bytearray | memoryview) else b"".join(content)

    def append_control(self, key: bytes, value: bytes) -> None:
        pass

    async def settle(self) -> None:
        pass

    async def freeze(self) -> None:
        self._log.snapshots[self.snapshot_id] = self

    def abandon(self) -> None:
        pass

    def read(self, position: int, max_bytes: int) -> memoryview:
        return memoryview(bytes(self.content))[position : position + max_bytes]

    def batches(self) -> Sequence[memoryview]:
        return [memoryview(bytes(self.content))]

    def close(self) -> None:
        pass


class MemoryReplicatedLog:
    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.snapshots: dict[LogPosition, MemorySnapshot] = {}
        self.start_offset = 0
        self.flushed_offset = 0
        self.high_watermark = 0
        self.flushes = 0
        self.failure: Exception | None = None
        self.disk_is_free = asyncio.Event()
        self.disk_is_free.set()

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.start_offset

    @property
    def size_bytes(self) -> int:
        return sum(len(batch.data) for batch in self.batches)

    def snapshot_ids(self) -> Sequence[LogPosition]:
        return sorted(self.snapshots)

    @property
    def last_epoch(self) -> int:
        latest = self.latest_snapshot_id()
        return self.batches[-1].epoch if self.batches else latest.epoch if latest else 0

    def append_as_leader(self, batches: bytes, epoch: int) -> AppendInfo:
        if self.failure is not None:
            raise self.failure
        buffer, first_offset = bytearray(batches), self.end_offset
        for position, header in list(iter_headers(buffer)):
            set_base_offset_and_epoch(buffer, position, first_offset + header.base_offset, epoch)
        return self.append_as_follower(bytes(buffer))

    def append_as_follower(self, batches: bytes) -> AppendInfo:
        first_offset = self.end_offset
        for position, header in iter_headers(batches):
            assert header.base_offset == self.end_offset
            data = bytes(batches[position : position + header.size_bytes])
            self.batches.append(
                Stored(header.base_offset, header.last_offset, header.partition_leader_epoch, data)
            )
        return AppendInfo(first_offset, self.end_offset - 1, -1, self.start_offset, -1, len(batches))

    def read(self, offset: int, max_bytes: int, *, upper_bound_offset: int | None = None) -> ReadResult:
        bound = self.end_offset if upper_bound_offset is None else upper_bound_offset
        found = [b for b in self.batches if b.last_offset >= offset and b.last_offset < bound]
        views, size, end = [], 0, offset
        for batch in found:
            if views and size + len(batch.data) > max_bytes:
                break
            views.append(memoryview(batch.data))
            size += len(batch.data)
            end = batch.last_offset + 1
        return ReadResult(views, size, end, 0, 0)

    def initialize_epoch(self, epoch: int) -> None:
        pass

    def end_offset_for_epoch(self, epoch: int) -> LogPosition:
        for batch in reversed(self.batches):
            if batch.epoch <= epoch:
                return LogPosition(batch.last_offset + 1, batch.epoch)
        latest = self.latest_snapshot_id()
        return LogPosition(self.start_offset, latest.epoch if latest else 0)

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> OffsetValidation:
        return OffsetValidation(Divergence.VALID, LogPosition(offset, epoch))

    def update_high_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, offset)

    async def truncate_to(self, offset: int) -> None:
        assert offset >= self.high_watermark
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.flushed_offset = min(self.flushed_offset, offset)

    async def truncate_to_latest_snapshot(self) -> bool:
        latest = self.latest_snapshot_id()
        if latest is None or latest.offset <= self.end_offset:
            return False
        self.batches, self.start_offset, self.flushed_offset = [], latest.offset, latest.offset
        return True

    async def flush(self) -> int:
        self.flushes += 1
        end_offset = self.end_offset
        await asyncio.sleep(0)
        await self.disk_is_free.wait()
        self.flushed_offset = end_offset
        return end_offset

    def create_snapshot(self, snapshot_id: LogPosition, last_log_timestamp_ms: int) -> MemorySnapshot:
        assert snapshot_id.offset <= self.high_watermark
        return MemorySnapshot(self, snapshot_id)

    def store_snapshot(self, snapshot_id: LogPosition) -> MemorySnapshot:
        return MemorySnapshot(self, snapshot_id)

    def latest_snapshot_id(self) -> LogPosition | None:
        return max(self.snapshots, default=None)

    def earliest_snapshot_id(self) -> LogPosition | None:
        return min(self.snapshots, default=None)

    def open_snapshot(self, snapshot_id: LogPosition) -> MemorySnapshot | None:
        return self.snapshots.get(snapshot_id)

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool:
        self.start_offset = snapshot_id.offset
        self.batches = [batch for batch in self.batches if batch.last_offset >= snapshot_id.offset]
        self.snapshots = {key: value for key, value in self.snapshots.items() if key >= snapshot_id}
        return True

    def close(self) -> None:
        pass
