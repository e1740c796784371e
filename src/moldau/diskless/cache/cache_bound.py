"""Keeps all local segments of diskless partitions within the broker's bound: the oldest go first."""

import heapq
import logging
from collections.abc import Iterable
from typing import Final

from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.metrics import Meters
from moldau.runtime import KafkaError, Machine

logger = logging.getLogger(__name__)

_CHECK_BYTES_MIN: Final = 1024 * 1024


class CacheBound:
    """Counts what is appended and, now and then, drops segments until the bound holds again.

    The caches together may exceed it by what is appended between two checks (1/64 of the bound).
    """

    def __init__(self, machine: Machine, max_bytes: int, meters: Meters) -> None:
        self._machine = machine
        self._max_bytes = max_bytes
        self._check_every_bytes = min(max(_CHECK_BYTES_MIN, max_bytes // 64), max(1, max_bytes // 2))
        self._unchecked_bytes = 0
        scope = meters.scoped("moldau.diskless", "Cache")
        self._evicted = scope.counter("EvictedBytesPerSec", "Bytes of local segments dropped for room.")

    @staticmethod
    def segment_bytes(max_bytes: int) -> int:
        """How large a segment may be so that dropping one is a small step."""
        return max(1024 * 1024, min(64 * 1024 * 1024, max_bytes // 16))

    def appended(self, size_bytes: int) -> bool:
        """Count an append; true when it is time for :meth:`enforce`."""
        self._unchecked_bytes += size_bytes
        return self._unchecked_bytes >= self._check_every_bytes

    def enforce(self, caches: Iterable[PartitionCache]) -> list[str]:
        """Drop the oldest segments of all until what is left fits; returns files for :meth:`remove`."""
        self._unchecked_bytes = 0
        return self._evict([cache for cache in caches if cache.is_usable])

    async def remove(self, paths: list[str]) -> None:
        """Free the disk of files that were taken out of the caches."""
        try:
            await self._machine.workers.run(self._remove_all, paths)
        except OSError as error:
            logger.error("cannot remove %s: %s", error.filename, error.strerror or error)

    def _remove_all(self, paths: list[str]) -> None:
        for path in paths:
            self._machine.disk.remove(path)

    def _evict(self, caches: list[PartitionCache]) -> list[str]:
        used_bytes = sum(cache.log.size_bytes for cache in caches)
        if used_bytes <= self._max_bytes:
            return []
        paths: list[str] = []
        by_age = [(_age(cache), order) for order, cache in enumerate(caches) if cache.log.size_bytes]
        heapq.heapify(by_age)
        while used_bytes > self._max_bytes and by_age:
            _, order = heapq.heappop(by_age)
            cache = caches[order]
            before = cache.log.size_bytes
            try:
                paths += cache.evict_first_segment()
            except KafkaError as error:
                logger.error("cannot shorten the cache of %s: %s", cache.log.directory, error)
                continue
            freed = before - cache.log.size_bytes
            used_bytes -= freed
            self._evicted.value += freed
            if freed and cache.log.size_bytes:
                heapq.heappush(by_age, (_age(cache), order))
        return paths


def _age(cache: PartitionCache) -> tuple[int, int]:
    first = cache.log.segments.segments[0]
    return first.created_ms, first.base_offset
