"""Quotas, pools and pieces: the limits of work on the remote tier."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_house import PARTITION, House

from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.byte_quota import BytePacer, ByteRateQuota, QuotaSettings
from moldau.tiered.remote_log_manager import RemoteLogManager, RemoteLogManagerSettings
from moldau.tiered.storage.batch_selection import select_batches
from moldau.tiered.work_pool import TurnLane, WorkPool

# -- quota ------------------------------------------------------------------------------------


def test_a_quota_averages_over_its_windows() -> None:
    quota = ByteRateQuota(QuotaSettings(bytes_per_second=100, window_count=11, window_s=1))
    assert quota.throttle_s(0.0) == 0.0
    quota.record(1_000, 0.0)
    assert quota.bytes_per_second(0.0) == 100.0
    assert quota.throttle_s(0.0) == 0.0, "a burst within the windows is no high rate"
    quota.record(1_000, 0.5)
    wait_s = quota.throttle_s(0.5)
    assert wait_s == pytest.approx(11.0)
    assert quota.throttle_s(5.0) > 0
    assert quota.throttle_s(0.5 + wait_s) == 0.0
    quota.settings = QuotaSettings(bytes_per_second=10**6)
    assert quota.throttle_s(0.5) == 0.0, "a new bound counts at once"


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 500)), max_size=60))
def test_waiting_for_the_throttle_time_keeps_the_rate(steps: list[tuple[float, int]]) -> None:
    settings = QuotaSettings(bytes_per_second=100, window_count=5, window_s=1)
    quota, now_s, done = ByteRateQuota(settings), 0.0, []
    for pause_s, size_bytes in steps:
        now_s += pause_s
        while (wait_s := quota.throttle_s(now_s)) > 0:
            now_s += max(wait_s, 1e-3)
        quota.record(size_bytes, now_s)
        done.append((now_s, size_bytes))
    for end_s, size_bytes in done:
        within = sum(size for at_s, size in done if end_s - 4 < at_s < end_s)
        assert within <= 100 * 5 + 500, "and one that was too large"
        assert size_bytes <= 500


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(1, 500), st.integers(0, 500)), max_size=60))
def test_a_pacer_spreads_bytes_evenly(steps: list[tuple[float, int, int]]) -> None:
    pacer, now_s, done = BytePacer(QuotaSettings(bytes_per_second=10_000)), 0.0, []
    for pause_s, wanted_bytes, found_bytes in steps:
        now_s += pause_s
        now_s += pacer.wait_s(now_s)
        pacer.reserve(wanted_bytes, now_s)
        pacer.settle(wanted_bytes, min(found_bytes, wanted_bytes))
        done.append((now_s, min(found_bytes, wanted_bytes)))
    for index, (start_s, _) in enumerate(done):
        total_bytes = 0
        for at_s, size_bytes in done[index:]:
            assert total_bytes <= 10_000 * (at_s - start_s + 0.021), "in any stretch of time, however short"
            total_bytes += size_bytes


def test_a_pacers_reads_each_have_their_moment() -> None:
    pacer = BytePacer(QuotaSettings(bytes_per_second=1_000))
    waits = []
    for _ in range(4):
        waits.append(pacer.wait_s(100.0))
        pacer.reserve(100, 100.0)
    assert waits == pytest.approx([0.0, 0.08, 0.18, 0.28])
    pacer.settle(100, 0)
    assert pacer.wait_s(100.0) == pytest.approx(0.28), "a read that found nothing costs nothing"


def test_the_wait_after_failures_doubles_up_to_a_bound() -> None:
    class Middle:
        def uniform(self, low: float, high: float) -> float:
            return (low + high) / 2

    settings = RemoteLogManagerSettings(retry_backoff_ms=500, retry_backoff_max_ms=3_000)
    waits = [settings.backoff_ms(failures, Middle()) for failures in (1, 2, 3, 4, 5, 100)]
    assert waits == [500, 1_000, 2_000, 3_000, 3_000, 3_000]


def test_rounds_that_begin_together_do_not_stay_together() -> None:
    settings = RemoteLogManagerSettings(task_interval_ms=1_000)
    waits = sorted(settings.first_wait_ms(number) for number in range(100))
    assert waits[0] >= 500
    assert waits[-1] <= 1_000
    assert all(later - earlier < 500 / 100 * 2 for earlier, later in pairwise(waits)), "evenly"
    assert all(later > earlier for earlier, later in pairwise(waits))


def test_only_the_first_wait_of_a_task_is_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[str, list[float]] = {}
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        task = asyncio.current_task()
        if seconds and task is not None:
            waits.setdefault(task.get_name(), []).append(seconds)
        await sleep(0)

    async def story() -> None:
        house = House(tmp_path)
        manager = RemoteLogManager(house.context, RemoteLogManagerSettings(task_interval_ms=1_000))
        monkeypatch.setattr(asyncio, "sleep", note)
        manager.lead(PARTITION, house, copies=True)
        while len(waits) < 2 or min(map(len, waits.values())) < 3:
            await sleep(0)
        await manager.close()

    asyncio.run(story())
    first, second = (found[0] for found in waits.values())
    assert first != second
    assert 0.5 <= min(first, second) <= max(first, second) <= 1.0
    assert [found[1:3] for found in waits.values()] == [[1.0, 1.0]] * 2


def test_tasks_are_created_again_only_in_a_new_epoch(tmp_path: Path) -> None:
    """A task of an earlier epoch has an old list of the remote segments. The new epoch needs a new task,
    because another broker may have led the partition between the two epochs."""

    async def story() -> None:
        house = House(tmp_path)
        manager = RemoteLogManager(house.context, RemoteLogManagerSettings(task_interval_ms=1_000))
        begun: list[set[asyncio.Task[object]]] = []
        for epoch in (1, 1, 2):
            manager.lead(PARTITION, house, copies=True, leader_epoch=epoch)
            found = {each for each in asyncio.all_tasks() if str(PARTITION) in each.get_name()}
            begun.append({each for each in found if each.get_name().startswith(("copy", "expire"))})
            await asyncio.sleep(0)
        assert [len(each) for each in begun] == [2, 2, 4]
        assert begun[0] == begun[1]
        await asyncio.gather(*begun[0], return_exceptions=True)
        assert all(each.cancelled() for each in begun[0])
        assert not any(each.done() for each in begun[2] - begun[0])
        await manager.close()

    asyncio.run(story())


# -- pool -------------------------------------------------------------------------------------


def test_a_pool_gives_its_places_in_order_and_takes_them_back() -> None:
    async def story() -> None:
        pool = WorkPool(2)
        gates = [asyncio.Event() for _ in range(5)]
        began: list[int] = []

        async def job(number: int) -> None:
            async with pool.place():
                began.append(number)
                await gates[number].wait()

        tasks = [asyncio.create_task(job(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert began == [0, 1]
        assert (pool.waiting_count, pool.idle_share) == (3, 0.0)
        tasks[2].cancel()
        gates[1].set()
        await asyncio.gather(tasks[1], tasks[2], return_exceptions=True)
        await asyncio.sleep(0)
        assert began == [0, 1, 3]
        pool.size = 3
        await asyncio.sleep(0)
        assert began == [0, 1, 3, 4]
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (pool.waiting_count, pool.idle_share) == (0, 1.0)

    asyncio.run(story())


def test_jobs_that_are_cancelled_while_places_are_freed_end_as_cancelled() -> None:
    async def run() -> None:
        pool = WorkPool(1)

        async def job() -> None:
            async with pool.place():
                await asyncio.sleep(3600)

        jobs = [asyncio.ensure_future(job()) for _ in range(10)]
        await asyncio.sleep(0)
        for one in jobs:
            one.cancel()
        ended = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(one) for one in ended] == [asyncio.CancelledError] * 10
        assert pool.waiting_count == 0
        assert pool.idle_share == 1.0

    asyncio.run(run())


def test_a_place_of_a_cancelled_waiter_goes_to_the_next_waiter() -> None:
    async def story() -> None:
        pool = WorkPool(1)
        gate = asyncio.Event()

        async def job() -> None:
            async with pool.place():
                await gate.wait()

        first, second, third = (asyncio.create_task(job()) for _ in range(3))
        await asyncio.sleep(0)
        gate.set()
        await first
        second.cancel()
        await asyncio.gather(second, third, return_exceptions=True)
        assert pool.idle_share == 1.0

    asyncio.run(story())


# -- pieces -----------------------------------------------------------------------------------

BATCHES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 120)), min_size=1, max_size=8)


@given(BATCHES, st.data())
def test_a_piece_gives_the_batches_that_its_segment_would(
    shapes: list[tuple[int, int]], data: st.DataObject
) -> None:
    content, ends, offset = b"", [], 0
    for count, size in shapes:
        batch = build_batch([Record(0, 0, None, b"v" * size)] * count, base_offset=offset)
        offset += count
        content += batch
        ends.append((len(content), offset))
    starts = [(0, 0), *ends[:-1]]
    wanted = data.draw(st.integers(0, offset - 1))
    bound = data.draw(st.integers(wanted + 1, offset))
    max_bytes = data.draw(st.integers(1, len(content)))
    whole = data.draw(st.booleans())
    cut = data.draw(st.integers(0, len(content)))
    found = select_batches(memoryview(content[:cut]), wanted, bound, max_bytes, min_one_batch=whole)
    first = next(n for n, (_, end_offset) in enumerate(ends) if end_offset > wanted)
    at = starts[first][0]
    chosen: list[int] = []
    for number in range(first, len(ends)):
        end = ends[number][0]
        too_large = end - at > max_bytes and not (whole and number == first)
        if starts[number][1] >= bound or too_large or end > cut:
            break
        chosen.append(number)
    if chosen:
        assert (found.start, found.end) == (at, ends[chosen[-1]][0])
        assert found.next_offset == ends[chosen[-1]][1]
    else:
        assert found.start == found.end
        assert found.next_offset == wanted
        if whole or cut < at + 61:
            assert found.missing_bytes, "it says how to get on"
            assert found.start <= at


@pytest.mark.parametrize("jobs_a_turn", [1, 2, 3])
def test_jobs_that_arrive_together_run_in_several_turns(jobs_a_turn: int) -> None:
    async def story() -> None:
        loop, lane = asyncio.get_running_loop(), TurnLane(jobs_a_turn)
        turn = 0
        went_on: list[tuple[int, int]] = []

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        async def job(number: int) -> None:
            await lane.turn()
            went_on.append((number, turn))

        count()
        tasks = [asyncio.create_task(job(number)) for number in range(9)]
        await asyncio.sleep(0)
        tasks[5].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [number for number, _ in went_on] == [0, 1, 2, 3, 4, 6, 7, 8]
        in_turn = Counter(turn for _, turn in went_on)
        assert max(in_turn.values()) == jobs_a_turn
        assert len(in_turn) == -(-8 // jobs_a_turn), "no turn is left out, and none is half empty"
        for _ in range(3):
            await asyncio.sleep(0)
        before = turn
        await job(9)
        assert went_on[-1] == (9, before), "who comes alone does not wait"

    asyncio.run(story())
