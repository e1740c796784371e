"""The group coordinator for request handlers. It creates the parts of the coordinator, and handles requests
about any kind of group."""

import asyncio
from collections.abc import Mapping
from typing import Final

from moldau.cluster.internal_topics import CONSUMER_OFFSETS
from moldau.coordinators.groups.classic_service import ClassicGroupService
from moldau.coordinators.groups.codec import ConsumerOffsetsCodec
from moldau.coordinators.groups.offset_service import OffsetService
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.groups.shard_calls import GroupCaller, GroupCalls, GroupRuntime
from moldau.coordinators.groups.tally import GroupTally
from moldau.coordinators.kind import CoordinatorKind, LogPolicy
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.partitioning import coordinator_partition
from moldau.coordinators.topic_directory import TopicDirectory
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from moldau.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from moldau.runtime import Clock, Entropy, ErrorCode, KafkaError, UnexpectedErrors

DELETING_PARTITIONS: Final = 2
"""Number of coordinators that process parts of a DeleteGroups request at the same time. Each part takes about
5 ms."""


_GROUP_NOT_FOUND_DESCRIBE_VERSION: Final = 6


class GroupService:
    """The coordinators of groups that this node leads.

    ``classic`` handles requests of members of classic groups, and ``offsets`` handles requests about
    committed offsets. An error with an error code is returned in the response, not raised.
    """

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        settings: GroupSettings,
        directory: TopicDirectory,
        unexpected: UnexpectedErrors | None = None,
        deletion_clock: Clock | None = None,
    ) -> None:
        """``deletion_clock`` decides which offsets are old enough to expire; the default is ``clock``."""
        expiry_now_ms = None if deletion_clock is None else deletion_clock.now_ms
        self.settings = settings
        self.tally = GroupTally()
        kind: CoordinatorKind[GroupShard, ConsumerOffsetsRecord] = CoordinatorKind(
            topic=CONSUMER_OFFSETS,
            new_shard=lambda partition: GroupShard(settings, self.tally, expiry_now_ms),
            codec=ConsumerOffsetsCodec(),
            run_replay=GroupShard.run_replay,
            policy=LogPolicy(
                compression=settings.offsets_compression,
                # A record contains one offset or one whole group, so no record depends on other records.
                skips_broken=True,
                commit_timeout_ms=settings.offset_commit_timeout_ms,
            ),
            key_type=CoordinatorKeyType.GROUP,
            partition_of=coordinator_partition,
        )
        self.runtime = GroupRuntime(kind, clock, unexpected)
        self._calls = GroupCalls(self.runtime, settings, directory)
        self.classic = ClassicGroupService(self._calls, entropy)
        self.offsets = OffsetService(self._calls, directory)
        self._deletions = asyncio.Semaphore(DELETING_PARTITIONS)

    @property
    def kind(self) -> CoordinatorKind[GroupShard, ConsumerOffsetsRecord]:
        """The description of this kind of coordinators."""
        return self.runtime.kind

    def partition_of(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that stores a group."""
        return self._calls.partition_of(group_id)

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> None:
        """Lead a partition of the offsets topic from ``epoch`` on."""
        self.runtime.load(partition, epoch, log)

    def unload(self, partition: int) -> None:
        """Stop leading the partition."""
        self.runtime.unload(partition)

    async def close(self) -> None:
        """Stop leading all partitions."""
        await self.runtime.close()

    async def describe(self, caller: GroupCaller, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Handle DescribeGroups. The request handler adds the authorised operations."""
        waiting = [
            self._describe_one(group_id, caller.api_version) for group_id in dict.fromkeys(request.groups)
        ]
        return DescribeGroupsResponse(groups=await asyncio.gather(*waiting))

    async def _describe_one(self, group_id: str, api_version: int) -> DescribedGroup:
        try:
            (group,) = await self._calls.read(group_id, lambda shard, now_ms: shard.describe([group_id]))
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        if (
            group.error_code is ErrorCode.group_id_not_found
            and api_version < _GROUP_NOT_FOUND_DESCRIBE_VERSION
        ):
            return DescribedGroup(group_id=group_id, group_state=group.group_state)
        return group

    async def list_groups(self, caller: GroupCaller, request: ListGroupsRequest) -> ListGroupsResponse:
        """Handle ListGroups: the groups of the partitions that this node leads."""
        states, types = tuple(set(request.states_filter)), tuple(set(request.types_filter))
        waiting = [
            self.runtime.read_in_turns(
                partition,
                lambda shard: tuple(shard.classic.by_id),
                lambda shard, now_ms, group_ids: shard.list_groups(group_ids, states, types),
            )
            for partition in self.runtime.partitions
        ]
        groups: list[ListedGroup] = []
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(result, KafkaError):
                if result.code is not ErrorCode.not_coordinator:
                    return ListGroupsResponse(error_code=result.code)
            elif isinstance(result, BaseException):
                raise result
            else:
                groups.extend(result)
        return ListGroupsResponse(groups=groups)

    async def delete_groups(self, caller: GroupCaller, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Handle DeleteGroups. Each group is decided separately."""
        by_partition: dict[int, list[str]] = {}
        for group_id in dict.fromkeys(request.groups_names):
            by_partition.setdefault(self._calls.partition_of(group_id), []).append(group_id)
        waiting = [self._delete_in(partition, ids) for partition, ids in by_partition.items()]
        results: dict[str, DeletableGroupResult] = {}
        for answered in await asyncio.gather(*waiting):
            results.update(answered)
        return DeleteGroupsResponse(
            results=[results[group_id] for group_id in dict.fromkeys(request.groups_names)]
        )

    async def _delete_in(self, partition: int, group_ids: list[str]) -> Mapping[str, DeletableGroupResult]:
        results: dict[str, DeletableGroupResult] = {}
        left = dict.fromkeys(group_ids)
        while left:
            try:
                async with self._deletions:
                    answer: DeleteGroupsResponse = await self.runtime.write(
                        partition, lambda shard, now_ms, token: shard.delete_groups(token, left, now_ms)
                    )
            except KafkaError as error:
                results |= {each: DeletableGroupResult(group_id=each, error_code=error.code) for each in left}
                break
            for result in answer.results:
                results[result.group_id] = result
                del left[result.group_id]
            await asyncio.sleep(0)
        return results
