"""The group service over the runtime and a log in memory. The tests send whole sequences of requests, also
over restarts."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from memory_coordinator_log import MemoryLog
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard_calls import GroupCaller
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.records.groups import encode_subscription
from moldau.runtime import ErrorCode, KafkaError, SeededEntropy
from moldau.simulation.world.world import World

ORDERS, GONE = UUID(int=1), UUID(int=99)
SETTINGS = GroupSettings(
    offsets_topic_partitions=1,
    initial_rebalance_delay_ms=0,
    min_session_timeout_ms=1,
    offset_metadata_max_bytes=9,
)


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


class OneTopic:
    """Metadata with a single topic: ``orders``, which has three partitions."""

    def __init__(self, orders: UUID) -> None:
        self.orders = orders

    def topic_name(self, topic_id: UUID) -> str | None:
        return "orders" if topic_id == self.orders else None

    def topic_id(self, name: str) -> UUID | None:
        return self.orders if name == "orders" else None

    def partition_count(self, name: str) -> int:
        return 3 if name == "orders" else 0


def caller(version: int) -> GroupCaller:
    return GroupCaller(version, "app", "10.0.0.1")


async def start(log: MemoryLog, seed: int = 1, orders: UUID = ORDERS) -> GroupService:
    service = GroupService(FixedClock(), SeededEntropy(seed), SETTINGS, OneTopic(orders))
    service.load(0, 1, log)
    await service.runtime.until_loaded(0)
    return service


def in_virtual_time(story: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time, so that a busy machine causes no time-out."""
    with World(1) as world:
        world.run(story)


def run(test: Callable[[GroupService, MemoryLog], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        log = MemoryLog()
        service = await start(log)
        await test(service, log)
        await service.close()

    in_virtual_time(main())


SUBSCRIPTION = encode_subscription(ConsumerProtocolSubscription(topics=["orders"]), 0)


def join_request(member_id: str = "", instance_id: str | None = None, **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=fields.get("session_timeout_ms", 10_000),
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    )


async def join_stable(service: GroupService, instance_id: str | None = None) -> JoinGroupResponse:
    """One member that has joined, and has synced with the assignment ``mine``."""
    joined = await service.classic.join(
        caller(3 if instance_id is None else 5), join_request("", instance_id)
    )
    assert joined.error_code is ErrorCode.none
    synced = await service.classic.sync(
        caller(3),
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
        ),
    )
    assert synced.assignment == b"mine"
    return joined


def commit_request(*positions: tuple[int, int], topic: str = "orders", **fields: Any) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        for partition, offset in positions
    ]
    return OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)], **fields
    )


async def fetch_all(service: GroupService) -> dict[tuple[str, int], int]:
    answer = await service.offsets.fetch(caller(7), OffsetFetchRequest(group_id="g", topics=None))
    assert answer.error_code is ErrorCode.none
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }


def test_a_member_joins_syncs_beats_and_leaves() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        first = await service.classic.join(caller(9), join_request())
        assert first.error_code is ErrorCode.member_id_required
        assert first.member_id.startswith("app-")
        assert first.protocol_name is None
        joined = await service.classic.join(caller(9), join_request(first.member_id))
        assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, first.member_id, "range")
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=first.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=first.member_id, assignment=b"a")],
        )
        synced = await service.classic.sync(caller(5), sync)
        assert (synced.assignment, synced.protocol_name) == (b"a", "range")
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=first.member_id)
        assert (await service.classic.heartbeat(caller(4), beat)).error_code is ErrorCode.none
        left = await service.classic.leave(
            caller(2), LeaveGroupRequest(group_id="g", member_id=first.member_id)
        )
        assert left.error_code is ErrorCode.none
        assert (await service.classic.heartbeat(caller(4), beat)).error_code is ErrorCode.unknown_member_id

    run(test)


def test_old_joins_never_see_a_null_protocol_name() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        refused = await service.classic.join(caller(5), join_request("nobody"))
        assert (refused.error_code, refused.protocol_name) == (ErrorCode.unknown_member_id, "")

    run(test)


def test_a_sync_of_version_5_must_name_its_protocol() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        answer = await service.classic.sync(caller(5), SyncGroupRequest(group_id="g"))
        assert answer.error_code is ErrorCode.inconsistent_group_protocol

    run(test)


