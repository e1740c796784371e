"""Calls about thousands of partitions leave turns of the event loop to other requests, or are refused."""

import asyncio
from pathlib import Path
from typing import Any, cast

from diskless_house import TOPIC, House, batch, file, topic

from moldau.coordinators.diskless.calls import FindBatchesCall, PartitionToFind
from moldau.coordinators.diskless.calls.table import CALLS
from moldau.coordinators.diskless.handlers import DisklessHandlers
from moldau.coordinators.diskless.reads.finding import ROWS_A_TURN
from moldau.network.served import served

FIND_BATCHES, GUARD_TRANSACTIONS = 11645, 11670


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


def test_calls_that_are_answered_as_a_whole_have_limits() -> None:
    limits = [CALLS[key].parsed_bytes_max for key in (FIND_BATCHES, GUARD_TRANSACTIONS)]
    assert limits == [16 << 20, 4 << 20]
    table = DisklessHandlers(cast(Any, None), cast(Any, None), lambda topic_id: None).table()
    assert [served(table[key]).parsed_bytes_max for key in (FIND_BATCHES, GUARD_TRANSACTIONS)] == limits
