"""Leaders crash at any step of a consolidation while other leaders are active. Every acknowledged record can
be read at every moment."""

import asyncio
from uuid import UUID

import pytest
from consolidation_house import TOPIC, Killed, Leader, Sent, Steps, World

from moldau.metrics import Meters
from moldau.objects import FaultyStorage
from moldau.runtime import ErrorCode, InlineWorkers, SeededEntropy
from moldau.tiered.consolidation.building import build_segments, copy_segment
from moldau.tiered.consolidation.engine import EngineSettings
from moldau.tiered.consolidation.orphans import SegmentOrphanScan
from moldau.tiered.consolidation.plan import SegmentRules
from moldau.tiered.consolidation.work import BuiltCopy
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.removal.remote_retention import Retention
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager

OTHER = TopicIdPartition(TOPIC.topic_id, "t", 1)
RULES = SegmentRules(segment_bytes=600, max_age_ms=0)
SEEDS = 12
SETTINGS = EngineSettings(unit_bytes=1_500, plan_bytes=10_000)
GRACE_MS = 1_000


async def furnished() -> World:
    """Two partitions with batches of several kinds. Their batches are adjacent in the same objects."""
    world = World()
    world.state(TOPIC), world.state(OTHER)
    for number in range(4):
        await world.commit(
            Sent(records=2, size=80), Sent(producer=5, codec=number % 5), Sent(size=150), partition=TOPIC
        )
        await world.commit(Sent(append_time_ms=world.clock.time_ms, size=100), partition=OTHER)
    return world


async def settled(world: World, epoch: int, *, scans: bool = False) -> None:
    """Let a leader that is not killed complete all work. Check that all records are then consolidated, and
    that no unneeded objects remain.

    With ``scans``, the grace period passes, and the leader scans for orphans. This is needed after an old
    leader has stored a segment that another leader had already deleted.
    """
    leader = Leader(world, epoch, rules=RULES, settings=SETTINGS)
    assert await leader.run_once() is not None
    await leader.run_once()
    if scans:
        world.clock.time_ms += GRACE_MS + 1
        await orphan_scan(leader).run()
    for partition in world.records:
        state = world.state(partition)
        assert state.wal_start == state.next
    segments = world.segments()
    assert {one.state for one in segments} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
    stems = {key.rsplit(".", 1)[0] for key in await world.tiered_keys()}
    assert stems == {
        f"tiered/t-AAAAAAAAAAAAAAAAAAAABw/{one.id.partition}/{one.start_offset:020}-{one.id.id}"
        for one in segments
    }
    await world.forget_pruned_objects()
    await world.check()


def orphan_scan(leader: Leader) -> SegmentOrphanScan:
    return SegmentOrphanScan(
        leader.reconciler,
        ObjectStorageManager(leader.world.store),
        lambda: leader.led,
        SeededEntropy(99),
        Meters(),
        grace_ms=GRACE_MS,
    )


async def steps_of_a_round() -> int:
    world = await furnished()
    leader = Leader(world, 1, rules=RULES, settings=SETTINGS)
    assert await leader.run_once()
    return leader.steps.count


def test_a_round_moves_all_that_is_due() -> None:
    async def scene() -> None:
        world = await furnished()
        await settled(world, 1)
        assert len(world.segments()) > 3

    asyncio.run(scene())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_leader_may_be_killed_at_every_step(after: bool) -> None:
    async def scene() -> None:
        for kill_at in range(1, await steps_of_a_round() + 1):
            world = await furnished()
            dying = Leader(world, 1, Steps(world, kill_at, after=after), rules=RULES, settings=SETTINGS)
            assert await dying.run_once() is None
            await settled(world, 2)

    asyncio.run(scene())


def test_the_next_leader_may_be_killed_too() -> None:
    async def scene() -> None:
        for kill_at in range(1, await steps_of_a_round() + 1, 3):
            world = await furnished()
            for epoch in (1, 2, 3):
                dying = Leader(world, epoch, Steps(world, kill_at * epoch, after=epoch == 2), rules=RULES)
                await dying.run_once()
            await settled(world, 4)

    asyncio.run(scene())


def test_leaders_that_do_not_know_of_each_other_lose_nothing() -> None:
    """Old leaders continue at the same time as new leaders. Each leader may pause for a long time, and then
    use outdated state."""

    async def scene() -> None:
        for seed in range(1, SEEDS + 1):
            world = await furnished()
            await asyncio.gather(*(rule(world, epoch, seed) for epoch in range(1, 4)))
            await settled(world, 4, scans=True)

    async def rule(world: World, epoch: int, seed: int) -> None:
        rules = SegmentRules(segment_bytes=400 + 100 * epoch, max_age_ms=0)
        steps = Steps(world, seed=100 * seed + epoch)
        leader = Leader(world, epoch, steps, rules=rules, settings=SETTINGS)
        for _ in range(3):
            await leader.run_once()
            await world.commit(Sent(producer=epoch, size=40 * epoch), Sent(size=300))

    asyncio.run(scene())


async def built(leader: Leader) -> tuple[UUID, list[BuiltCopy]]:
    """A plan whose segments are copied but not published."""
    plan = await leader.leader.plan("e", max_bytes=10_000, lease_ms=1_000)
    segments = [work.segment for work in plan.work]
    made = await build_segments(segments, leader.world.store, InlineWorkers())
    copies = [
        BuiltCopy(one.partition, one.segment_id, work.epoch, await copy_segment(one, content, leader.storage))
        for work, one, content in zip(plan.work, segments, made, strict=True)
    ]
    return plan.lease_id, copies


