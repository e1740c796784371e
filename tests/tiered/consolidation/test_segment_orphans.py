"""Objects that belong to no segment are deleted after the grace period. No other object is deleted."""

import asyncio

from consolidation_house import TOPIC, Leader, World
from test_consolidation_kills import GRACE_MS, RULES, furnished, orphan_scan, settled

from moldau.runtime import ErrorCode, InlineWorkers
from moldau.tiered.consolidation.building import build_segments, copy_segment
from moldau.tiered.consolidation.work import BuiltCopy
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager


def test_only_objects_of_other_attempts_are_deleted() -> None:
    async def scene() -> None:
        world = await furnished()
        leader = Leader(world, 1, rules=RULES)
        storage = ObjectStorageManager(world.store)
        plan = await leader.leader.plan("e", max_bytes=10_000, lease_ms=10_000)
        segments = [work.segment for work in plan.work]
        built = await build_segments(segments, world.store, InlineWorkers())
        copies = []
        for attempt in ("one", "two"):
            copies = [
                BuiltCopy(one.partition, one.segment_id, 1, await copy_segment(one, made, storage, attempt))
                for one, made in zip(segments, built, strict=True)
            ]
        first = next(copy for copy in copies if copy.partition == TOPIC)
        (answer,) = await leader.leader.publish(plan.lease_id, [first])
        assert answer.error is ErrorCode.none
        scan = orphan_scan(leader)
        assert await scan.run() == 0  # all these objects are too young
        world.clock.time_ms += GRACE_MS + 1
        assert await scan.run() == 2  # these objects belong to another attempt at the published segment
        assert {f".{name}." in key for key in await world.tiered_keys() for name in ("one", "two")}
        await leader.leader.give_up(plan.lease_id)
        late = await copy_segment(segments[-1], built[-1], storage, "late")
        assert late is not None
        assert await scan.run() == 0
        world.clock.time_ms += GRACE_MS + 1
        assert await scan.run() == 2  # these objects belong to the abandoned segment
        assert await scan.run() == 0
        await world.check()
        await settled_with_attempts(world)

    async def settled_with_attempts(world: World) -> None:
        leader = Leader(world, 2, rules=RULES)
        assert await leader.run_once() is not None
        known = {str(one.id.id) for one in world.segments()}
        for key in await world.tiered_keys():
            assert any(id in key for id in known)
        await world.check()

    asyncio.run(scene())


def test_a_former_leader_deletes_nothing() -> None:
    async def scene() -> None:
        world = await furnished()
        old = Leader(world, 1, rules=RULES)
        await settled(world, 2)
        world.clock.time_ms += GRACE_MS + 1
        before = await world.tiered_keys()
        assert await orphan_scan(old).run() == 0
        assert await world.tiered_keys() == before
        await world.check()

    asyncio.run(scene())
