"""Memory for received data: one buffer that all connections of an event loop share, a pool of buffers for
frames that arrive in parts, and a limit on the bytes of requests.

The first write to a new page of memory costs more than the copy of the data, so buffers are reused.
"""

import asyncio
import mmap
import weakref
from collections.abc import Callable

SHARED_BUFFER_BYTES = 256 * 1024

_SMALLEST_CLASS_BYTES = 4 * 1024
_LAZY_BYTES = 1024 * 1024
"""Size in bytes. A buffer of this size or more is an anonymous memory map, which uses only address space
until data are written to it. Therefore a peer that sends a frame length of 100 MiB, and then no data, uses
almost no memory.
"""


class BufferPool:
    """Buffers for frames that have not arrived completely. Their sizes are powers of two."""

    def __init__(self, max_pooled_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_pooled_bytes = max_pooled_bytes
        self._free: dict[int, list[memoryview]] = {}
        self.pooled_bytes = 0

    def acquire(self, size: int) -> memoryview:
        """Return a writable view of at least ``size`` bytes with arbitrary content."""
        capacity = max(_SMALLEST_CLASS_BYTES, 1 << (size - 1).bit_length())
        free = self._free.get(capacity)
        if free:
            self.pooled_bytes -= capacity
            return free.pop()
        if capacity >= _LAZY_BYTES:
            return memoryview(mmap.mmap(-1, capacity))
        return memoryview(bytearray(capacity))

    def release(self, view: memoryview) -> None:
        """Return memory from :meth:`acquire` to the pool. No other view of this memory may exist any more."""
        capacity = len(view)
        if self.pooled_bytes + capacity <= self._max_pooled_bytes:
            self._free.setdefault(capacity, []).append(view)
            self.pooled_bytes += capacity


class ReceiveMemory:
    """Receive memory that the connections of one event loop share.

    The event loop fills the buffer that ``get_buffer`` returned, and calls ``buffer_updated`` before it
    serves another connection. Therefore one shared buffer is enough for all connections.
    """

    def __init__(self, shared_bytes: int = SHARED_BUFFER_BYTES) -> None:
        self.shared = memoryview(bytearray(shared_bytes))
        self.pool = BufferPool()

    @classmethod
    def of_running_loop(cls) -> "ReceiveMemory":
        """The memory of the running event loop. The first call creates it."""
        loop = asyncio.get_running_loop()
        memory = _memory_by_loop.get(loop)
        if memory is None:
            memory = _memory_by_loop[loop] = cls()
        return memory


_memory_by_loop: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ReceiveMemory]" = (
    weakref.WeakKeyDictionary()
)


class RequestMemory:
    """A limit on bytes that many connections share (``queued.max.request.bytes``).

    The limit is not strict. While fewer bytes than the limit are in use, a request of any size is admitted,
    so that a large request does not wait forever. Therefore the limit may be exceeded by at most one request
    of each connection.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        # As in Kafka, 0 and negative values mean no limit.
        self.limit_bytes = limit_bytes if limit_bytes is not None and limit_bytes > 0 else None
        self.used_bytes = 0
        self._waiters: dict[Callable[[], None], None] = {}

    def has_room(self) -> bool:
        return self.limit_bytes is None or self.used_bytes < self.limit_bytes

    def allocate(self, size: int) -> None:
        self.used_bytes += size

    def release(self, size: int) -> None:
        self.used_bytes -= size
        assert self.used_bytes >= 0
        if self._waiters and self.has_room():
            # The waiters are called in a separate callback, because a waiter processes requests, which may
            # release more memory.
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            asyncio.get_running_loop().call_soon(self._wake, waiter)

    def wait(self, waiter: Callable[[], None]) -> None:
        """Call ``waiter`` once, soon after memory is available again. Waiters are called in the order in
        which they arrived."""
        self._waiters[waiter] = None

    def forget(self, waiter: Callable[[], None]) -> None:
        """Stop waiting. Does nothing for a waiter that is not waiting."""
        self._waiters.pop(waiter, None)

    def _wake(self, waiter: Callable[[], None]) -> None:
        waiter()
        if self._waiters and self.has_room():
            following = next(iter(self._waiters))
            del self._waiters[following]
            asyncio.get_running_loop().call_soon(self._wake, following)
