"""Limits the memory that is counted for memory maps of files, and removes maps outside the event loop.

Used pages of a mapped file stay in the process's page table until the map is removed. Without this module, a
broker that reads a large log would seem to use as much memory as the log has bytes. But the kernel can free
this memory at any time. Removing the page table entries is cheap and safe, because views stay valid and an
access restores the page.

Removing a map takes time in proportion to its pages. If the file was deleted, the removal of its last map
also frees the file's disk space. Some file systems first write the changed pages to the disk. Therefore a map
that is no longer needed is *retired*. A thread removes it as soon as no view of it is left.
"""

import contextlib
import mmap
import threading
from typing import Final

RESIDENT_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum total size, in bytes, of the views that were created since the last removal. Above this size, the
page table entries of all recorded maps are removed. A removal runs on the event loop. If the page cache has
pages of 4 KiB, the removal takes up to 1 ms for each 16 MiB."""

_INLINE_SIZE_BYTES_MAX: Final = 1024 * 1024
"""Size in bytes. Maps up to this size are removed immediately, because this takes microseconds."""

_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 1.0


class Residency:
    """Records the memory maps of a process for which views were created. If these views together have too
    many bytes, this class removes the page table entries of the maps."""

    def __init__(self, size_bytes_max: int = RESIDENT_SIZE_BYTES_MAX) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._retired: list[mmap.mmap] = []
        self._changes = threading.Lock()
        self._is_unmapping = False

    def shown(self, shown: mmap.mmap, size_bytes: int) -> None:
        """Record that a view with ``size_bytes`` bytes of a memory map was created."""
        self._maps[id(shown)] = shown
        self._size_bytes += size_bytes
        if self._size_bytes > self._size_bytes_max:
            self.release_pages()

    def release_pages(self) -> None:
        """Remove the page table entries of every recorded map."""
        maps, self._maps = self._maps, {}
        self._size_bytes = 0
        # Other threads may record and retire maps during these calls.
        for each in list(maps.values()):
            # Another thread may have retired the map after this thread created a view of it.
            with contextlib.suppress(ValueError):
                each.madvise(mmap.MADV_DONTNEED)

    def retire(self, unused: mmap.mmap) -> None:
        """Remove a map in a thread, as soon as its last view is gone. The caller drops its own references."""
        self._maps.pop(id(unused), None)
        if len(unused) <= _INLINE_SIZE_BYTES_MAX:
            return
        with self._changes:
            self._retired.append(unused)
            if self._is_unmapping:
                return
            self._is_unmapping = True
        threading.Thread(target=self._unmap_retired, name="moldau-unmap", daemon=True).start()

    def _unmap_retired(self) -> None:
        """Remove all retired maps. A map that still has views is tried again later."""
        pause = threading.Event()
        retry_s = _RETRY_S_MIN
        while True:
            with self._changes:
                retired = list(self._retired)
                if not retired:
                    self._is_unmapping = False
                    return
            done = {id(each) for each in retired if _close(each)}
            with self._changes:
                self._retired = [each for each in self._retired if id(each) not in done]
            retry_s = _RETRY_S_MIN if done else min(2 * retry_s, _RETRY_S_MAX)
            if len(done) < len(retired):
                pause.wait(retry_s)


def _close(unused: mmap.mmap) -> bool:
    """Remove a map without holding Python's lock. Returns False while views of the map exist."""
    try:
        unused.close()
    except BufferError:
        return False
    return True


PROCESS: Final = Residency()