def test_a_leader_with_old_metadata_waits_for_the_segments_of_pruned_batches() -> None:
    async def scene() -> None:
        world = await furnished()
        old = Leader(world, 1, rules=RULES)
        lease_id, copies = await built(old)
        new = Leader(world, 2, rules=RULES)  # the new leader has read only COPY_SEGMENT_STARTED events
        assert all(answer.error is ErrorCode.none for answer in await old.leader.publish(lease_id, copies))
        await new.run_once()
        await settled(world, 3)
        assert {copy.segment_id for copy in copies} <= {one.id.id for one in world.segments()}

    asyncio.run(scene())


def test_finished_segments_that_were_not_pruned_are_adopted_if_all_leaders_can_see_them() -> None:
    async def scene() -> None:
        world = await furnished()
        old = Leader(world, 1, Steps(world), rules=RULES)
        lease_id, copies = await built(old)
        copy = next(copy for copy in copies if copy.partition == TOPIC)
        late = Leader(world, 3, rules=RULES)  # this leader has read only the first events
        old.steps.kill_at = old.steps.count + 1
        old.steps.after = True
        with pytest.raises(Killed):
            await old.leader.publish(lease_id, [copy])
        assert world.state().wal_start == 0
        await Leader(world, 2, rules=RULES, may_copy=False).run_once()
        assert world.state().wal_start > 0
        assert await late.run_once() is not None
        assert copy.segment_id in {one.id.id for one in world.segments()}
        await settled(world, 4)

    asyncio.run(scene())


def test_late_and_repeated_reports_of_an_engine_do_no_harm() -> None:
    async def scene() -> None:
        world = await furnished()
        leader = Leader(world, 1, rules=RULES)
        lease_id, copies = await built(leader)
        (empty,) = [await leader.leader.plan("other", max_bytes=10_000, lease_ms=1_000)]
        assert not empty.work  # another engine already has these partitions
        first, second, *rest = [copy for copy in copies if copy.partition == TOPIC]
        (early,) = await leader.leader.publish(lease_id, [second])
        assert early.is_waiting
        assert world.state().wal_start == 0
        answers = await leader.leader.publish(lease_id, [first])
        assert [(one.error, one.is_waiting) for one in answers] == [(ErrorCode.none, False)]
        again = await leader.leader.publish(lease_id, [first, second])
        assert [(one.error, one.is_waiting) for one in again] == [(ErrorCode.none, False)] * 2
        events = len(world.events)
        other_attempt = first._replace(custom_metadata=b"another")
        stale = rest[0]._replace(epoch=0)
        (refused, fenced) = await leader.leader.publish(lease_id, [other_attempt, stale])
        assert refused.error is ErrorCode.invalid_update_version
        assert fenced.error is ErrorCode.fenced_leader_epoch
        assert len(world.events) == events
        world.clock.time_ms += 1_001
        await leader.leader.reconcile_all()  # the lease has expired
        assert leader.leader.renew(lease_id, 1_000) is None
        (late,) = await leader.leader.publish(lease_id, [rest[0]])
        assert late.error is ErrorCode.invalid_update_version
        await settled(world, 2)

    asyncio.run(scene())


def test_retention_moves_the_log_start_first_and_over_both_parts() -> None:
    async def scene() -> None:
        world = await furnished()
        leader = Leader(world, 1, rules=RULES, settings=SETTINGS)
        assert await leader.run_once()
        await world.commit(Sent(size=300))
        young = world.clock.time_ms
        sizes = [one.segment_size_bytes for one in world.view().list()]
        wal = world.batches[TOPIC][-1].size_bytes
        # The size limit of the retention is large enough for all segments except the first two.
        limit = sum(sizes[2:]) + wal
        led = {"rules": RULES, "may_copy": False, "retention": Retention(size_bytes=limit)}
        for kill_at in (3, 5, 7, 9):
            await Leader(world, 2, Steps(world, kill_at, after=True), **led).run_once()
        assert await Leader(world, 3, **led).run_once() == 0
        left = world.view().list()
        assert len(left) == len(sizes) - 2
        assert world.state().log_start == left[0].start_offset
        assert len(world.view(OTHER).list()) > 0
        # All records in remote storage are too old, so their segments are deleted. For the records in the
        # WAL, the coordinator applies retention.
        world.clock.time_ms = max(young, left[0].max_timestamp_ms) + 1_001
        led["retention"] = Retention(ms=1_000)
        await Leader(world, 4, **led).run_once()
        assert world.state().log_start == world.state().wal_start < world.state().next
        assert await world.tiered_keys() == set()
        await world.check()

    asyncio.run(scene())


def test_requests_to_a_faulty_store_are_repeated_and_leave_no_objects() -> None:
    async def scene() -> None:
        for seed in range(1, 7):
            world = await furnished()
            entropy = SeededEntropy(seed)
            store = FaultyStorage(world.store, entropy)
            store.weather.failed_chance = store.weather.answer_lost_chance = 0.2
            leader = Leader(world, 1, storage=ObjectStorageManager(store), rules=RULES, settings=SETTINGS)
            for _ in range(3):
                assert await leader.run_once() is not None
            store.weather.failed_chance = store.weather.answer_lost_chance = 0.0
            await settled(world, 2)

    asyncio.run(scene())
