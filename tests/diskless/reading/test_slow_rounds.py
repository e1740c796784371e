"""A round of reads that takes long ends without an effect on later rounds of the same partitions."""

import asyncio

from reading_fakes import ReadingBroker, key
from writer_fakes import run_in_virtual_time

from moldau.objects import FaultyStorage
from moldau.runtime import Machine

SLOW, QUICK = key(1, 0), key(1, 1)


class UnequalStorage(FaultyStorage):
    """A store in which each object has its own delay."""

    delays_s: dict[str, float]

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        await asyncio.sleep(self.delays_s.get(key, 0))
        return await super().fetch(key, offset, size)


def test_the_end_of_a_slow_round_does_not_end_a_later_round() -> None:
    async def story(machine: Machine) -> None:
        broker = ReadingBroker(machine)
        broker.storage = storage = UnequalStorage(broker.memory, machine.entropy)
        storage.delays_s = {"wal/000001": 5, "wal/000003": 10}
        broker.start()
        for one in (SLOW, QUICK):
            broker.coordinator.create(one)
        slow, quick = broker.open(SLOW), broker.open(QUICK)
        await asyncio.sleep(1)
        # The lane finds both batches with one request, because it gets no response to earlier requests.
        broker.coordinator.is_away = True
        await broker.commit((SLOW, [b"slow"]))
        await broker.commit((QUICK, [b"quick"]))
        broker.coordinator.is_away = False
        await broker.until_cached(quick, 1)
        assert broker.rounds() == 1
        await asyncio.sleep(0.5)
        await broker.commit((QUICK, [b"read in a later round"]))
        await broker.until_cached(slow, 1)
        await asyncio.sleep(1)
        assert quick.cache.local_end_offset == 1
        assert broker.cacher.in_hand()["partitions being read"] == 1
        await broker.until_cached(quick, 2)
        await asyncio.sleep(10)
        assert broker.gets() == 3
        scope = broker.meters.scoped("moldau.diskless", "Read")
        assert scope.value("CorruptBatchesPerSec", path="tail") == 0
        await broker.stop()

    run_in_virtual_time(story)
