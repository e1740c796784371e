"""Memory for WAL objects, used again: pages touched for the first time cost more than the copy into them."""

from collections import deque

__all__ = ["ArenaPool"]


class ArenaPool:
    """Byte arrays of one size. An arena goes back to work only when nobody reads it any more.

    Uploads, the cache of recent objects and readers hold views of an arena. One that was given back while
    a view is alive (a cancelled upload that a library's thread has not let go of, a slow reader) waits
    aside: were it filled again, that upload would store the new bytes under the old key.
    """

    def __init__(self, arena_size_bytes: int, *, free_max: int = 8) -> None:
        self.arena_size_bytes = arena_size_bytes
        self._free_max = free_max
        self._free: list[bytearray] = []
        self._still_read: deque[bytearray] = deque()

    def acquire(self, size_bytes: int) -> bytearray:
        """At least ``size_bytes`` bytes of any content."""
        if size_bytes > self.arena_size_bytes:
            return bytearray(size_bytes)
        if not self._free:
            self._look_aside()
        return self._free.pop() if self._free else bytearray(self.arena_size_bytes)

    def release(self, arena: bytearray) -> None:
        """Give an arena back, whatever its size; the caller holds no view of it any more."""
        if len(arena) != self.arena_size_bytes:
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


def _is_exported(arena: bytearray) -> bool:
    """Whether a view of the array is alive: Python refuses to change the size of such an array."""
    try:
        last = arena.pop()
    except BufferError:
        return True
    arena.append(last)
    return False
