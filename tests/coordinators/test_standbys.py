"""A standby has the committed records of the log in its store. When its node leads, only later records are
replayed."""

import asyncio
from types import SimpleNamespace
from typing import Any

from test_coordinator_runtime import ListStore, add, in_virtual_time, new_runtime, total

from memory_coordinator_log import MemoryLog


class CountingLog(MemoryLog):
    """A log that remembers the offsets of reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    async def read(self, offset: int, max_bytes: int) -> bytes:
        self.reads.append(offset)
        return await super().read(offset, max_bytes)


PARTITION: Any = SimpleNamespace(key=SimpleNamespace(partition=0))


def test_a_new_leader_continues_with_the_state_of_its_standby() -> None:
    async def main() -> None:
        log, store = CountingLog(), ListStore()
        leader = new_runtime()
        follower = new_runtime(new_store=lambda term: store, open_log=lambda partition: log)
        leader.load(0, 1, log)
        await leader.until_loaded(0)
        follower.stand_by(PARTITION)
        await leader.write(0, add(1, 2))
        await asyncio.sleep(1)
        standby = follower.standby(0)
        assert standby is not None
        assert (standby.is_current, standby.applied_offset) == (True, 2)
        assert store.numbers == [(0, 1), (1, 2)]

        log.held = True
        leader.write(0, add(4)).add_done_callback(lambda answer: answer.exception())
        await asyncio.sleep(1)
        log.commit(2)
        await asyncio.sleep(1)
        assert store.numbers == [(0, 1), (1, 2)], "the last record is not committed"

        await leader.close()
        log.reads.clear()
        follower.lead(PARTITION, 2)
        await asyncio.sleep(1)
        assert not follower.is_active(0), "the last record is not committed yet"
        log.commit()
        await follower.until_loaded(0)
        assert follower.standby(0) is None
        assert await follower.read(0, total) == 7
        assert store.numbers == [(0, 1), (1, 2), (2, 4)]
        assert log.reads == [2], "the new leader reads only the records that the standby lacks"
        await follower.close()

    in_virtual_time(main())
