"""The clock for deletions by age."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.runtime import DeletionClock
from moldau.simulation.world.clock import SimulatedClock
from moldau.simulation.world.world import World

HOUR_MS = 3_600_000
Story = Callable[[SimulatedClock, DeletionClock], Awaitable[None]]


def play(story: Story) -> None:
    with World(1, time_limit_s=10_000) as world:
        wall = SimulatedClock(world.loop)

        async def told() -> None:
            await story(wall, DeletionClock(wall))

        world.run(told())


def test_the_deletion_clock_equals_the_wall_clock_while_that_clock_runs_steadily() -> None:
    async def story(wall: SimulatedClock, clock: DeletionClock) -> None:
        for _ in range(10):
            assert abs(clock.now_ms() - wall.now_ms()) <= 1
            await asyncio.sleep(7)

    play(story)


def test_a_jump_ahead_is_caught_up_with_at_twice_the_speed() -> None:
    async def story(wall: SimulatedClock, clock: DeletionClock) -> None:
        before = clock.now_ms()
        wall.jump(HOUR_MS)
        assert clock.now_ms() == before
        await asyncio.sleep(600)
        assert abs(clock.now_ms() - before - 1_200_000) <= 1
        await asyncio.sleep(3_000)
        assert abs(clock.now_ms() - wall.now_ms()) <= 1

    play(story)


def test_a_jump_back_is_followed_immediately_and_its_correction_slowly() -> None:
    async def story(wall: SimulatedClock, clock: DeletionClock) -> None:
        before = clock.now_ms()
        wall.jump(-HOUR_MS)
        assert clock.now_ms() == before - HOUR_MS
        wall.jump(HOUR_MS)
        await asyncio.sleep(60)
        assert abs(clock.now_ms() - before + HOUR_MS - 120_000) <= 1

    play(story)


def test_a_clock_error_of_an_hour_that_is_corrected_makes_no_record_old() -> None:
    async def story(wall: SimulatedClock, clock: DeletionClock) -> None:
        before = clock.now_ms()
        for _ in range(20):
            wall.jump(HOUR_MS)
            clock.now_ms()
            wall.jump(-HOUR_MS)
            assert clock.now_ms() <= before + 1
        await asyncio.sleep(60)
        assert abs(clock.now_ms() - wall.now_ms()) <= 1

    play(story)


def test_small_steps_of_the_wall_clock_are_followed_immediately() -> None:
    async def story(wall: SimulatedClock, clock: DeletionClock) -> None:
        clock.now_ms()
        for _ in range(10):
            wall.jump(1)
            assert clock.now_ms() == wall.now_ms()

    play(story)
