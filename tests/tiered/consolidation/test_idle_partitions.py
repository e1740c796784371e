"""A leader makes no calls for idle partitions. It still completes the work of former leaders."""

import asyncio
from dataclasses import replace
from functools import partial

from consolidation_house import TOPIC, Leader, Sent, Steps, World
from test_consolidation_kills import RULES, SETTINGS, furnished, settled, steps_of_a_round

from moldau.tiered.consolidation.ports import KnownOffsets
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.removal.remote_retention import Retention


def known_offsets(world: World, partition: TopicIdPartition) -> KnownOffsets:
    state = world.state(partition)
    return KnownOffsets(state.log_start, state.wal_start, state.next)


def following_leader(world: World, epoch: int, steps: Steps | None = None) -> Leader:
    """A leader that knows the current offsets of all partitions."""
    leader = Leader(world, epoch, steps, rules=RULES, settings=SETTINGS)
    leader.led = {
        name: replace(led, known_offsets=partial(known_offsets, world, name))
        for name, led in leader.led.items()
    }
    return leader


def test_a_round_without_new_batches_makes_no_call() -> None:
    async def scene() -> None:
        world = await furnished()
        for leader in (following_leader(world, 1), following_leader(world, 2)):
            while await leader.run_once():
                pass
            before = leader.steps.count
            for _ in range(3):
                assert await leader.run_once() == 0
            assert leader.steps.count == before
            await world.commit(Sent(size=100), partition=TOPIC)
            assert await leader.run_once()
        await world.check()

    asyncio.run(scene())


def test_what_a_dead_leader_has_left_is_completed() -> None:
    async def scene() -> None:
        for kill_at in range(1, await steps_of_a_round() + 1, 2):
            world = await furnished()
            await following_leader(world, 1, Steps(world, kill_at, after=True)).run_once()
            successor = following_leader(world, 2)
            for _ in range(3):
                assert await successor.run_once() is not None
            before = set(world.events)
            await settled(world, 3)
            assert set(world.events) == before, "the third leader had to do work of the first leader"

    asyncio.run(scene())


def test_retention_deletes_segments_of_an_idle_partition() -> None:
    async def scene() -> None:
        world = await furnished()
        leader = following_leader(world, 1)
        await leader.run_once()
        assert world.segments()
        leader.led = {name: replace(led, retention=Retention(1_000, -1)) for name, led in leader.led.items()}
        world.clock.time_ms += 10_000_000
        await leader.run_once()
        await leader.run_once()
        assert not world.segments()
        assert not await world.tiered_keys()

    asyncio.run(scene())
