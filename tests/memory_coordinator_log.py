"""A coordinator's log in memory."""

import asyncio
from collections.abc import Callable

from moldau.records.batch import iter_headers, parse_header, set_base_offset_and_epoch
from moldau.replication.appending.transactions import TransactionGuard


class MemoryLog:
    """A log in memory. The high watermark follows the end of the log, unless a test stops the high
    watermark."""

    def __init__(self, *, max_batch_bytes: int = 1_048_588) -> None:
        self.max_batch_bytes = max_batch_bytes
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.batches: list[bytes] = []
        self.held = False
        """While true, appends do not move the high watermark, and :meth:`commit` does."""
        self.failure: Exception | None = None
        """The exception that the next appends and reads raise."""
        self.refusal: Exception | None = None
        """The reason why the log accepts no appends now."""
        self._listeners: list[Callable[[int], None]] = []
        self._moved = asyncio.Event()

    def append(self, batch: bytearray) -> int:
        if self.failure is not None:
            raise self.failure
        base_offset = self.log_end_offset
        set_base_offset_and_epoch(batch, 0, base_offset, 0)
        self.batches.append(bytes(batch))
        self.log_end_offset = base_offset + parse_header(batch).last_offset_delta + 1
        if not self.held:
            self.commit(self.log_end_offset)
        return base_offset

    def check_writable(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def commit(self, offset: int | None = None) -> None:
        """Move the high watermark to ``offset``. The default is the end of the log."""
        self.high_watermark = self.log_end_offset if offset is None else offset
        self._moved.set()
        for listener in list(self._listeners):
            listener(self.high_watermark)

    async def until(self, offset: int) -> None:
        """Wait until all records before ``offset`` are committed."""
        while self.high_watermark < offset:
            self._moved.clear()
            await self._moved.wait()

    def truncate(self, offset: int) -> None:
        """Drop the batch at ``offset`` and all later batches. This can happen when the leader changes."""
        self.batches = [batch for batch in self.batches if parse_header(batch).base_offset < offset]
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)

    async def read(self, offset: int, max_bytes: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        found = bytearray()
        for batch in self.batches:
            header = parse_header(batch)
            if header.base_offset + header.last_offset_delta < offset:
                continue
            if found and len(found) + len(batch) > max_bytes:
                break
            found += batch
        assert sum(1 for _ in iter_headers(found)) or not found
        return bytes(found)

    def follow_watermark(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def guard(self, producer_id: int, producer_epoch: int) -> TransactionGuard | None:
        """This log has no producers, so it fences no producer and requires no guard."""
        return None

    def withdraw(self, producer_id: int, guard: TransactionGuard) -> None:
        """Do nothing, because this log issues no guards."""

    def check_transaction(
        self, producer_id: int, producer_epoch: int, guard: TransactionGuard | None
    ) -> None:
        """Accepts all batches."""

    def check_marker(self, producer_id: int, producer_epoch: int, version: int) -> None:
        """Accepts all markers."""
