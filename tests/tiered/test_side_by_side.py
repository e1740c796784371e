import asyncio

import pytest

from moldau.tiered.consolidation.side_by_side import CALLS_A_TURN, side_by_side


def test_a_limited_number_of_jobs_runs_at_a_time_and_results_are_in_order() -> None:
    under_way: list[int] = []
    most = 0

    async def double(number: int) -> int:
        nonlocal most
        under_way.append(number)
        most = max(most, len(under_way))
        for _ in range(10 - number):
            await asyncio.sleep(0)
        under_way.remove(number)
        return 2 * number

    assert asyncio.run(side_by_side(double, range(10), 3)) == [2 * number for number in range(10)]
    assert most == 3
    assert asyncio.run(side_by_side(double, [], 3)) == []


def test_the_first_error_ends_all() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def fail(number: int) -> None:
        begun.append(number)
        try:
            if number == 1:
                raise OSError("full")
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(OSError, match="full"):
        asyncio.run(side_by_side(fail, range(10), 3))
    assert sorted(begun) == sorted(ended) == [0, 1, 2]


def test_calls_that_do_not_wait_leave_turns_to_others() -> None:
    async def story() -> None:
        done, largest = 0, 0

        async def call(number: int) -> None:
            nonlocal done
            done += 1

        working = asyncio.ensure_future(side_by_side(call, range(1_000), 16))
        while not working.done():
            before = done
            await asyncio.sleep(0)
            largest = max(largest, done - before)
        assert done == 1_000
        assert largest <= CALLS_A_TURN

    asyncio.run(story())
