"""A waiter waits for one of several keys, or until its deadline. It ends once, and is then removed."""

import asyncio
import contextlib

import pytest

from moldau.replication.waiters import LONG_TICK_S, SHORT_TICK_S, WaitingRoom


def test_a_waiter_is_woken_by_any_of_its_keys_and_leaves_the_others() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        first = room.wait(["a", "b"], 60)
        second = room.wait(["b"], 60)
        room.notify("c")
        assert not first.future.done()
        room.notify("a")
        assert await first.future is True
        assert not second.future.done()
        assert len(room) == 1
        room.notify("b")
        assert await second.future is True
        assert len(room) == 0

    asyncio.run(scenario())


def test_a_waiter_gives_up_at_its_deadline() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        waiter = room.wait(["a"], 0.001)
        assert await waiter.future is False
        assert len(room) == 0
        room.notify("a")

    asyncio.run(scenario())


def test_finishing_twice_is_harmless() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        waiter = room.wait(["a"], 60)
        waiter.finish(False)
        waiter.finish(True)
        assert await waiter.future is False

    asyncio.run(scenario())


def test_all_waiters_end_when_the_node_stops() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        waiters = [room.wait(["a", "b"], 60), room.wait(["b"], 60)]
        room.release_all()
        assert [await waiter.future for waiter in waiters] == [False, False]
        # A request that was woken just before may wait once more.
        late = room.wait(["a"], 60)
        assert not await asyncio.wait_for(late.future, 30)
        assert len(room) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("timeout_s", "tick_s"), [(0.5, LONG_TICK_S), (0.001, SHORT_TICK_S), (0.0, SHORT_TICK_S)]
)
def test_no_waiter_times_out_early_or_more_than_a_tick_late(timeout_s: float, tick_s: float) -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        loop = asyncio.get_running_loop()
        planned: list[float] = []

        def call_at(when: float, *_: object) -> asyncio.TimerHandle:
            planned.append(when)
            return asyncio.TimerHandle(when, print, (), loop)

        loop.call_at = call_at  # type: ignore[method-assign, assignment]
        for _ in range(50):
            before = loop.time()
            waiter = room.wait(["a"], timeout_s)
            assert before + timeout_s <= planned[-1] <= loop.time() + timeout_s + tick_s
            waiter.finish(False)

    asyncio.run(scenario())


def test_waiters_with_equal_waits_share_a_deadline() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        loop = asyncio.get_running_loop()
        timers = []
        plain_call_at = loop.call_at
        loop.call_at = lambda *how: timers.append(plain_call_at(*how)) or timers[-1]  # type: ignore
        started = loop.time()
        waiters = [room.wait(["a"], 60) for _ in range(100)]
        assert len(timers) <= 1 + (loop.time() - started) / LONG_TICK_S + 1
        room.notify("a")
        assert all([await waiter.future for waiter in waiters])
        assert all(timer.cancelled() for timer in timers)

    asyncio.run(scenario())


def test_a_waiter_whose_request_is_cancelled_leaves() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        waiter = room.wait(["a"], 60)
        waiter.future.cancel()
        waiter.finish(False)
        assert len(room) == 0
        with contextlib.suppress(asyncio.CancelledError):
            await waiter.future

    asyncio.run(scenario())
