"""Reusable memory for WAL objects. Memory is reused because the first use of a memory page costs more than
the copy into it."""

import mmap
from collections import deque
from typing import Final, TypeAlias

__all__ = ["Arena", "ArenaPool", "new_arena"]

Arena: TypeAlias = mmap.mmap | bytearray

# this flag exists only on Linux
_FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)

_SPARE: Final = 2
"""Number of free arenas that are kept. With this number, the event loop need not allocate an arena while a
worker thread allocates one."""


def new_arena(size_bytes: int) -> mmap.mmap:
    """New memory. On Linux its pages are allocated now, and the interpreter's lock is released during the
    allocation.

    The memory is aligned to a page, so that files can be written from it without the page cache
    (``File.fill``).
    """
    return mmap.mmap(-1, size_bytes, flags=_FLAGS)


class ArenaPool:
    """Arenas of the same size. An arena is reused only when no view of its memory is left.

    Uploads, the cache of recent objects and readers have views of an arena. An arena may be released while a
    view exists. For example, a cancelled upload may continue in a library's thread, or a reader may be slow.
    Such an arena is not reused. If it were filled again, that upload would store the new bytes under the old
    key.
    """

    def __init__(self, arena_size_bytes: int, *, free_max: int = 8) -> None:
        self.arena_size_bytes = arena_size_bytes
        self._free_max = free_max
        self._free: list[mmap.mmap] = []
        self._still_read: deque[mmap.mmap] = deque()

    @property
    def is_low(self) -> bool:
        """Whether the pool has so few free arenas that :meth:`acquire` will soon have to allocate. A caller
        may allocate arenas on another thread, and add them to the pool with :meth:`release`."""
        spare = min(_SPARE, self._free_max)
        if len(self._free) < spare:
            self._reclaim_unread()
        return len(self._free) < spare

    def acquire(self, size_bytes: int) -> mmap.mmap:
        """Return an arena with at least ``size_bytes`` bytes. Its content is undefined."""
        if size_bytes > self.arena_size_bytes:
            return new_arena(size_bytes)
        if not self._free:
            self._reclaim_unread()
        return self._free.pop() if self._free else new_arena(self.arena_size_bytes)

    def release(self, arena: Arena) -> None:
        """Return an arena to the pool. The caller must not have a view of the arena any more. An arena that
        has another size than the pool's arenas is not kept."""
        if isinstance(arena, bytearray) or len(arena) != self.arena_size_bytes:
            return
        if _is_exported(arena):
            self._still_read.append(arena)
            if len(self._still_read) > self._free_max:
                self._still_read.popleft()  # Python frees this arena when its readers are done.
        elif len(self._free) < self._free_max:
            self._free.append(arena)

    def _reclaim_unread(self) -> None:
        for _ in range(len(self._still_read)):
            arena = self._still_read.popleft()
            if _is_exported(arena):
                self._still_read.append(arena)
            else:
                self._free.append(arena)


def _is_exported(arena: mmap.mmap) -> bool:
    """Whether a view of the memory exists. Python then refuses to resize the map."""
    try:
        arena.resize(len(arena))
    # A SystemError means that this platform cannot resize maps. Then arenas are not reused.
    except (BufferError, SystemError):
        return True
    return False
