"""Memory that is used again as soon as nobody looks at it.

The first touch of a page that the system has just given costs many times what writing to it costs after
that. Whoever reads megabytes that are soon forgotten takes memory for them here.
"""

import ctypes
import mmap
import threading
import weakref
from functools import cache
from typing import Final

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of memory that nobody uses."""


class RecycledMemory:
    """Blocks of whole pages; threads may share it."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept: dict[int, list[mmap.mmap]] = {}
        """By size, which is a power of two: the next one who asks shall find that one fits."""
        # Entered again where a collection of garbage ends a view while the same thread is in here.
        self._lock = threading.RLock()
        self.kept_bytes = 0

    def take(self, size_bytes: int) -> memoryview:
        """A writable view that begins on a page, of any content; its block comes back with its last view."""
        block_bytes = max(mmap.PAGESIZE, 1 << max(0, size_bytes - 1).bit_length())
        with self._lock:
            kept = self._kept.get(block_bytes)
            block = kept.pop() if kept else None
            self.kept_bytes -= block_bytes if block is not None else 0
        if block is None:
            block = mmap.mmap(-1, block_bytes)
        # A memory map cannot tell that its views are gone; this can, and lives as long as they do.
        shown = _array_type(block_bytes).from_buffer(block)
        weakref.finalize(shown, self._take_back, block).atexit = False
        return memoryview(shown).cast("B")[:size_bytes]

    def _take_back(self, block: mmap.mmap) -> None:
        with self._lock:
            if self.kept_bytes + len(block) <= self._kept_bytes_max:
                self._kept.setdefault(len(block), []).append(block)
                self.kept_bytes += len(block)


@cache
def _array_type(size_bytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * size_bytes


PROCESS: Final = RecycledMemory()
