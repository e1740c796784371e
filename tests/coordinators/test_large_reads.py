"""Reads and deletions of very many rows. The results are complete, and the work is divided over several
iterations of the event loop."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

from memory_coordinator_log import MemoryLog
from moldau.coordinators.effects import PLAIN
from moldau.coordinators.groups.offset_service import FORGOTTEN_A_TURN
from moldau.coordinators.groups.records import GroupRecord
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import OFFSETS_A_TURN
from moldau.coordinators.groups.shard_calls import GroupCaller
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.runtime import ErrorCode, SeededEntropy, SystemClock
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
    """A response, and the number of iterations of the event loop until it was ready."""
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


async def started() -> GroupService:
    settings = GroupSettings(offsets_topic_partitions=1, offsets_retention_check_interval_ms=60_000)
    service = GroupService(SystemClock(), SeededEntropy(1), settings, OneWideTopic())
    service.load(0, 1, MemoryLog())
    await service.runtime.until_loaded(0)
    return service


def test_many_groups_and_many_offsets_are_read_in_turns() -> None:
    async def main() -> None:
        service = await started()
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


def test_offsets_of_a_deleted_topic_are_forgotten_in_turns() -> None:
    async def main() -> None:
        service = await started()
        for number in range(1_000):
            await service.offsets.commit(GroupCaller(8, "app", "10.0.0.1"), commit(f"g{number}", 1))
        _, turns = await turns_of(service.offsets.forget_topics(lambda topic, partition: True))
        (shard,) = service.runtime.shards()
        assert shard.offsets.store.count == 0
        assert turns >= 4
        await service.close()

    with World(1) as world:
        world.run(main())


async def largest_step(service: GroupService, work: Awaitable[Any]) -> tuple[Any, int]:
    """The result of ``work``, and the maximum number of offsets that were removed in one iteration of the
    event loop."""
    (shard,) = service.runtime.shards()
    task, largest = asyncio.ensure_future(work), 0
    while not task.done():
        before = shard.offsets.store.count
        await asyncio.sleep(0)
        largest = max(largest, before - shard.offsets.store.count)
    return task.result(), largest


def test_groups_with_many_offsets_are_deleted_in_turns() -> None:
    async def main() -> None:
        service = await started()
        names = ["large", *(f"g{number}" for number in range(100)), "other"]
        for name in names:
            count = PARTITIONS if name in ("large", "other") else 30
            await service.offsets.commit(GroupCaller(8, "app", "10.0.0.1"), commit(name, count))
        request = DeleteGroupsRequest(groups_names=[*names, "nobody"])
        deletion = service.delete_groups(GroupCaller(2, "app", "10.0.0.1"), request)
        answer, largest = await largest_step(service, deletion)
        assert [(each.group_id, each.error_code) for each in answer.results] == [
            *((name, ErrorCode.none) for name in names),
            ("nobody", ErrorCode.group_id_not_found),
        ]
        (shard,) = service.runtime.shards()
        assert shard.offsets.store.count == len(shard.classic.by_id) == 0
        assert largest <= OFFSETS_A_TURN
        await service.close()

    with World(1) as world:
        world.run(main())


def test_a_group_that_gets_a_member_while_it_is_deleted_stays() -> None:
    async def main() -> None:
        service = await started()
        await service.offsets.commit(GroupCaller(8, "app", "10.0.0.1"), commit("large", PARTITIONS))
        (shard,) = service.runtime.shards()
        request = DeleteGroupsRequest(groups_names=["large"])
        deletion = asyncio.ensure_future(service.delete_groups(GroupCaller(2, "app", "10.0.0.1"), request))
        while shard.offsets.store.count == PARTITIONS:  # noqa: ASYNC110
            await asyncio.sleep(0)
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        join = JoinGroupRequest(
            group_id="large",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=protocols,
        )
        joining = asyncio.ensure_future(service.classic.join(GroupCaller(3, "app", "10.0.0.1"), join))
        answer = await deletion
        assert [each.error_code for each in answer.results] == [ErrorCode.non_empty_group]
        assert 0 < shard.offsets.store.count < PARTITIONS
        assert (await joining).error_code is ErrorCode.none
        await service.close()

    with World(1) as world:
        world.run(main())


def test_offsets_of_wide_groups_are_forgotten_in_turns() -> None:
    async def main() -> None:
        service = await started()
        (shard,) = service.runtime.shards()
        for name in ("a", "b", "c"):
            await service.offsets.commit(GroupCaller(8, "app", "10.0.0.1"), commit(name, PARTITIONS))
        forgetting = service.offsets.forget_topics(lambda topic, partition: partition >= 1_500)
        _, largest = await largest_step(service, forgetting)
        assert shard.offsets.store.count == 3 * 1_500
        assert largest <= FORGOTTEN_A_TURN
        await service.close()

    with World(1) as world:
        world.run(main())


def test_many_groups_are_checked_for_expiry_in_turns() -> None:
    async def main() -> None:
        service = await started()
        (shard,) = service.runtime.shards()
        for number in range(1_000):
            shard.replay(number, GroupRecord(f"g{number}", None), PLAIN)
            shard.classic.ensure(f"g{number}")
        remaining: list[int] = []
        while len(remaining) < 3 or remaining[-1]:
            await asyncio.sleep(0 if remaining else 60)
            if not remaining or len(shard.classic.by_id) != remaining[-1]:
                remaining.append(len(shard.classic.by_id))
        assert all(before - after == 100 for before, after in pairwise(remaining))
        await service.close()

    with World(1) as world:
        world.run(main())


def test_a_commit_too_large_for_a_batch_does_not_affect_other_commits() -> None:
    async def main() -> None:
        service = await started()
        one, large = GroupCaller(8, "app", "10.0.0.1"), commit("large", PARTITIONS)
        (topic,) = large.topics
        partitions = [replace(each, committed_metadata="x" * 4_000) for each in topic.partitions]
        large = replace(large, topics=[replace(topic, partitions=partitions)])
        answers = await asyncio.gather(
            service.offsets.commit(one, commit("small", 1)),
            service.offsets.commit(one, large),
            service.offsets.commit(one, commit("other", 1)),
        )
        codes = [answer.topics[0].partitions[0].error_code for answer in answers]
        assert codes == [ErrorCode.none, ErrorCode.unknown_server_error, ErrorCode.none]
        (shard,) = service.runtime.shards()
        assert {"small", "other"} == set(shard.offsets.store.group_ids())
        await service.close()

    with World(1) as world:
        world.run(main())
