"""Committed offsets expire by the deletion clock. This clock does not jump if the machine's clock jumps
ahead."""

import asyncio
from uuid import UUID

import pytest

from memory_coordinator_log import MemoryLog
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard_calls import GroupCaller
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.runtime import ErrorCode, Machine
from moldau.simulation.world.world import World

HOUR_MS = 3_600_000
CHECK_S = 60
SETTINGS = GroupSettings(
    offsets_topic_partitions=1,
    offsets_retention_ms=HOUR_MS // 2,
    offsets_retention_check_interval_ms=CHECK_S * 1000,
)
TOPIC_ID = UUID(int=1)


class OneTopic:
    """Metadata with a single topic: ``orders``, which has one partition."""

    def topic_name(self, topic_id: UUID) -> str | None:
        return "orders" if topic_id == TOPIC_ID else None

    def topic_id(self, name: str) -> UUID | None:
        return TOPIC_ID if name == "orders" else None

    def partition_count(self, name: str) -> int:
        return int(name == "orders")


async def commit(service: GroupService, offset: int) -> None:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="orders", partitions=[row])
    answer = await service.offsets.commit(
        GroupCaller(8, "app", "10.0.0.1"), OffsetCommitRequest(group_id="g", topics=[topic])
    )
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none


async def committed(service: GroupService) -> int:
    topic = OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    request = OffsetFetchRequest(group_id="g", topics=[topic])
    answer = await service.offsets.fetch(GroupCaller(7, "app", "10.0.0.1"), request)
    return answer.topics[0].partitions[0].committed_offset


@pytest.mark.parametrize("before_ms", [0, -HOUR_MS], ids=["jumps ahead", "is set right"])
def test_a_new_offset_does_not_expire_because_the_clock_was_wrong(before_ms: int) -> None:
    """The offset's timestamp is too early if the offset was committed while the clock was behind."""
    with World(1) as world:
        host = world.host("node")

        async def story(machine: Machine) -> None:
            service = GroupService(
                machine.clock,
                machine.entropy,
                SETTINGS,
                OneTopic(),
                deletion_clock=machine.deletion_clock,
            )
            service.load(0, 1, MemoryLog())
            await service.runtime.until_loaded(0)
            await asyncio.sleep(1)
            host.clock.jump(before_ms)
            await commit(service, 5)
            host.clock.jump(HOUR_MS)
            await asyncio.sleep(3 * CHECK_S)
            assert await committed(service) == 5
            host.clock.jump(before_ms - HOUR_MS if before_ms == 0 else 0)
            await asyncio.sleep(SETTINGS.offsets_retention_ms / 1000 + 2 * CHECK_S)
            assert await committed(service) == -1
            await service.close()

        async def main() -> None:
            process = host.start(story)
            assert process.main is not None
            await process.main

        world.run(main())
