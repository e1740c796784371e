"""The group coordinator as request handlers see it: requests in, responses out, errors inside them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from moldau.cluster.internal_topics import CONSUMER_OFFSETS
from moldau.coordinators.effects import Effects, Token
from moldau.coordinators.groups.classic.joining import Join
from moldau.coordinators.groups.classic.member import ClientFacts
from moldau.coordinators.groups.classic.rebalance import join_error
from moldau.coordinators.groups.codec import ConsumerOffsetsCodec
from moldau.coordinators.groups.directory import TopicDirectory
from moldau.coordinators.groups.offsets import requests as offset_requests
from moldau.coordinators.groups.offsets.requests import CommitPlan
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.groups.tally import GroupTally
from moldau.coordinators.kind import CoordinatorKind, LogPolicy
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.partitioning import coordinator_partition
from moldau.coordinators.runtime import CoordinatorRuntime
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
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from moldau.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.runtime import Clock, Entropy, ErrorCode, KafkaError, UnexpectedErrors

logger = logging.getLogger(__name__)

GROUP_KEY_TYPE: Final = 0
"""The key type of FindCoordinator for groups."""

_NULLABLE_PROTOCOL_NAME_VERSION: Final = 7
_PROTOCOL_REQUIRED_SYNC_VERSION: Final = 5
_MEMBER_LIST_VERSION: Final = 3
_GROUP_NOT_FOUND_DESCRIBE_VERSION: Final = 6


@dataclass(frozen=True, slots=True)
class Caller:
    """What a handler knows of a request beside its body."""

    api_version: int
    client_id: str = ""
    host: str = ""
    """The peer's address, as ``127.0.0.1``."""


