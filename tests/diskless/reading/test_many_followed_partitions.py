"""A broker with thousands of diskless partitions starts: requests to the coordinator stay few and short."""

import asyncio
from collections.abc import Sequence

from reading_fakes import MemoryCoordinator, ReadingBroker, key
from writer_fakes import run_in_virtual_time

from moldau.coordinators.diskless.calls import FindBatchesCall, FoundPartition
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.runtime import Machine

PARTITIONS = 1_000
OPENED_A_TURN = 25


class CountingCoordinator(MemoryCoordinator):
    """Counts the partitions that requests name."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        self.rows += len(call.partitions)
        # As long as a call takes on a broker: some turns of the loop.
        for _ in range(4):
            await asyncio.sleep(0)
        return await super().find_batches(call)


async def start(machine: Machine) -> tuple[CountingCoordinator, int]:
    """Open the partitions as a broker does. Returns how many were known when the last one was opened."""
    broker = ReadingBroker(machine)
    broker.coordinator = coordinator = CountingCoordinator()
    broker.start()
    caches: list[PartitionCache] = []
    try:
        for number in range(PARTITIONS):
            coordinator.create(key(number))
            cache = PartitionCache(key(number), "t", 0, None)
            caches.append(cache)
            broker.cacher.add(cache)
            if number % OPENED_A_TURN == OPENED_A_TURN - 1:
                await asyncio.sleep(0)
        known_early = sum(cache.is_known for cache in caches)
        await asyncio.sleep(1)
        assert all(cache.is_known for cache in caches)
    finally:
        await broker.stop()
    return coordinator, known_early


def test_a_start_with_many_partitions_needs_few_requests() -> None:
    coordinator, known_early = run_in_virtual_time(start)
    assert known_early, "partitions are known while others are opened"
    assert coordinator.rows < 12 * PARTITIONS, "a request for each addition does not name all partitions"
