"""Calls about thousands of partitions are processed in several iterations of the event loop, so that other
requests are served in between."""

import asyncio
from pathlib import Path

import pytest
from diskless_house import TOPIC, House, batch, file, topic

from moldau.coordinators.diskless.calls import FindBatchesCall, PartitionsToCreate, PartitionToFind
from moldau.coordinators.diskless.reads import finding
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
        # At this moment the first partition has been searched, but the last partition has not been searched.
        await service.commit_file(0, file("f1", batch(0)))
        found = await asyncio.wait_for(waiting, 5)
        assert [len(one.batches) for one in found] == [1] + [0] * (len(wanted) - 1)
        assert len(service._waiting) == 0

        turns = 0
        searching = asyncio.ensure_future(service.find_batches(0, FindBatchesCall(wanted)))
        while not searching.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 3
        await house.stop()

    asyncio.run(scene())


def test_find_pauses_after_many_batches_and_bounds_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "BATCHES_A_TURN", 10)
    monkeypatch.setattr(finding, "PARTITION_BATCHES_MAX", 8)
    monkeypatch.setattr(finding, "ANSWER_BATCHES_MAX", 50)

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(20)])
        await service.commit_file(0, file("f", *(batch(at // 12) for at in range(120))))
        wanted = [PartitionToFind(TOPIC, index, 0) for index in range(20)]
        # The call waits for more bytes, but it ends when a limit for the number of batches is reached.
        call = FindBatchesCall(wanted, min_bytes=1 << 30, max_wait_ms=600_000)
        turns = 0
        searching = asyncio.ensure_future(service.find_batches(0, call))
        while not searching.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 4
        assert [len(one.batches) for one in searching.result()] == [8] * 6 + [2] + [0] * 13
        few = FindBatchesCall(wanted, max_batches_per_partition=3)
        assert [len(one.batches) for one in await service.find_batches(0, few)] == [3] * 10 + [0] * 10
        # A call that begins at offset 8 gets the batches after the first eight batches.
        more = [PartitionToFind(TOPIC, 0, 8)]
        [rest] = await service.find_batches(0, FindBatchesCall(more))
        assert [one.base_offset for one in rest.batches] == [8, 9, 10, 11]
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))


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