def test_an_empty_group_id_is_invalid_for_members_and_fine_for_offsets() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        assert (
            await service.classic.join(caller(9), JoinGroupRequest())
        ).error_code is ErrorCode.invalid_group_id
        beat = await service.classic.heartbeat(caller(4), HeartbeatRequest())
        assert beat.error_code is ErrorCode.invalid_group_id
        committed = await service.offsets.commit(
            caller(8),
            OffsetCommitRequest(
                topics=[OffsetCommitRequestTopic(name="orders", partitions=[OffsetCommitRequestPartition()])]
            ),
        )
        assert committed.topics[0].partitions[0].error_code is ErrorCode.none

    run(test)


def test_a_restart_restores_groups_offsets_and_sessions() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        joined = await join_stable(service, "i-1")
        mine = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id, "group_instance_id": "i-1"}
        await service.offsets.commit(caller(7), commit_request((0, 10), (2, 30), **mine))
        await service.offsets.commit(caller(7), commit_request((0, 11), **mine))
        before = await service.describe(caller(5), DescribeGroupsRequest(groups=["g"]))
        await service.close()
        service = await start(log, seed=2)
        assert await service.describe(caller(5), DescribeGroupsRequest(groups=["g"])) == before
        assert before.groups[0].group_state == "Stable"
        assert before.groups[0].members[0].client_host == "/10.0.0.1"
        assert before.groups[0].members[0].member_assignment == b"mine"
        assert await fetch_all(service) == {("orders", 0): 11, ("orders", 2): 30}
        beat = HeartbeatRequest(
            group_id="g", generation_id=1, member_id=joined.member_id, group_instance_id="i-1"
        )
        assert (await service.classic.heartbeat(caller(4), beat)).error_code is ErrorCode.none
        # A restarted static member continues without a rebalance. It must not compute a new assignment.
        again = await service.classic.join(caller(9), join_request("", "i-1"))
        assert (again.generation_id, again.skip_assignment) == (1, True)
        assert again.leader == again.member_id != joined.member_id
        assert (await service.classic.heartbeat(caller(4), beat)).error_code is ErrorCode.fenced_instance_id
        await service.close()

    run(test)


def test_a_restored_member_that_stays_silent_loses_its_session() -> None:
    async def main() -> None:
        log = MemoryLog()
        service = await start(log)
        request = join_request(session_timeout_ms=5)
        joined = await service.classic.join(caller(3), request)
        await service.classic.sync(
            caller(3), SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        )
        await service.close()
        service = await start(log)
        end = log.log_end_offset
        await log.until(end + 1)
        described = await service.describe(caller(5), DescribeGroupsRequest(groups=["g"]))
        assert described.groups[0].group_state == "Empty"
        await service.close()

    in_virtual_time(main())


def test_loading_and_absent_coordinators() -> None:
    async def main() -> None:
        service = GroupService(FixedClock(), SeededEntropy(1), SETTINGS, OneTopic(ORDERS))
        assert (await service.classic.join(caller(9), join_request())).error_code is ErrorCode.not_coordinator
        fetched = await service.offsets.fetch(caller(7), OffsetFetchRequest(group_id="g", topics=None))
        assert fetched.error_code is ErrorCode.not_coordinator
        assert (await service.list_groups(caller(5), ListGroupsRequest())).groups == []
        service.load(0, 1, MemoryLog())
        loading = ErrorCode.coordinator_load_in_progress
        assert (await service.classic.join(caller(9), join_request())).error_code is loading
        assert (
            await service.classic.heartbeat(caller(4), HeartbeatRequest(group_id="g"))
        ).error_code is ErrorCode.none
        synced = await service.classic.sync(caller(3), SyncGroupRequest(group_id="g"))
        assert synced.error_code is ErrorCode.rebalance_in_progress
        committed = await service.offsets.commit(caller(8), commit_request((0, 1)))
        assert committed.topics[0].partitions[0].error_code is loading
        assert (await service.list_groups(caller(5), ListGroupsRequest())).error_code is loading
        await service.close()

    in_virtual_time(main())


def test_joins_that_wait_are_answered_when_the_partition_moves() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        await join_stable(service)
        waiting = asyncio.ensure_future(service.classic.join(caller(3), join_request()))
        await asyncio.sleep(0)
        service.unload(0)
        assert (await waiting).error_code is ErrorCode.not_coordinator

    run(test)


