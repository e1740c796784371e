"""Memory for WAL objects, used again: pages touched for the first time cost more than the copy into them."""

import mmap
from collections import deque
from typing import Final, TypeAlias

__all__ = ["Arena", "ArenaPool", "new_arena"]

Arena: TypeAlias = mmap.mmap | bytearray

_FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)  # that is Linux's

_SPARE: Final = 2
"""So many free arenas keep the event loop from making any while others are being made for it."""


def new_arena(size_bytes: int) -> mmap.mmap:
    """Memory whose pages are there already. On Linux the interpreter's lock is not held meanwhile.

    It begins on a page, so that files can be written from it past the page cache (``File.fill``).
    """
    return mmap.mmap(-1, size_bytes, flags=_FLAGS)


class ArenaPool:
    """Arenas of one size. An arena goes back to work only when nobody reads it any more.

    Uploads, the cache of recent objects and readers hold views of an arena. One that was given back while
    a view is alive (a cancelled upload that a library's thread has not let go of, a slow reader) waits
    aside: were it filled again, that upload would store the new bytes under the old key.
    """

    def __init__(self, arena_size_bytes: int, *, free_max: int = 8) -> None:
        self.arena_size_bytes = arena_size_bytes
        self._free_max = free_max
        self._free: list[mmap.mmap] = []
        self._still_read: deque[mmap.mmap] = deque()

    @property
    def is_low(self) -> bool:
        """Whether those who need arenas will soon make them; one made elsewhere may be released to here."""
        spare = min(_SPARE, self._free_max)
        if len(self._free) < spare:
            self._look_aside()
        return len(self._free) < spare

    def acquire(self, size_bytes: int) -> mmap.mmap:
        """At least ``size_bytes`` bytes of any content."""
        if size_bytes > self.arena_size_bytes:
            return new_arena(size_bytes)
        if not self._free:
            self._look_aside()
        return self._free.pop() if self._free else new_arena(self.arena_size_bytes)

    def release(self, arena: Arena) -> None:
        """Give an arena back, whatever its size; the caller holds no view of it any more."""
        if isinstance(arena, bytearray) or len(arena) != self.arena_size_bytes:
            return
        if _is_exported(arena):
            self._still_read.append(arena)
            if len(self._still_read) > self._free_max:
                self._still_read.popleft()  # to the garbage collector, when its readers are done
        elif len(self._free) < self._free_max:
            self._free.append(arena)

    def _look_aside(self) -> None:
        for _ in range(len(self._still_read)):
            arena = self._still_read.popleft()
            if _is_exported(arena):
                self._still_read.append(arena)
            else:
                self._free.append(arena)


def _is_exported(arena: mmap.mmap) -> bool:
    """Whether a view of the memory is alive: Python refuses to change the size of such a map."""
    try:
        arena.resize(len(arena))
    except (BufferError, SystemError):  # the latter where no map can be resized: those are not used again
        return True
    return False
