"""The groups of one partition of ``__consumer_offsets``: a pure shard.

Every operation returns :class:`Effects`: records to write, replies to requests (its own or ones that
have waited since an earlier operation) and timers. Only records change what a restart brings back:
committed offsets change by replay alone; of a group, each completed generation is written down, and
what is going on in between (who waits to join) is lost with the shard, as its members expect.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never
from uuid import UUID

from moldau.coordinators.effects import BatchKind, Effects, TimerKey, Token
from moldau.coordinators.groups.classic import describing, joining, rebalance, syncing
from moldau.coordinators.groups.classic.group import UNKNOWN_MEMBER_ID, Group
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.offsets import operations as offsets
from moldau.coordinators.groups.offsets.store import OffsetStore
from moldau.coordinators.groups.records import ConsumerOffsetsRecord, GroupRecord, OffsetRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.tally import GroupTally
from moldau.coordinators.groups.turn import ExpiryTimer, HeartbeatTimer, JoinTimer, SyncTimer, Turn
from moldau.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from moldau.protocol.messages.describe_groups import DescribedGroup
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from moldau.protocol.messages.list_groups import ListedGroup
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchResponseTopics
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.runtime import ErrorCode, KafkaError

GROUP_ID_NOT_FOUND_VERSION = 9
"""From this version on, an OffsetCommit for an unknown group learns that it is the group that is missing."""


class GroupShard:
    """Groups by id, and their offsets."""

    def __init__(self, settings: GroupSettings, tally: GroupTally | None = None) -> None:
        self.settings = settings
        self._tally = tally or GroupTally()
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore()
        self._live = False

    # replay

    def replay(self, offset: int, record: ConsumerOffsetsRecord, kind: BatchKind) -> None:
        """Apply one record. A live shard's groups are already what their record says."""
        match record:
            case OffsetRecord(group_id, topic, partition, value):
                if value is None:
                    self.offsets.remove(group_id, (topic, partition))
                    return
                if group_id not in self.groups:
                    self.groups[group_id] = Group(group_id, -1)
                self.offsets.put(
                    group_id, (topic, partition), value, offset, kind.producer_id, kind.transactional
                )
            case GroupRecord(group_id, stored):
                if stored is None:
                    gone = self.groups.pop(group_id, None)
                    if gone is not None:
                        gone.state = GroupState.DEAD
                elif not self._live:
                    self.groups[group_id] = Group.restore(group_id, stored)
            case _:
                assert_never(record)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """A transaction that committed offsets has ended."""
        self.offsets.end_transaction(producer_id, committed)

    def on_loaded(self, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Give every member its session timeout again; a group that is too large has to rebalance."""
        self._live = True
        turn = self._turn(now_ms)
        for group in self.groups.values():
            for member in group.members.values():
                rebalance.restart_heartbeat(turn, group, member)
            if len(group.members) > self.settings.max_size:
                rebalance.prepare(turn, group)
        turn.out.set_timer(ExpiryTimer(), self.settings.offsets_retention_check_interval_ms)
        return turn.out.effects(atomic=False)

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """A session, a join or sync phase, or the wait for the next look at expiry is over."""
        if isinstance(key, ExpiryTimer):
            return self.expire(now_ms)
        turn = self._turn(now_ms)
        assert isinstance(key, HeartbeatTimer | JoinTimer | SyncTimer)
        group = self.groups.get(key.group_id)
        if group is not None:
            match key:
                case HeartbeatTimer(_, member_id):
                    rebalance.on_heartbeat_timer(turn, group, member_id)
                case JoinTimer():
                    rebalance.on_join_timer(turn, group)
                case SyncTimer():
                    rebalance.on_sync_timer(turn, group)
        return turn.out.effects()

    # membership

    def join(self, event: joining.Join, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """JoinGroup; a group comes into being with its first member."""
        turn = self._turn(now_ms)
        request = event.request
        group = self.groups.get(request.group_id)
        if (
            not self.settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= (self.settings.max_session_timeout_ms)
        ):
            error = rebalance.join_error(ErrorCode.invalid_session_timeout, request.member_id)
            turn.out.reply(event.token, error)
        elif group is None and request.member_id != UNKNOWN_MEMBER_ID:
            error = rebalance.join_error(ErrorCode.unknown_member_id, request.member_id)
            turn.out.reply(event.token, error)
        else:
            if group is None:
                group = self.groups[request.group_id] = Group(request.group_id, now_ms)
            joining.join(turn, group, event)
        return turn.out.effects()

    def sync(self, token: Token, request: SyncGroupRequest, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """SyncGroup; a follower's answer waits for the leader's assignment."""
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is None:
            turn.out.reply(token, SyncGroupResponse(error_code=ErrorCode.unknown_member_id))
        else:
            syncing.sync(turn, group, token, request)
        return turn.out.effects()

    def heartbeat(
        self, token: Token, request: HeartbeatRequest, now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Heartbeat."""
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is None:
            turn.out.reply(token, HeartbeatResponse(error_code=ErrorCode.unknown_member_id))
        else:
            syncing.heartbeat(turn, group, token, request)
        return turn.out.effects()

    def leave(self, token: Token, request: LeaveGroupRequest, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """LeaveGroup in the form of version 3 and later: members in a list."""
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is None:
            results = [
                MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=ErrorCode.unknown_member_id,
                )
                for member in request.members
            ]
            turn.out.reply(token, LeaveGroupResponse(members=results))
        else:
            syncing.leave(turn, group, token, list(request.members))
        return turn.out.effects()

    # offsets

    def commit_offsets(
        self, token: Token, request: OffsetCommitRequest, api_version: int, now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """OffsetCommit with topics by name. Raises :class:`KafkaError` when nothing may be committed."""
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is not None:
            offsets.check_commit(group, request)
            member = group.members.get(request.member_id)
            if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
                rebalance.restart_heartbeat(turn, group, member)
        elif request.generation_id_or_member_epoch >= 0:
            unknown = api_version >= GROUP_ID_NOT_FOUND_VERSION
            raise KafkaError(ErrorCode.group_id_not_found if unknown else ErrorCode.illegal_generation)
        topics = offsets.commit(turn, request)
        turn.out.reply(token, OffsetCommitResponse(topics=topics))
        return turn.out.effects()

    def fetch_offsets(
        self,
        group_id: str,
        topics: Iterable[tuple[str, Sequence[int]]] | None,
        topic_id_of: Callable[[str], UUID | None],
        *,
        require_stable: bool,
    ) -> list[OffsetFetchResponseTopics]:
        """OffsetFetch of one group; ``topics`` is ``None`` for all. An unknown group has no offsets."""
        return offsets.fetch(self.offsets, group_id, topics, topic_id_of, require_stable=require_stable)

    def delete_offsets(
        self, token: Token, request: OffsetDeleteRequest, now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """OffsetDelete. Raises :class:`KafkaError` when none may be deleted."""
        turn = self._turn(now_ms)
        group = self._existing(request.group_id)
        topics = offsets.delete(turn, self.offsets, group, request.topics)
        turn.out.reply(token, OffsetDeleteResponse(topics=topics))
        return turn.out.effects()

    def forget_partitions(
        self, token: Token, is_gone: Callable[[str, int], bool], now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Topics were deleted: their offsets go, too. Answers the number of tombstones."""
        turn = self._turn(now_ms)
        for group_id in list(self.offsets.group_ids()):
            turn.out.records.extend(
                OffsetRecord(group_id, topic, partition, None)
                for topic, partition in self.offsets.places(group_id)
                if is_gone(topic, partition)
            )
        turn.out.reply(token, len(turn.out.records))
        return turn.out.effects(atomic=False)

    def expire(self, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Forget offsets past their retention, then groups that have neither members nor offsets."""
        turn = self._turn(now_ms)
        for group in self.groups.values():
            nothing_left = offsets.expire(turn, self.offsets, group)
            if nothing_left and group.state is GroupState.EMPTY and not group.pending_joins:
                turn.out.records.append(GroupRecord(group.group_id, None))
        turn.out.set_timer(ExpiryTimer(), self.settings.offsets_retention_check_interval_ms)
        return turn.out.effects(atomic=False)

    # administration

    def describe(self, group_ids: Iterable[str]) -> list[DescribedGroup]:
        """DescribeGroups."""
        return [describing.describe(group_id, self.groups.get(group_id)) for group_id in group_ids]

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        """ListGroups; empty filters let everything pass."""
        return describing.list_groups(self.groups.values(), states, types)

    def delete_groups(
        self, token: Token, group_ids: Iterable[str], now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """DeleteGroups: empty ones, with their offsets."""
        turn = self._turn(now_ms)
        results = []
        for group_id in dict.fromkeys(group_ids):
            group = self.groups.get(group_id)
            error = ErrorCode.none
            if group is None:
                error = ErrorCode.group_id_not_found
            elif group.state is not GroupState.EMPTY:
                error = ErrorCode.non_empty_group
            else:
                turn.out.records.extend(
                    OffsetRecord(group_id, topic, partition, None)
                    for topic, partition in self.offsets.places(group_id)
                )
                turn.out.records.append(GroupRecord(group_id, None))
                for member_id in group.pending_joins:
                    turn.out.cancel_timer(HeartbeatTimer(group_id, member_id))
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        turn.out.reply(token, DeleteGroupsResponse(results=results))
        return turn.out.effects(atomic=False)

    def _turn(self, now_ms: int) -> Turn:
        return Turn(self.settings, now_ms, self._tally)

    def _existing(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"The group {group_id} does not exist.")
        return group