def test_sync_and_commit_get_errors_that_clients_understand_from_a_failing_log() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        joined = await service.classic.join(caller(3), join_request())
        log.failure = KafkaError(ErrorCode.not_enough_replicas)
        synced = await service.classic.sync(
            caller(3), SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        )
        assert synced.error_code is ErrorCode.coordinator_not_available
        log.failure = None
        await service.runtime.until_loaded(0)
        # The log refused the records of the new generation. So the reloaded coordinator does not know the
        # member, and the member must join again.
        rejoined = await service.classic.join(caller(3), join_request(joined.member_id))
        assert rejoined.error_code is ErrorCode.unknown_member_id

    run(test)


def test_commits_check_topics_partitions_and_metadata() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        request = OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="missing", partitions=[OffsetCommitRequestPartition(partition_index=0)]
                ),
                OffsetCommitRequestTopic(
                    name="orders",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=7),
                        OffsetCommitRequestPartition(partition_index=1, committed_metadata="0123456789"),
                        OffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=5,
                            committed_leader_epoch=3,
                            committed_metadata="m",
                        ),
                    ],
                ),
            ],
        )
        answer = await service.offsets.commit(caller(8), request)
        codes = [
            (topic.name, each.partition_index, each.error_code.name)
            for topic in answer.topics
            for each in topic.partitions
        ]
        assert codes == [
            ("missing", 0, "unknown_topic_or_partition"),
            ("orders", 7, "unknown_topic_or_partition"),
            ("orders", 1, "offset_metadata_too_large"),
            ("orders", 0, "none"),
        ]
        fetched = await service.offsets.fetch(
            caller(5),
            OffsetFetchRequest(
                group_id="g", topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])]
            ),
        )
        found = [
            (each.partition_index, each.committed_offset, each.committed_leader_epoch, each.metadata)
            for each in fetched.topics[0].partitions
        ]
        assert found == [(0, 5, 3, "m"), (1, -1, -1, "")]

    run(test)


def test_an_unknown_group_has_no_offsets_and_no_error() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        answer = await service.offsets.fetch(
            caller(9),
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id="unknown",
                        topics=[OffsetFetchRequestTopics(name="orders", partition_indexes=[0])],
                    ),
                    OffsetFetchRequestGroup(group_id="other", topics=None),
                ]
            ),
        )
        first, second = answer.groups
        assert (first.error_code, second.error_code) == (ErrorCode.none, ErrorCode.none)
        assert first.topics[0].partitions[0].committed_offset == -1
        assert second.topics == []

    run(test)


def test_version_10_names_topics_by_id() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=4)]
        committed = await service.offsets.commit(
            caller(10),
            OffsetCommitRequest(
                group_id="g",
                topics=[
                    OffsetCommitRequestTopic(topic_id=GONE, partitions=partitions),
                    OffsetCommitRequestTopic(topic_id=ORDERS, partitions=partitions),
                ],
            ),
        )
        assert [(each.topic_id, each.partitions[0].error_code) for each in committed.topics] == [
            (GONE, ErrorCode.unknown_topic_id),
            (ORDERS, ErrorCode.none),
        ]
        fetched = await service.offsets.fetch(
            caller(10),
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id="g",
                        topics=[
                            OffsetFetchRequestTopics(topic_id=GONE, partition_indexes=[0]),
                            OffsetFetchRequestTopics(topic_id=ORDERS, partition_indexes=[0]),
                        ],
                    ),
                    OffsetFetchRequestGroup(group_id="g", topics=None),
                ]
            ),
        )
        some, everything = fetched.groups
        assert [
            (topic.topic_id, each.committed_offset, each.error_code)
            for topic in some.topics
            for each in topic.partitions
        ] == [(GONE, -1, ErrorCode.unknown_topic_id), (ORDERS, 4, ErrorCode.none)]
        assert [topic.topic_id for topic in everything.topics] == [ORDERS]

    run(test)


def test_commits_for_a_group_that_does_not_exist() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        request = commit_request((0, 1), generation_id_or_member_epoch=3, member_id="m")
        codes = [
            (await service.offsets.commit(caller(version), request)).topics[0].partitions[0].error_code
            for version in (8, 9)
        ]
        assert codes == [ErrorCode.illegal_generation, ErrorCode.group_id_not_found]

    run(test)


