"""Keeps the total size of diskless partitions' local segments within the broker's limit. The oldest
segments are removed first.
"""

import asyncio
import heapq
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.metrics import Meters
from moldau.runtime import KafkaError, Machine

logger = logging.getLogger(__name__)

_CHECK_BYTES_MIN: Final = 1024 * 1024
_CACHES_A_TURN: Final = 1_000
"""Number of caches whose sizes are added up in one iteration of the event loop. This takes a millisecond."""


class CacheBound:
    """Counts appended bytes. At regular intervals, it drops segments until the total size is within the limit
    again.

    The caches together may exceed the limit by the bytes that are appended between two checks (1/64 of a
    large limit). They may also exceed it while segments are dropped.
    """

    def __init__(self, machine: Machine, max_bytes: int, meters: Meters) -> None:
        self._machine = machine
        self._max_bytes = max_bytes
        self._check_every_bytes = min(max(_CHECK_BYTES_MIN, max_bytes // 64), max(1, max_bytes // 2))
        self._unchecked_bytes = 0
        scope = meters.scoped("moldau.diskless", "Cache")
        self._evicted = scope.counter(
            "EvictedBytesPerSec", "Bytes of local segments that were deleted to free disk space."
        )

    @staticmethod
    def segment_bytes(max_bytes: int) -> int:
        """Maximum size of a segment. Segments are small, so that only few records leave the cache when a
        segment is removed."""
        return max(1024 * 1024, min(64 * 1024 * 1024, max_bytes // 16))

    def appended(self, size_bytes: int) -> bool:
        """Count an append. Returns whether :meth:`enforce` must be called now."""
        self._unchecked_bytes += size_bytes
        return self._unchecked_bytes >= self._check_every_bytes

    async def enforce(self, caches: Sequence[PartitionCache]) -> None:
        """Drop the oldest segments of all caches until the total size is within the limit, and free their
        disk space. Only one call runs at a time.

        Worker threads rename and remove the files. The sizes of a thousand caches are added up in one
        iteration of the event loop.
        """
        self._unchecked_bytes = 0
        usable = [cache for cache in caches if cache.is_usable]
        used_bytes = 0
        for group in _groups(usable):
            used_bytes += sum(cache.log.size_bytes for cache in group)
            await asyncio.sleep(0)
        if used_bytes > self._max_bytes:
            await self._evict(usable, used_bytes - self._max_bytes)

    async def _evict(self, caches: Sequence[PartitionCache], excess_bytes: int) -> None:
        by_age: list[tuple[tuple[int, int], int]] = []
        for group in _groups(caches):
            start = len(by_age)
            by_age += [(_age(cache), start + order) for order, cache in enumerate(group)]
            await asyncio.sleep(0)
        heapq.heapify(by_age)
        paths: list[str] = []
        try:
            while excess_bytes > 0 and by_age:
                _, order = heapq.heappop(by_age)
                cache = caches[order]
                if not (cache.is_usable and cache.log.size_bytes):
                    continue
                freed = cache.first_segment_bytes
                try:
                    removed = await cache.evict_first_segment()
                except KafkaError as error:
                    logger.error("cannot shorten the cache of %s: %s", cache.log.directory, error)
                    continue
                if not removed:
                    continue
                paths += removed
                excess_bytes -= freed
                self._evicted.value += freed
                if cache.is_usable and cache.log.size_bytes:
                    heapq.heappush(by_age, (_age(cache), order))
        finally:
            await self._remove(paths)

    async def _remove(self, paths: list[str]) -> None:
        """Free the disk space of files that were removed from the caches."""
        try:
            await self._machine.workers.run(self._remove_all, paths)
        except OSError as error:
            logger.error("cannot remove %s: %s", error.filename, error.strerror or error)

    def _remove_all(self, paths: list[str]) -> None:
        for path in paths:
            self._machine.disk.remove(path)


def _groups(caches: Sequence[PartitionCache]) -> Iterator[Sequence[PartitionCache]]:
    return (caches[start : start + _CACHES_A_TURN] for start in range(0, len(caches), _CACHES_A_TURN))


def _age(cache: PartitionCache) -> tuple[int, int]:
    first = cache.log.segments.segments[0]
    return first.created_ms, first.base_offset
