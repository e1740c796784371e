"""Calls about thousands of partitions leave turns of the event loop to other requests."""

import asyncio
from pathlib import Path

from diskless_house import TOPIC, House, batch, file, topic

from moldau.coordinators.diskless.calls import FindBatchesCall, PartitionsToCreate, PartitionToFind
from moldau.coordinators.diskless.reads.finding import ROWS_A_TURN
from moldau.coordinators.diskless.store.store import ROWS_A_TURN as LOADED_A_TURN


def test_find_searches_many_partitions_in_turns_and_misses_no_commit(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(3 * ROWS_A_TURN)])
        wanted = [PartitionToFind(TOPIC, index, 0) for index in range(3 * ROWS_A_TURN)]
        waiting = asyncio.ensure_future(
            service.find_batches(0, FindBatchesCall(wanted, min_bytes=1, max_wait_ms=10_000))
        )
        await asyncio.sleep(0)
        # The first partition is searched already, and the last one is not.
        await service.commit_file(0, file("f1", batch(0)))
        found = await asyncio.wait_for(waiting, 5)
        assert [len(one.batches) for one in found] == [1] + [0] * (len(wanted) - 1)
        assert len(service._waiting) == 0

        turns = 0
        finding = asyncio.ensure_future(service.find_batches(0, FindBatchesCall(wanted)))
        while not finding.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 3
        await house.stop()

    asyncio.run(scene())


def test_a_coordinator_of_many_partitions_is_loaded_in_turns(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        for start in range(0, 3 * LOADED_A_TURN, LOADED_A_TURN):
            indexes = range(start, start + LOADED_A_TURN)
            await service.create_partitions(0, [PartitionsToCreate(TOPIC, "t", indexes)])
        await house.stop()
        loading = asyncio.ensure_future(house.start())
        seen = set()
        while not loading.done():
            led = house.service.led(0)
            seen.add(0 if led is None else sum(1 for _ in led.store.view))
            await asyncio.sleep(0)
        assert seen >= {LOADED_A_TURN, 2 * LOADED_A_TURN}
        await loading
        await house.stop()

    asyncio.run(scene())
