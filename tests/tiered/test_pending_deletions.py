"""The objects of a remote segment are deleted only after the record that freed the segment was saved."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from consolidation_house import Leader, Sent, World
from remote_house import CONFIG, PARTITION, House

from moldau.simulation.world.world import World as SimulatedWorld
from moldau.tiered.consolidation.plan import SegmentRules
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.remote_log_manager import RemoteLogManager, RemoteLogManagerSettings
from moldau.tiered.removal.pending_deletions import PendingDeletions
from moldau.tiered.removal.remote_retention import Retention
from moldau.tiered.removal.remover import RemotePartitionRemover


class Saves:
    """The saves of a cluster. Each wait ends with the next save."""

    def __init__(self) -> None:
        self.count = 0

    def wait(self) -> Callable[[], bool]:
        began = self.count
        return lambda: self.count > began

    def pending_deletions(self) -> PendingDeletions:
        pending_deletions = PendingDeletions()
        pending_deletions.wait = self.wait
        return pending_deletions


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[House], Awaitable[None]]], None]:
    return lambda story: asyncio.run(story(House(tmp_path)))  # type: ignore[arg-type]


def test_expired_segments_wait_for_a_save(play: Callable[[Callable[[House], Awaitable[None]]], None]) -> None:
    async def story(house: House) -> None:
        saves = Saves()
        object.__setattr__(house.context, "pending_deletions", saves.pending_deletions())
        house.log.config = replace(CONFIG, retention_bytes=0)
        house.fill(3)
        await house.copying.run()
        await house.free()
        objects = await house.storage.keys()
        for _ in range(2):
            await house.expiring.run()
            assert await house.storage.keys() == objects
        begun = {each.state for each in house.metadata.cache.list()}
        assert begun == {RemoteLogSegmentState.DELETE_SEGMENT_STARTED}
        saves.count += 1
        await house.expiring.run()
        assert not await house.storage.keys()
        assert not house.metadata.cache.list()

    play(story)


def test_segments_that_another_broker_deletes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        saves = Saves()
        pending_deletions = saves.pending_deletions()
        asked = [UUID(int=number) for number in range(100)]
        for segment_id in asked:
            assert not pending_deletions.may_delete(segment_id)
        for _ in range(30):
            await asyncio.sleep(60)
            assert not pending_deletions.may_delete(asked[0])
        assert pending_deletions.remembered_count == 1
        saves.count += 1
        assert pending_deletions.may_delete(asked[0])

    monkeypatch.setattr("moldau.tiered.removal.pending_deletions._UNASKED_S", 600)
    with SimulatedWorld(1) as world:
        world.run(story())


def test_the_segments_of_a_deleted_topic_wait_for_a_save(
    play: Callable[[Callable[[House], Awaitable[None]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def all_of(partitions: Collection[TopicIdPartition]) -> Collection[TopicIdPartition]:
        return partitions

    async def story(house: House) -> None:
        saves = Saves()
        object.__setattr__(house.context, "pending_deletions", saves.pending_deletions())
        house.fill(2)
        await house.copying.run()
        objects = await house.storage.keys()
        manager = RemoteLogManager(house.context, RemoteLogManagerSettings())
        remover = RemotePartitionRemover(manager, all_of)
        remover.delete_partition(PARTITION)
        await asyncio.sleep(0.01)
        assert await house.storage.keys() == objects
        saves.count += 1
        await asyncio.gather(*remover.jobs)
        assert not await house.storage.keys()

    monkeypatch.setattr("moldau.tiered.removal.pending_deletions._POLL_S", 0.001)
    play(story)


def test_expired_segments_of_diskless_topics_wait_for_a_save() -> None:
    async def story() -> None:
        saves, world = Saves(), World()
        await world.commit(*[Sent(100)] * 6)
        leader = Leader(world, rules=SegmentRules(segment_bytes=300))
        leader.reconciler._pending_deletions = saves.pending_deletions()
        await leader.run_once()
        objects = await world.tiered_keys()
        assert objects
        for partition, led in leader.led.items():
            leader.led[partition] = replace(led, retention=Retention(size_bytes=0), may_copy=False)
        for _ in range(3):
            await leader.run_once()
            assert await world.tiered_keys() == objects
        saves.count += 1
        await leader.run_once()
        assert not await world.tiered_keys()

    asyncio.run(story())
