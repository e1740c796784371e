"""Loads records into memory before they are read, so that the event loop does not wait for the disk.

A log's files are mapped, so a read of bytes that are not in the page cache would wait inside the event loop,
together with all other connections. Threads load these bytes instead.

When the bytes are loaded, the system usually reads the bytes after them, too. The next reads of the same
reader then find their bytes in memory, but these bytes also come from the disk. Such reads are a *sequence*.
"""

import asyncio
import contextlib
from typing import Final

from moldau.runtime.files.disk import FileRange
from moldau.runtime.files.sendable import SENDABLE_SIZE_BYTES
from moldau.runtime.workers import Workers
from moldau.storage.log.partition_log import PartitionLog

THREAD_COUNT: Final = 4
"""Number of threads of a broker that load records. Each of them waits for one read of the disk at a time."""

SEQUENCES_MAX: Final = 64
"""Maximum number of sequences in one log. The oldest ones are forgotten."""

PAUSE_S_MAX: Final = 1.0
"""Maximum time, in seconds, between two reads of a sequence. After a longer time, the next read of these
offsets probably comes from another reader, and finds bytes in memory that were read before."""

LOADS_MAX: Final = 4
"""Maximum number of loads for one read. Usually these are the index and the records of a segment, and after
compaction those of the next segments."""


class DiskReads:
    """Loads the records of one log for its readers."""

    def __init__(self, log: PartitionLog, workers: Workers) -> None:
        self.log = log
        self._workers = workers
        self._next_offsets: dict[int, float] = {}
        """The offsets of the next reads of sequences, each with the time of the previous read."""

    def continues(self, offset: int) -> bool:
        """Whether a read from ``offset`` continues a sequence of reads from the disk."""
        read_s = self._next_offsets.pop(offset, None)
        return read_s is not None and asyncio.get_running_loop().time() - read_s <= PAUSE_S_MAX

    def note_read(self, size_bytes: int, next_offset: int) -> None:
        """Record a read of a sequence. A sequence ends with a small read, and at the end of the log."""
        if size_bytes < SENDABLE_SIZE_BYTES or self.log.segments.is_recent(next_offset):
            return
        self._next_offsets[next_offset] = asyncio.get_running_loop().time()
        if len(self._next_offsets) > SEQUENCES_MAX:
            del self._next_offsets[next(iter(self._next_offsets))]

    async def load(self, first: FileRange, offset: int, max_bytes: int) -> None:
        """Load all bytes that a read needs, beginning with ``first``, which
        :meth:`moldau.storage.log.reading.LogReader.cold_range` has found. If the disk fails, nothing is
        raised, because the read then finds the same error."""
        loaded: FileRange | None = None
        wanted: FileRange | None = first
        for _ in range(LOADS_MAX):
            # If a range seems to be missing after it was loaded, the memory is short, or the system is wrong.
            if wanted is None or wanted == loaded:
                return
            with contextlib.suppress(OSError):
                await self._workers.run(wanted.load)
            loaded, wanted = wanted, self.log.cold_range(offset, max_bytes)
