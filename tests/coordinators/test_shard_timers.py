"""Named timers on the event loop's clock."""

import asyncio

import pytest

from moldau.coordinators.effects import CancelTimer, SetTimer, TimerKey
from moldau.coordinators.timers import ShardTimers
from moldau.simulation.world.world import World


def test_timers_fire_at_the_last_time_they_were_given() -> None:
    async def main() -> list[TimerKey]:
        fired: list[TimerKey] = []
        done = asyncio.Event()

        def fire(key: TimerKey) -> None:
            fired.append(key)
            if key == "end":
                done.set()

        timers = ShardTimers(asyncio.get_running_loop(), fire)
        for change in (
            SetTimer("later", 1),
            SetTimer("later", 6),
            SetTimer("earlier", 50_000),
            SetTimer("earlier", 3),
            SetTimer("never", 2),
            CancelTimer("never"),
            CancelTimer("unknown"),
            SetTimer("end", 9),
        ):
            timers.apply(change)
        await done.wait()
        assert len(timers) == 0
        timers.apply(SetTimer("cleared", 0))
        timers.clear()
        await asyncio.sleep(0)
        return fired

    # The test uses virtual time. In real time on a busy machine, all timers could be due at once.
    with World(1) as world:
        assert world.run(main()) == ["earlier", "later", "end"]


def test_a_timer_that_is_due_at_once_fires_on_a_loop_whose_handles_know_no_time() -> None:
    # For call_at(now), uvloop returns a plain Handle, which has no method when().
    uvloop = pytest.importorskip("uvloop")

    async def main() -> TimerKey:
        fired: asyncio.Future[TimerKey] = asyncio.get_running_loop().create_future()
        timers = ShardTimers(asyncio.get_running_loop(), fired.set_result)
        timers.apply(SetTimer("now", 0))
        return await asyncio.wait_for(fired, 200)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "now"