def test_only_members_commit_while_there_are_any() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        joined = await join_stable(service)

        async def code(**fields: Any) -> ErrorCode:
            return (
                (await service.offsets.commit(caller(8), commit_request((0, 1), **fields)))
                .topics[0]
                .partitions[0]
                .error_code
            )

        assert await code() is ErrorCode.unknown_member_id
        assert await code(generation_id_or_member_epoch=1, member_id="x") is ErrorCode.unknown_member_id
        assert (
            await code(generation_id_or_member_epoch=9, member_id=joined.member_id)
            is ErrorCode.illegal_generation
        )
        assert await code(generation_id_or_member_epoch=1, member_id=joined.member_id) is ErrorCode.none

    run(test)


def test_offsets_of_topics_in_use_are_not_deleted() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        joined = await join_stable(service)
        await service.offsets.commit(
            caller(8),
            commit_request((0, 1), (1, 2), generation_id_or_member_epoch=1, member_id=joined.member_id),
        )
        request = OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="orders",
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=0),
                        OffsetDeleteRequestPartition(partition_index=8),
                    ],
                )
            ],
        )
        refused = await service.offsets.delete(caller(0), request)
        assert [each.error_code.name for each in refused.topics[0].partitions] == [
            "group_subscribed_to_topic",
            "unknown_topic_or_partition",
        ]
        await service.classic.leave(
            caller(3),
            LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=joined.member_id)]),
        )
        accepted = await service.offsets.delete(caller(0), request)
        assert accepted.topics[0].partitions[0].error_code is ErrorCode.none
        assert await fetch_all(service) == {("orders", 1): 2}
        unknown = await service.offsets.delete(caller(0), OffsetDeleteRequest(group_id="nobody"))
        assert unknown.error_code is ErrorCode.group_id_not_found

    run(test)


def test_groups_are_listed_described_and_deleted() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        joined = await join_stable(service)
        listed = await service.list_groups(caller(5), ListGroupsRequest(states_filter=["stable"]))
        assert [(each.group_id, each.group_state, each.group_type) for each in listed.groups] == [
            ("g", "Stable", "classic")
        ]
        assert not (await service.list_groups(caller(5), ListGroupsRequest(states_filter=["Empty"]))).groups
        assert not (await service.list_groups(caller(5), ListGroupsRequest(types_filter=["share"]))).groups
        delete = DeleteGroupsRequest(groups_names=["g", "nobody"])
        codes = [each.error_code.name for each in (await service.delete_groups(caller(2), delete)).results]
        assert codes == ["non_empty_group", "group_id_not_found"]
        await service.classic.leave(caller(0), LeaveGroupRequest(group_id="g", member_id=joined.member_id))
        await service.offsets.commit(caller(8), commit_request((0, 1)))
        codes = [each.error_code.name for each in (await service.delete_groups(caller(2), delete)).results]
        assert codes == ["none", "group_id_not_found"]
        assert await fetch_all(service) == {}
        old = await service.describe(caller(5), DescribeGroupsRequest(groups=["g"]))
        new = await service.describe(caller(6), DescribeGroupsRequest(groups=["g"]))
        assert (old.groups[0].group_state, old.groups[0].error_code) == ("Dead", ErrorCode.none)
        assert new.groups[0].error_code is ErrorCode.group_id_not_found
        await service.close()
        service = await start(log)
        assert not (await service.list_groups(caller(5), ListGroupsRequest())).groups
        await service.close()

    run(test)


def test_offsets_of_deleted_topics_are_forgotten() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        await service.offsets.commit(caller(8), commit_request((0, 1), (1, 1)))
        await service.offsets.forget_topics(lambda topic, partition: partition == 0)
        assert await fetch_all(service) == {("orders", 1): 1}

    run(test)


def test_offsets_of_an_earlier_topic_of_the_same_name_are_not_returned() -> None:
    async def test(service: GroupService, log: MemoryLog) -> None:
        await service.offsets.commit(caller(8), commit_request((0, 1)))
        await service.close()
        service = await start(log, orders=UUID(int=2))
        assert await fetch_all(service) == {}
        answer = await service.offsets.fetch(
            caller(7),
            OffsetFetchRequest(
                group_id="g", topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
            ),
        )
        assert answer.topics[0].partitions[0].committed_offset == -1
        await service.offsets.commit(caller(8), commit_request((0, 5)))
        assert await fetch_all(service) == {("orders", 0): 5}
        await service.close()

    run(test)
