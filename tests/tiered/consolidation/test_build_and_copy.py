"""A unit is built and copied at the same time."""

import asyncio
import mmap
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from consolidation_house import TOPIC, Leader, Sent, World

from moldau.runtime import InlineWorkers
from moldau.tiered.consolidation import building
from moldau.tiered.consolidation.building import build_and_copy, memory_bytes
from moldau.tiered.consolidation.plan import PlannedSegment, SegmentRules
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager
from moldau.tiered.storage.storage_manager import LogSegmentData, RemoteStorageError

Before = Callable[[RemoteLogSegmentMetadata], Awaitable[None]]


class Watched(ObjectStorageManager):
    """A storage manager that calls a function before each copy."""

    def __init__(self, world: World, before: Before) -> None:
        super().__init__(world.store)
        self._before = before

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        await self._before(metadata)
        return await super().copy_log_segment_data(metadata, data)


async def planned(world: World, partitions: int = 1) -> list[PlannedSegment]:
    """Plan three segments of each partition."""
    rules = SegmentRules(segment_bytes=500, max_age_ms=0)
    names = [TopicIdPartition(TOPIC.topic_id, TOPIC.topic, number) for number in range(partitions)]
    for name in names:
        world.state(name)
        for _ in range(3):
            await world.commit(Sent(size=400), partition=name)
    leader = Leader(world, 1, rules=rules)
    plan = await leader.leader.plan("e", max_bytes=1 << 30, lease_ms=1_000)
    assert len(plan.work) == 3 * partitions
    return [work.segment for work in plan.work]


async def copied(world: World, segments: list[PlannedSegment], before: Before, **more: Any) -> list[Any]:
    memory = memoryview(mmap.mmap(-1, memory_bytes(segments)))
    return await build_and_copy(
        segments, world.store, InlineWorkers(), Watched(world, before), into=memory, **more
    )


def test_a_segment_is_copied_while_the_next_ones_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        world = World()
        segments = await planned(world)
        last_is_built = asyncio.Event()
        finish, finished = building.finish_segment, 0

        def finish_and_tell(*args: Any, **kwargs: Any) -> Any:
            nonlocal finished
            finished += 1
            if finished == len(segments):
                last_is_built.set()
            return finish(*args, **kwargs)

        monkeypatch.setattr(building, "finish_segment", finish_and_tell)

        async def wait(metadata: RemoteLogSegmentMetadata) -> None:
            await last_is_built.wait()

        assert len(await copied(world, segments, wait)) == len(segments)
        assert len(await world.tiered_keys()) == 2 * len(segments)

    asyncio.run(scene())


def test_when_a_copy_fails_the_others_have_ended_before_the_memory_is_given_back() -> None:
    async def scene() -> None:
        world = World()
        segments = await planned(world)
        copied_ids = []

        async def fail_the_first(metadata: RemoteLogSegmentMetadata) -> None:
            if metadata.id == segments[0].metadata.id:
                raise RemoteStorageError("full")
            for _ in range(20):
                await asyncio.sleep(0)
            copied_ids.append(metadata.id)

        with pytest.raises(RemoteStorageError, match="full"):
            await copied(world, segments, fail_the_first)
        assert copied_ids == [one.metadata.id for one in segments[1:]]

    asyncio.run(scene())


def test_units_read_one_after_another_but_copy_at_the_same_time() -> None:
    async def scene() -> None:
        world = World()
        segments = await planned(world, partitions=2)
        units = [segments[:3], segments[3:]]
        turn, other_was_read = asyncio.Lock(), asyncio.Event()

        async def first_waits_for_the_second(metadata: RemoteLogSegmentMetadata) -> None:
            assert turn.locked() or metadata.id in [one.metadata.id for one in units[1]]
            await other_was_read.wait()

        async def second(metadata: RemoteLogSegmentMetadata) -> None:
            other_was_read.set()

        await turn.acquire()
        both = [
            asyncio.ensure_future(copied(world, units[0], first_waits_for_the_second, reading=turn)),
            asyncio.ensure_future(copied(world, units[1], second, reading=turn)),
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not await world.tiered_keys()
        turn.release()
        await asyncio.gather(*both)
        assert len(await world.tiered_keys()) == 12

    asyncio.run(scene())


def test_a_plan_keeps_its_maximum_size_with_many_partitions() -> None:
    async def scene() -> None:
        world = World()
        names = [TopicIdPartition(TOPIC.topic_id, TOPIC.topic, number) for number in range(20)]
        for name in names:
            world.state(name)
            for _ in range(3):
                await world.commit(Sent(size=400), partition=name)
        leader = Leader(world, 1, rules=SegmentRules(segment_bytes=500, max_age_ms=0))
        seen: set[Any] = set()
        for _ in range(40):
            plan = await leader.leader.plan("e", max_bytes=2_000, lease_ms=1_000)
            if not plan.work:
                break
            assert sum(work.segment.size_bytes for work in plan.work) < 2_000 + 3 * 500
            seen.update(work.segment.partition for work in plan.work)
        assert seen == set(names)

    asyncio.run(scene())
