"""The batches for the next object, and the decision when to close the buffer. Pure: times are arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from moldau.diskless.wal import footer_size_bytes, write_tail
from moldau.diskless.writing.buffers.arenas import Arena, ArenaPool
from moldau.protocol.partitions import PartitionKey
from moldau.records import BatchHeader

__all__ = ["BufferedBatch", "BuiltObject", "CloseDecision", "ClosePolicy", "CloseReason", "WalBuffer"]

T = TypeVar("T")

SMALL_SHARE = 4
"""If an object is smaller than the size of an arena divided by this number, the object gets memory of its own
size. Therefore a small amount of data uses little memory.
"""

STEADY_SHARE = 5
"""If batches arrive continuously, they wait at least for the interval divided by this number. This avoids
small objects."""


LARGE_SHARE = 4
"""An object counts as large if its size is at least the size limit divided by this number."""

QUIET_UPLOAD_SHARE = 12
UPLOADS_AVERAGED = 8


class CloseReason(Enum):
    """The reason why a buffer was closed."""

    FULL = "full"
    INTERVAL = "interval"
    EARLY = "early"
    FLUSH = "flush"


class CloseDecision(NamedTuple):
    """A decision: close now for this reason, or check again at this time. If the time is ``None``, check
    again when an upload slot becomes free."""

    reason: CloseReason | None
    look_again_ms: float | None = None


@dataclass(slots=True)
class ClosePolicy:
    """The decision when to close a buffer that is not full. Times are in milliseconds of one monotonic clock.

    A buffer must be closed ``interval_ms`` after its first batch. In two cases it is closed earlier. First,
    no batch has arrived during a *pause*, because producers with a limited number of requests in flight are
    waiting. Second, batches arrive continuously, and the budget allows closing at this rate permanently. Both
    cases need a free upload slot and a token of the budget of ``puts_per_second``; 0 disables early closing.
    Every object takes a token. Therefore there are early objects in addition to the regular objects only
    while the budget allows them. Large objects (``LARGE_SHARE``) need no token, because a GiB in large
    objects costs little more than a GiB in full objects. As long as no slot is free, closing has no
    advantage, so the buffer waits and grows.

    A large buffer that contains everything in flight need not wait, because producers with five requests in
    flight have sent all five.

    The length of a pause depends on the usual upload time of an object, because a batch that arrives slightly
    too late must wait for the next object.
    """

    interval_ms: float
    quiet_ms: float = 5.0
    puts_per_second: float = 8.0
    _tokens: float = 0.0
    _counted_ms: float | None = None
    _upload_ms: float = 0.0

    def decide(
        self,
        now_ms: float,
        opened_ms: float,
        last_arrival_ms: float,
        slot_free: bool,
        *,
        large: bool = False,
        complete: bool = False,
    ) -> CloseDecision:
        """``complete`` means that the buffer contains all batches that are usually in flight at a time."""
        if not slot_free:
            return CloseDecision(None)
        due_ms = opened_ms + self.interval_ms
        if now_ms >= due_ms:
            return CloseDecision(CloseReason.INTERVAL)
        if self.puts_per_second <= 0:
            return CloseDecision(None, due_ms)
        steady_ms = opened_ms + max(1000.0 / self.puts_per_second, self.interval_ms / STEADY_SHARE)
        early_ms = min(last_arrival_ms + self._quiet_needed_ms, steady_ms)
        if not large:
            early_ms = max(early_ms, self._token_at_ms(now_ms))
        elif complete:
            early_ms = now_ms
        if now_ms >= early_ms:
            return CloseDecision(CloseReason.EARLY)
        return CloseDecision(None, min(due_ms, early_ms))

    def closed(self, now_ms: float, *, large: bool = False) -> None:
        """Count a buffer that was closed, for any reason. Every buffer except a large one takes a token,
        because each object needs a PUT."""
        self._refill(now_ms)
        if not large:
            self._tokens = max(0.0, self._tokens - 1.0)

    def uploaded(self, took_ms: float) -> None:
        """Include an upload in the average. The object was stored ``took_ms`` after its buffer was closed."""
        self._upload_ms += (took_ms - self._upload_ms) / UPLOADS_AVERAGED

    @property
    def _quiet_needed_ms(self) -> float:
        return max(self.quiet_ms, min(self._upload_ms, self.interval_ms) / QUIET_UPLOAD_SHARE)

    def _token_at_ms(self, now_ms: float) -> float:
        self._refill(now_ms)
        if self._tokens >= 1.0:
            return now_ms
        # 0.01 ms is added, because otherwise rounding could schedule the next check at the current time,
        # again and again
        return now_ms + (1.0 - self._tokens) * 1000.0 / self.puts_per_second + 0.01

    def _refill(self, now_ms: float) -> None:
        burst = max(1.0, self.puts_per_second)
        if self._counted_ms is None:
            self._tokens = burst
        else:
            earned = (now_ms - self._counted_ms) * self.puts_per_second / 1000.0
            self._tokens = min(burst, self._tokens + max(0.0, earned))
        self._counted_ms = now_ms


class BufferedBatch(Generic[T]):
    """A batch in a buffer: its position, its header, and an object that the caller attached."""

    __slots__ = ("byte_offset", "header", "key", "owner", "position", "timestamp_type")

    def __init__(
        self, key: PartitionKey, position: int, header: BatchHeader, timestamp_type: int, owner: T
    ) -> None:
        self.key = key
        self.position = position
        """Position in the buffer, in order of arrival."""
        self.byte_offset = -1
        """Position in the object, once the object is built."""
        self.header = header
        self.timestamp_type = timestamp_type
        self.owner = owner


@dataclass(frozen=True, slots=True)
class BuiltObject(Generic[T]):
    """A whole object in ``arena[:size_bytes]``, and its batches in the order of its bytes."""

    arena: Arena
    size_bytes: int
    runs: Sequence[Sequence[BufferedBatch[T]]]
    """Batches by partition."""
    batches: Sequence[BufferedBatch[T]]


class WalBuffer(Generic[T]):
    """Copies each batch at once, and sorts the batches into an object at the end.

    A batch is copied when it arrives, because its memory belongs to the network. It is copied again into
    reused memory when the object is built. If the batches arrived in the order of the object, for example the
    batches of a single partition, the buffer itself becomes the object.
    """

    __slots__ = ("_arena", "_batches", "_pool", "size_bytes")

    def __init__(self, pool: ArenaPool, first_batch_bytes: int) -> None:
        self._pool = pool
        self._arena: Arena = pool.acquire(first_batch_bytes + footer_size_bytes(1, 1))
        self._batches: list[BufferedBatch[T]] = []
        self.size_bytes = 0

    @property
    def batches(self) -> Sequence[BufferedBatch[T]]:
        """The batches in order of arrival."""
        return self._batches

    def fits(self, size_bytes: int) -> bool:
        return self.size_bytes + size_bytes <= len(self._arena)

    def add(
        self, key: PartitionKey, records: memoryview, header: BatchHeader, timestamp_type: int, owner: T
    ) -> BufferedBatch[T]:
        """Copy a batch. There must be enough space for it, and it must match its header."""
        position = self.size_bytes
        end = position + len(records)
        assert end <= len(self._arena)
        assert len(records) == header[1] + 12
        self._arena[position:end] = records
        self.size_bytes = end
        batch = BufferedBatch(key, position, header, timestamp_type, owner)
        self._batches.append(batch)
        return batch

    def abandon(self) -> None:
        """Release the memory without building an object, or after :meth:`build` has failed."""
        self._pool.release(self._arena)

    def build(self, *, created_ms: int, broker_id: int) -> BuiltObject[T]:
        """Build the object. The buffer cannot be used any more afterwards."""
        by_partition: dict[PartitionKey, list[BufferedBatch[T]]] = {}
        for batch in self._batches:
            run = by_partition.get(batch.key)
            if run is None:
                by_partition[batch.key] = [batch]
            else:
                run.append(batch)
        # UUIDs are compared by their numbers, because comparing UUIDs runs Python code each time.
        keys = sorted(by_partition, key=lambda key: (key[0].int, key[1]))
        ordered = [batch for key in keys for batch in by_partition[key]]
        size = self.size_bytes + footer_size_bytes(len(keys), len(ordered))
        arena = self._arena = self._arranged(ordered, size)
        runs: list[tuple[UUID, int, int, Sequence[BatchHeader]]] = []
        for key in keys:
            run = by_partition[key]
            runs.append((key.topic_id, key.partition, run[0].byte_offset, [batch.header for batch in run]))
        with memoryview(arena) as target:
            end = write_tail(target, self.size_bytes, runs, created_ms=created_ms, broker_id=broker_id)
        assert end == size
        return BuiltObject(arena, size, [by_partition[key] for key in keys], ordered)

    def _arranged(self, ordered: Sequence[BufferedBatch[T]], size: int) -> Arena:
        """Return an arena that begins with the batches in this order and has space for ``size`` bytes."""
        is_small = size * SMALL_SHARE < self._pool.arena_size_bytes
        in_order = all(left.position < right.position for left, right in pairwise(ordered))
        if in_order and size <= len(self._arena) and not is_small:
            for batch in ordered:
                batch.byte_offset = batch.position
            return self._arena
        arena: Arena = bytearray(size) if is_small else self._pool.acquire(size)
        # views are used because an assignment from view to view copies the bytes only once
        source, target = memoryview(self._arena), memoryview(arena)
        offset = 0
        for batch in ordered:
            length = batch.header.size_bytes
            target[offset : offset + length] = source[batch.position : batch.position + length]
            batch.byte_offset = offset
            offset += length
        source.release()
        target.release()
        self._pool.release(self._arena)
        return arena
