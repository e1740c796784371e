"""Blocks of memory that are reused as soon as no view of them is left.

The first access to a page that the system has just allocated costs many times as much as later accesses.
Therefore short-lived buffers of several megabytes get their memory from this module.
"""

import ctypes
import mmap
import threading
import weakref
from functools import cache
from typing import Final

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum bytes of unused memory that are kept."""


class RecycledMemory:
    """A store of blocks of whole memory pages. Several threads may use it."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept: dict[int, list[mmap.mmap]] = {}
        """Free blocks by size. Sizes are powers of two, so that a request is likely to find a fitting
        block.
        """
        # While a thread holds this lock, it may acquire the lock again, because a garbage collection in the
        # thread can remove a view.
        self._lock = threading.RLock()
        self.kept_bytes = 0

    def allocate(self, size_bytes: int) -> memoryview:
        """Return a writable view of undefined content, aligned to a page. When its last view is gone, its
        block can be used again."""
        block_bytes = max(mmap.PAGESIZE, 1 << max(0, size_bytes - 1).bit_length())
        with self._lock:
            kept = self._kept.get(block_bytes)
            block = kept.pop() if kept else None
            self.kept_bytes -= block_bytes if block is not None else 0
        if block is None:
            block = mmap.mmap(-1, block_bytes)
        # A memory map cannot report when its views are gone. This object exists as long as the views, and
        # reports its own end.
        shown = _array_type(block_bytes).from_buffer(block)
        weakref.finalize(shown, self._recycle, block).atexit = False
        return memoryview(shown).cast("B")[:size_bytes]

    def _recycle(self, block: mmap.mmap) -> None:
        with self._lock:
            if self.kept_bytes + len(block) <= self._kept_bytes_max:
                self._kept.setdefault(len(block), []).append(block)
                self.kept_bytes += len(block)


@cache
def _array_type(size_bytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * size_bytes


PROCESS: Final = RecycledMemory()
