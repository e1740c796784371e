"""A broker with thousands of diskless partitions starts. It sends only a few short requests to the
coordinator."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from reading_fakes import MemoryCoordinator, ReadingBroker, key
from writer_fakes import run_in_virtual_time

from moldau.coordinators.diskless.calls import FindBatchesCall, FoundPartition
from moldau.diskless.cache.cacher import Cacher
from moldau.diskless.cache.follow_lane import ROWS_A_TURN
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.writing.own_commits import OwnRun
from moldau.runtime import Machine

PARTITIONS = 1_000
OPENED_A_TURN = 25


class CountingCoordinator(MemoryCoordinator):
    """Counts the partitions in all requests."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.most_rows = 0

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        self.rows += len(call.partitions)
        self.most_rows = max(self.most_rows, len(call.partitions))
        # Wait as long as a call on a broker takes, which is some iterations of the event loop.
        for _ in range(4):
            await asyncio.sleep(0)
        return await super().find_batches(call)


async def start(machine: Machine, partitions: int = PARTITIONS) -> tuple[CountingCoordinator, int]:
    """Open the partitions as a broker does. Returns the number of partitions whose state was known when the
    last partition was opened."""
    broker = ReadingBroker(machine)
    broker.coordinator = coordinator = CountingCoordinator()
    broker.start()
    caches: list[PartitionCache] = []
    try:
        for number in range(partitions):
            coordinator.create(key(number))
            cache = PartitionCache(key(number), "t", 0, None)
            caches.append(cache)
            broker.cacher.add(cache)
            if number % OPENED_A_TURN == OPENED_A_TURN - 1:
                await asyncio.sleep(0)
        known_early = sum(cache.is_known for cache in caches)
        await asyncio.sleep(1)
        assert all(cache.is_known for cache in caches)
        await asyncio.sleep(10)  # the longest wait for the response to a request
    finally:
        await broker.stop()
    return coordinator, known_early


def test_a_start_with_many_partitions_needs_few_requests() -> None:
    coordinator, known_early = run_in_virtual_time(start)
    assert known_early, "partitions are known while others are opened"
    assert coordinator.rows < 12 * PARTITIONS, "a request for each addition does not name all partitions"


def calls_a_turn(monkeypatch: pytest.MonkeyPatch, method: str) -> Callable[[], int]:
    """The maximum number of calls of one method of the cacher in a single iteration of the event loop."""
    turn = longest = 0
    called: Callable[..., Any] = getattr(Cacher, method)

    def counted(*arguments: object) -> object:
        nonlocal turn, longest
        if turn == 0:
            asyncio.get_running_loop().call_soon(end_turn)
        turn += 1
        longest = max(longest, turn)
        return called(*arguments)

    def end_turn() -> None:
        nonlocal turn
        turn = 0

    monkeypatch.setattr(Cacher, method, counted)
    return lambda: longest


def test_an_answer_about_many_partitions_is_processed_in_short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = calls_a_turn(monkeypatch, "apply_answer")
    run_in_virtual_time(lambda machine: start(machine, 3 * ROWS_A_TURN))
    assert 16 < longest() <= ROWS_A_TURN


def test_very_many_partitions_are_requested_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator refuses a call that names too many partitions, and the cacher would repeat such a call
    without success."""
    monkeypatch.setattr("moldau.diskless.cache.follow_lane.MEMBERS_A_CALL", 200)
    monkeypatch.setattr("moldau.diskless.cache.follow_lane.ROWS_A_TURN", 20)
    longest = calls_a_turn(monkeypatch, "round_over")

    async def story(machine: Machine) -> int:
        broker = ReadingBroker(machine)
        broker.coordinator = coordinator = CountingCoordinator()
        broker.start()
        try:
            followed = [broker.open(key(number)) for number in range(300)]
            await broker.commit(*((each.cache.key, [b"a"]) for each in followed))
            for each in followed:
                await broker.until_cached(each, 1)
            began_s = asyncio.get_running_loop().time()
            await broker.commit(*((each.cache.key, [b"b"]) for each in followed))
            for each in followed:
                await broker.until_cached(each, 2)
            assert asyncio.get_running_loop().time() - began_s <= 1
        finally:
            await broker.stop()
        return coordinator.most_rows

    assert run_in_virtual_time(story) == 200
    assert longest() <= 40


def test_idle_partitions_are_seldom_requested_and_new_batches_are_found_at_once() -> None:
    async def story(machine: Machine) -> tuple[float, float]:
        broker = ReadingBroker(machine)
        broker.coordinator = coordinator = CountingCoordinator()
        broker.start()
        loop = asyncio.get_running_loop()
        try:
            for number in range(PARTITIONS):
                coordinator.create(key(number))
            followed = [broker.open(key(number)) for number in range(PARTITIONS)]
            await asyncio.sleep(10)
            rows, began_s = coordinator.rows, loop.time()
            await asyncio.sleep(60)
            rows_per_s = (coordinator.rows - rows) / (loop.time() - began_s)
            began_s = loop.time()
            await broker.commit((followed[7].cache.key, [b"a"]))
            await broker.until_cached(followed[7], 1)
            return rows_per_s, loop.time() - began_s
        finally:
            await broker.stop()

    rows_per_s, found_s = run_in_virtual_time(story)
    assert rows_per_s <= 250
    assert found_s < 0.1


def test_a_partition_that_a_request_leaves_out_does_not_wait_for_the_end_of_a_long_wait() -> None:
    """A cache is left out of requests while this broker writes its own batches into the cache. If the write
    is slow, a request without the cache already waits at the coordinator when the write ends."""

    async def story(machine: Machine) -> float:
        broker = ReadingBroker(machine)
        broker.start()
        loop = asyncio.get_running_loop()
        try:
            for number in range(PARTITIONS):
                broker.coordinator.create(key(number))
            followed = [broker.open(key(number)) for number in range(PARTITIONS)]
            await asyncio.sleep(10)
            own = followed[7].cache.key
            batch: Any = SimpleNamespace(base_offset=0, last_offset=0, is_transactional=False)
            assert broker.cacher.promise(own, [batch])
            await asyncio.sleep(0.05)
            assert not broker.cacher.over(OwnRun(own, [batch], memoryview(b"")))
            await asyncio.sleep(0.1)
            began_s = loop.time()
            await broker.commit((own, [b"a"]))
            await broker.until_cached(followed[7], 1)
            return loop.time() - began_s
        finally:
            await broker.stop()

    assert run_in_virtual_time(story) < 0.6
