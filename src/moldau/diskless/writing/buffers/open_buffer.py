"""The buffer that accepts batches now, and the time at which it is closed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.diskless.writing.buffers.buffer import LARGE_SHARE, ClosePolicy, CloseReason, WalBuffer
from moldau.diskless.writing.waiters import ObjectWaiters, WaitingProducer
from moldau.diskless.writing.wal_file import FilesInFlight
from moldau.diskless.writing.writer_memory import WriterMemory
from moldau.diskless.writing.writer_settings import WriterSettings
from moldau.protocol.partitions import PartitionKey
from moldau.records import BatchHeader

__all__ = ["BATCHES_MAX", "ClosedBuffer", "FillingBuffer", "HeldBytes"]

BATCHES_MAX: Final = 4_000
"""Maximum number of batches in an object. A coordinator decides on all of them in one iteration of its event
loop. Each batch takes 10 to 20 microseconds. The coordinator refuses requests of more than
``REQUEST_BATCHES_MAX`` batches."""


@dataclass(slots=True)
class HeldBytes:
    """Number of bytes of the batches whose producers have no response yet. These batches are in buffers or in
    files."""

    size_bytes: int = 0


class ClosedBuffer(NamedTuple):
    """A buffer that will become a file. Times are in seconds of the event loop."""

    buffer: WalBuffer[WaitingProducer]
    waiters: ObjectWaiters
    reason: CloseReason
    opened_s: float
    closed_s: float


class FillingBuffer:
    """Owns the current buffer, its waiting producers and its timer.

    ``on_closed`` gets each buffer with its batches, in the order in which the buffers were closed.
    """

    def __init__(
        self,
        settings: WriterSettings,
        memory: WriterMemory,
        held: HeldBytes,
        in_flight: FilesInFlight,
        is_slot_free: Callable[[], bool],
        on_closed: Callable[[ClosedBuffer], None],
    ) -> None:
        """``is_slot_free`` returns whether an upload could begin now."""
        self._memory = memory
        self._held = held
        self._in_flight = in_flight
        self._is_slot_free = is_slot_free
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._buffer: WalBuffer[WaitingProducer] | None = None
        self._waiters = ObjectWaiters(self._loop)
        self._opened_s = 0.0
        self._last_arrival_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.configure(settings)

    def configure(self, settings: WriterSettings) -> None:
        """Use other settings for the next buffer and all later buffers."""
        self._max_bytes = settings.buffer_max_bytes
        self.policy = ClosePolicy(settings.commit_interval_ms, settings.quiet_ms, settings.puts_per_second)

    def __len__(self) -> int:
        """Number of batches in the buffer."""
        return 0 if self._buffer is None else len(self._buffer.batches)

    def put(
        self,
        key: PartitionKey,
        records: memoryview,
        header: BatchHeader,
        timestamp_type: int,
        waiter: WaitingProducer,
    ) -> None:
        """Copy a batch into the buffer, or into the next buffer."""
        size, now = len(records), self._loop.time()
        max_bytes = self._max_bytes
        buffer = self._buffer
        if buffer is not None and (buffer.size_bytes + size > max_bytes or not buffer.fits(size)):
            self.close(CloseReason.FULL)
            buffer = None
        if buffer is None:
            buffer = self._buffer = WalBuffer(self._memory.pool, size)
            self._waiters = ObjectWaiters(self._loop)
            self._opened_s = now
        buffer.add(key, records, header, timestamp_type, waiter)
        self._held.size_bytes += size
        self._waiters.add(waiter)
        self._last_arrival_s = now
        if max_bytes - buffer.size_bytes < size or len(buffer.batches) == BATCHES_MAX:
            # Close the buffer now, because another batch of this size would not fit into it, or because it
            # has the maximum number of batches.
            self.close(CloseReason.FULL)
        elif self._timer is None or self._in_flight.are_all_in(len(buffer.batches)):
            self.consider()

    def consider(self) -> None:
        """Close the buffer if it is due, otherwise schedule the next check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        buffer = self._buffer
        if buffer is None:
            return
        decision = self.policy.decide(
            self._loop.time() * 1000,
            self._opened_s * 1000,
            self._last_arrival_s * 1000,
            self._is_slot_free(),
            large=self._is_large(buffer),
            complete=self._in_flight.are_all_in(len(buffer.batches)),
        )
        if decision.reason is not None:
            self.close(decision.reason)
        elif decision.look_again_ms is not None:
            self._timer = self._loop.call_at(decision.look_again_ms / 1000, self.consider)

    def close(self, reason: CloseReason) -> None:
        """Close the buffer, if there is one."""
        buffer = self._buffer
        if buffer is None:
            return
        self._buffer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._loop.time()
        self.policy.closed(now * 1000, large=self._is_large(buffer))
        self._on_closed(ClosedBuffer(buffer, self._waiters, reason, self._opened_s, now))

    def _is_large(self, buffer: WalBuffer[WaitingProducer]) -> bool:
        return buffer.size_bytes * LARGE_SHARE >= self._max_bytes
