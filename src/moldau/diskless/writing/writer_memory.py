"""The memory of a writer's objects, which the readers of the same broker share.

``writer.py`` applies the limit of this memory: a producer waits, or its batch is refused.
``server/subsystems/diskless/back_pressure.py`` computes the pauses of producers.
"""

from dataclasses import dataclass

from moldau.diskless.reading.recent_objects import RecentObjects
from moldau.diskless.wal import footer_size_bytes
from moldau.diskless.writing.buffers.arenas import Arena, ArenaPool, new_arena
from moldau.diskless.writing.own_commits import OwnCommits
from moldau.diskless.writing.writer_settings import WriterSettings
from moldau.runtime import Workers


class WriterMemory:
    """Arenas for new objects, and the objects that were just filled."""

    def __init__(self, settings: WriterSettings) -> None:
        self.recent = RecentObjects(settings.recent_bytes, self.release)
        """Objects of this broker from which its own cache gets batches, by key. They are included from their
        upload on, before their commit.
        """
        self._is_refilling = False
        self.configure(settings)

    def configure(self, settings: WriterSettings) -> None:
        """Use these settings for all new arenas. A changed ``recent_bytes`` has no effect."""
        # An arena has space for the data, and for the footer of 4,096 batches in 64 partitions.
        arena_bytes = settings.buffer_max_bytes + footer_size_bytes(64, 4096)
        # The number of free arenas is so large that no allocation is needed under full load. An allocation
        # takes ten times as long as filling an arena.
        in_flight = settings.max_buffered_bytes // settings.buffer_max_bytes + 2
        self.pool = ArenaPool(arena_bytes, free_max=min(64, in_flight))

    async def refill(self, workers: Workers) -> None:
        """Under full load, let a worker thread allocate the memory of the next buffers. Only one worker does
        this at a time."""
        if self._is_refilling:
            return
        self._is_refilling = True
        pool = self.pool
        try:
            while pool.is_low:
                pool.release(await workers.run(new_arena, pool.arena_size_bytes))
        finally:
            self._is_refilling = False

    @property
    def should_refill(self) -> bool:
        """Whether only a few arenas are left and no worker thread is allocating more."""
        return self.pool.is_low and not self._is_refilling

    def release(self, arena: Arena) -> None:
        """Release an arena. It may have been made with earlier settings, and have another size."""
        self.pool.release(arena)


@dataclass(frozen=True, slots=True)
class OwnObjects:
    """A broker's own objects: their memory, and how their batches get into the broker's cache."""

    memory: WriterMemory
    commits: OwnCommits | None = None
    """Called for committed batches before their producers get the response; ``None`` without a cache."""
