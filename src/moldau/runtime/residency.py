"""Keeps what memory maps have shown from counting as this process's memory for ever.

Pages of a mapped file that were touched stay in the process's page table until the map goes. A broker that
streams a large log would look as large as the log, though all of it is the kernel's cache. Letting go of
the page table entries costs little, loses nothing, and views stay valid: a touch brings the page back.
"""

import mmap
from typing import Final

RESIDENT_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much may have been shown by all maps together before all of them let go."""


class Residency:
    """What the maps of a process have shown since they last let go."""

    def __init__(self, size_bytes_max: int = RESIDENT_SIZE_BYTES_MAX) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._maps: dict[int, mmap.mmap] = {}

    def shown(self, shown: mmap.mmap, size_bytes: int) -> None:
        """A view of so many bytes of a map was handed out."""
        self._maps[id(shown)] = shown
        self._size_bytes += size_bytes
        if self._size_bytes > self._size_bytes_max:
            self.let_go()

    def let_go(self) -> None:
        """Drop the page table entries of every map that was shown."""
        for each in self._maps.values():
            each.madvise(mmap.MADV_DONTNEED)
        self._maps.clear()
        self._size_bytes = 0


PROCESS: Final = Residency()