class GroupService:
    """Finds the partition of a group and lets its shard decide.

    The methods never raise for what Kafka has an error code for; the code is in the response. A call's
    operation runs before its first suspension, so calls made in request order take effect in it.
    """

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        settings: GroupSettings,
        directory: TopicDirectory,
        unexpected: UnexpectedErrors | None = None,
    ) -> None:
        self.settings = settings
        self._entropy = entropy
        self._directory = directory
        self.tally = GroupTally()
        kind: CoordinatorKind[GroupShard, ConsumerOffsetsRecord] = CoordinatorKind(
            topic=CONSUMER_OFFSETS,
            new_shard=lambda partition: GroupShard(settings, self.tally),
            codec=ConsumerOffsetsCodec(),
            policy=LogPolicy(
                compression=settings.offsets_compression,
                # Each record is one offset, or a group whole.
                skips_broken=True,
                commit_timeout_ms=settings.offset_commit_timeout_ms,
            ),
            key_type=GROUP_KEY_TYPE,
            partition_of=coordinator_partition,
        )
        self.runtime: CoordinatorRuntime[GroupShard, ConsumerOffsetsRecord] = CoordinatorRuntime(
            kind, clock, unexpected
        )

    @property
    def kind(self) -> CoordinatorKind[GroupShard, ConsumerOffsetsRecord]:
        """The declaration of group coordinators."""
        return self.runtime.kind

    def partition_of(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that a group lives in (FindCoordinator).

        The topic's own number of partitions counts; the config only says how it is created.
        """
        count = (
            self._directory.partition_count(CONSUMER_OFFSETS.name) or self.settings.offsets_topic_partitions
        )
        return self.kind.partition_of(group_id, count)

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> None:
        """This node leads a partition of the offsets topic."""
        self.runtime.load(partition, epoch, log)

    def unload(self, partition: int) -> None:
        """This node does not lead it any more."""
        self.runtime.unload(partition)

    async def close(self) -> None:
        """Let all partitions go."""
        await self.runtime.close()

    # membership

    async def join(self, caller: Caller, request: JoinGroupRequest) -> JoinGroupResponse:
        """JoinGroup: answers when the generation begins."""
        prefix = request.group_instance_id or caller.client_id
        if request.reason:  # KIP-800
            logger.info(
                "%s joins group %s: %s", request.member_id or prefix, request.group_id, request.reason
            )
        # An address goes into the log and into DescribeGroups in Java's form, where tools expect it.
        client = ClientFacts(caller.client_id, f"/{caller.host}")
        member_id = f"{prefix}-{self._entropy.uuid4()}"

        def operation(shard: GroupShard, now_ms: int, token: Token) -> Effects[ConsumerOffsetsRecord]:
            return shard.join(Join(token, request, caller.api_version, client, member_id), now_ms)

        try:
            response: JoinGroupResponse = await self._write(request.group_id, operation)
        except KafkaError as error:
            response = join_error(error.code, request.member_id)
        if response.protocol_name is None and caller.api_version < _NULLABLE_PROTOCOL_NAME_VERSION:
            return JoinGroupResponse(error_code=response.error_code, member_id=response.member_id)
        return response

    async def sync(self, caller: Caller, request: SyncGroupRequest) -> SyncGroupResponse:
        """SyncGroup: answers when the leader's assignment is committed."""
        if caller.api_version >= _PROTOCOL_REQUIRED_SYNC_VERSION and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return SyncGroupResponse(error_code=ErrorCode.inconsistent_group_protocol)
        try:
            response: SyncGroupResponse = await self._write(
                request.group_id, lambda shard, now_ms, token: shard.sync(token, request, now_ms)
            )
        except KafkaError as error:
            # A load forgets who has joined: the member has to join again, not to sync again.
            loading = error.code is ErrorCode.coordinator_load_in_progress
            return SyncGroupResponse(error_code=ErrorCode.rebalance_in_progress if loading else error.code)
        return response

    async def heartbeat(self, caller: Caller, request: HeartbeatRequest) -> HeartbeatResponse:
        """Heartbeat."""
        try:
            response: HeartbeatResponse = await self._write(
                request.group_id, lambda shard, now_ms, token: shard.heartbeat(token, request, now_ms)
            )
        except KafkaError as error:
            # While the group is being loaded nobody's session can end, so there is nothing to report.
            loading = error.code is ErrorCode.coordinator_load_in_progress
            return HeartbeatResponse(error_code=ErrorCode.none if loading else error.code)
        return response

    async def leave(self, caller: Caller, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """LeaveGroup."""
        for member in request.members:
            if member.reason:  # KIP-800
                logger.info("%s leaves group %s: %s", member.member_id, request.group_id, member.reason)
        single = caller.api_version < _MEMBER_LIST_VERSION
        if single:
            members = [MemberIdentity(member_id=request.member_id)]
            request = LeaveGroupRequest(group_id=request.group_id, members=members)
        try:
            response: LeaveGroupResponse = await self._write(
                request.group_id, lambda shard, now_ms, token: shard.leave(token, request, now_ms)
            )
        except KafkaError as error:
            return LeaveGroupResponse(error_code=error.code)
        if single:
            return LeaveGroupResponse(error_code=response.members[0].error_code)
        return response

    # offsets

    async def commit(self, caller: Caller, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """OffsetCommit: topics and partitions that do not exist are refused one by one."""
        plan = CommitPlan(request, caller.api_version, self._directory)
        try:
            answer: OffsetCommitResponse = await self.runtime.write(
                self.partition_of(request.group_id),
                lambda shard, now_ms, token: shard.commit_offsets(
                    token, plan.request, caller.api_version, now_ms
                ),
            )
        except KafkaError as error:
            return offset_requests.commit_error(request, error.code)
        return plan.response(answer)

    async def fetch(self, caller: Caller, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """OffsetFetch, of one group or several."""
        groups = offset_requests.fetch_groups(request, caller.api_version)
        waiting = [
            self._fetch_group(group, caller.api_version, require_stable=request.require_stable)
            for group in offset_requests.without_repetitions(groups)
        ]
        return offset_requests.fetch_response(await asyncio.gather(*waiting), caller.api_version)

    async def _fetch_group(
        self, group: OffsetFetchRequestGroup, api_version: int, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        wanted = offset_requests.FetchPlan(group, api_version, self._directory)
        try:
            topics = await self.runtime.read(
                self.partition_of(group.group_id),
                lambda shard, now_ms: shard.fetch_offsets(
                    group.group_id, wanted.topics, self._directory.topic_id, require_stable=require_stable
                ),
            )
        except KafkaError as error:
            return offset_requests.fetch_error(group, error.code, api_version)
        return wanted.response(topics)

    async def delete_offsets(self, caller: Caller, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """OffsetDelete."""
        known, refused = [], {}
        for topic in request.topics:
            count = self._directory.partition_count(topic.name)
            present = [each for each in topic.partitions if 0 <= each.partition_index < count]
            absent = [
                each.partition_index for each in topic.partitions if not 0 <= each.partition_index < count
            ]
            refused[topic.name] = [
                OffsetDeleteResponsePartition(
                    partition_index=index, error_code=ErrorCode.unknown_topic_or_partition
                )
                for index in absent
            ]
            known.append(OffsetDeleteRequestTopic(name=topic.name, partitions=present))
        checked = OffsetDeleteRequest(group_id=request.group_id, topics=known)
        try:
            answer: OffsetDeleteResponse = await self._write(
                request.group_id, lambda shard, now_ms, token: shard.delete_offsets(token, checked, now_ms)
            )
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        topics = [
            OffsetDeleteResponseTopic(name=topic.name, partitions=[*topic.partitions, *refused[topic.name]])
            for topic in answer.topics
        ]
        return OffsetDeleteResponse(topics=topics)

    async def forget_topics(self, is_gone: Callable[[str, int], bool]) -> None:
        """Topics were deleted: write tombstones for their offsets in all partitions led here.

        Best effort: a partition that cannot be written now is tidied by the offsets' retention.
        """
        waiting = [
            self.runtime.write(
                partition, lambda shard, now_ms, token: shard.forget_partitions(token, is_gone, now_ms)
            )
            for partition in self.runtime.partitions
        ]
        await asyncio.gather(*waiting, return_exceptions=True)

    # administration

    async def describe(self, caller: Caller, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """DescribeGroups. Authorised operations are the handler's to fill in."""
        waiting = [
            self._describe_one(group_id, caller.api_version) for group_id in dict.fromkeys(request.groups)
        ]
        return DescribeGroupsResponse(groups=await asyncio.gather(*waiting))

    async def _describe_one(self, group_id: str, api_version: int) -> DescribedGroup:
        try:
            (group,) = await self.runtime.read(
                self.partition_of(group_id), lambda shard, now_ms: shard.describe([group_id])
            )
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        if (
            group.error_code is ErrorCode.group_id_not_found
            and api_version < _GROUP_NOT_FOUND_DESCRIBE_VERSION
        ):
            return DescribedGroup(group_id=group_id, group_state=group.group_state)
        return group

    async def list_groups(self, caller: Caller, request: ListGroupsRequest) -> ListGroupsResponse:
        """ListGroups: those of the partitions led here."""
        states, types = tuple(set(request.states_filter)), tuple(set(request.types_filter))
        waiting = [
            self.runtime.read(
                partition,
                lambda shard, now_ms: shard.list_groups(states, types),
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

    async def delete_groups(self, caller: Caller, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """DeleteGroups: each group stands for itself."""
        by_partition: dict[int, list[str]] = {}
        for group_id in dict.fromkeys(request.groups_names):
            by_partition.setdefault(self.partition_of(group_id), []).append(group_id)
        waiting = [self._delete_in(partition, ids) for partition, ids in by_partition.items()]
        results: dict[str, DeletableGroupResult] = {}
        for answered in await asyncio.gather(*waiting):
            results.update(answered)
        return DeleteGroupsResponse(
            results=[results[group_id] for group_id in dict.fromkeys(request.groups_names)]
        )

    async def _delete_in(self, partition: int, group_ids: list[str]) -> Mapping[str, DeletableGroupResult]:
        results: Iterable[DeletableGroupResult]
        try:
            answer: DeleteGroupsResponse = await self.runtime.write(
                partition, lambda shard, now_ms, token: shard.delete_groups(token, group_ids, now_ms)
            )
            results = answer.results
        except KafkaError as error:
            code = error.code
            results = [DeletableGroupResult(group_id=each, error_code=code) for each in group_ids]
        return {result.group_id: result for result in results}

    def _write(
        self, group_id: str, operation: Callable[[GroupShard, int, Token], Effects[ConsumerOffsetsRecord]]
    ) -> "asyncio.Future[Any]":
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "The group id is empty.")
        return self.runtime.write(self.partition_of(group_id), operation)
