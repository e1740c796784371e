"""If this broker does not lead a partition any more, an engine begins no copy of its segments. The objects of
such a copy would belong to no segment, and if the topic was deleted, they would never be deleted."""

import asyncio

from consolidation_house import TOPIC, Leader, World
from test_consolidation_kills import OTHER, RULES, furnished

from moldau.tiered.consolidation.engine import EngineSettings
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager
from moldau.tiered.storage.storage_manager import LogSegmentData

ONE_SEGMENT_A_UNIT = EngineSettings(unit_bytes=1, plan_bytes=10_000)


class NotingStorage(ObjectStorageManager):
    """Notes the partitions of all copies. At the first copy, the broker stops leading a partition."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.leader: Leader | None = None
        self.copied_later: list[int] = []

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        assert self.leader is not None
        if TOPIC in self.leader.led:
            del self.leader.led[TOPIC]
        else:
            self.copied_later.append(metadata.id.partition)
        return await super().copy_log_segment_data(metadata, data)


def test_a_deleted_topic_is_not_copied_any_more() -> None:
    async def scene() -> None:
        world = await furnished()
        storage = NotingStorage(world)
        storage.leader = leader = Leader(world, storage=storage, rules=RULES, settings=ONE_SEGMENT_A_UNIT)
        assert await leader.run_once() is not None
        assert TOPIC.partition not in storage.copied_later
        assert OTHER.partition in storage.copied_later
        assert world.state(OTHER).wal_start == world.state(OTHER).next
        await world.check()

    asyncio.run(scene())
