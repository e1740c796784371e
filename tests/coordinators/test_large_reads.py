"""Reads of very many rows: in turns of the event loop, and complete."""

import asyncio
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from moldau.coordinators.groups.calls import GroupCaller
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.log import MemoryLog
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.runtime import SeededEntropy, SystemClock
from moldau.simulation.world.world import World

PARTITIONS = 5_000


class OneWideTopic:
    def topic_name(self, topic_id: UUID) -> str | None:
        return "wide"

    def topic_id(self, name: str) -> UUID | None:
        return UUID(int=7)

    def partition_count(self, name: str) -> int:
        return PARTITIONS if name == "wide" else 0


async def turns_of(answer: Awaitable[Any]) -> tuple[Any, int]:
    """An answer, and the turns of the loop until it was there."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    result = await answer
    counting.cancel()
    return result, turns


def commit(group_id: str, count: int) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=number)
        for number in range(count)
    ]
    topics = [OffsetCommitRequestTopic(name="wide", partitions=partitions)]
    return OffsetCommitRequest(group_id=group_id, topics=topics)


def test_many_groups_and_many_offsets_are_read_in_turns() -> None:
    async def main() -> None:
        settings = GroupSettings(offsets_topic_partitions=1)
        service = GroupService(SystemClock(), SeededEntropy(1), settings, OneWideTopic())
        service.load(0, 1, MemoryLog())
        await service.runtime.until_loaded(0)
        await service.offsets.commit(GroupCaller(8, "app", "10.0.0.1"), commit("large", PARTITIONS))
        for number in range(1_000):
            await service.offsets.commit(GroupCaller(8, "app", "10.0.0.1"), commit(f"g{number}", 1))
        listed, turns = await turns_of(
            service.list_groups(GroupCaller(5, "app", "10.0.0.1"), ListGroupsRequest())
        )
        assert len(listed.groups) == 1_001
        assert turns >= 4
        fetched, turns = await turns_of(
            service.offsets.fetch(
                GroupCaller(7, "app", "10.0.0.1"), OffsetFetchRequest(group_id="large", topics=None)
            )
        )
        assert [(topic.name, len(topic.partitions)) for topic in fetched.topics] == [("wide", PARTITIONS)]
        assert [each.committed_offset for each in fetched.topics[0].partitions] == list(range(PARTITIONS))
        assert turns >= 20
        await service.close()

    with World(1) as world:
        world.run(main())
