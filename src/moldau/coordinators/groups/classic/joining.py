"""JoinGroup with KIP-345 (static members), KIP-394 (required member ids) and KIP-814 (skipped assignment).
Pure."""

from dataclasses import dataclass
from typing import Final

from moldau.coordinators.effects import Token
from moldau.coordinators.groups.classic.group import UNKNOWN_MEMBER_ID, Group
from moldau.coordinators.groups.classic.member import ClientFacts, Member
from moldau.coordinators.groups.classic.rebalance import (
    complete_if_all_joined,
    joined,
    list_members,
    rebalance_or_complete,
)
from moldau.coordinators.groups.classic.sessions import (
    answer_join,
    answer_sync,
    dismiss,
    join_error,
    restart_heartbeat,
)
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.operation import HeartbeatTimer, Turn
from moldau.coordinators.groups.records import GroupRecord
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.runtime import ErrorCode, KafkaError

MEMBER_ID_REQUIRED_VERSION: Final = 4
SKIP_ASSIGNMENT_VERSION: Final = 9


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request with its context."""

    token: Token
    request: JoinGroupRequest
    api_version: int
    client: ClientFacts
    new_member_id: str
    """The member gets this id if the request contains no id."""
    metadata_room: int
    """Number of bytes by which the total metadata of all members on this node may still grow."""

    @property
    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((protocol.name, bytes(protocol.metadata)) for protocol in self.request.protocols)

    @property
    def protocol_names(self) -> set[str]:
        return {protocol.name for protocol in self.request.protocols}

    @property
    def metadata_bytes(self) -> int:
        """Size of the member's metadata for all protocols of the request, including the names of the
        protocols."""
        return sum(len(each.name) + len(each.metadata) for each in self.request.protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The timeout of the rebalance. Version 0 has only a session timeout, which is used instead."""
        request = self.request
        return (
            request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms
        )


def join(turn: Turn, group: Group, event: Join) -> None:
    """Handle a join. The response may be sent by a later operation, for example when all members have
    joined."""
    request = event.request
    member_id = request.member_id
    if not _metadata_fit(turn, group, event):
        turn.out.reply(event.token, join_error(ErrorCode.group_max_size_reached, member_id))
    elif not _has_room(turn, group, member_id):
        dismiss(turn, group, member_id)
        turn.out.reply(event.token, join_error(ErrorCode.group_max_size_reached))
        complete_if_all_joined(turn, group)
    elif not group.supports(request.protocol_type, event.protocol_names):
        turn.out.reply(event.token, join_error(ErrorCode.inconsistent_group_protocol, member_id))
    elif member_id == UNKNOWN_MEMBER_ID:
        _join_new(turn, group, event)
    elif member_id in group.pending_joins:
        if request.group_instance_id is not None:
            turn.out.reply(event.token, join_error(ErrorCode.unknown_member_id, member_id))
        else:
            _add(turn, group, event, member_id)
    else:
        _join_known(turn, group, event)


def _metadata_fit(turn: Turn, group: Group, event: Join) -> bool:
    """Whether the limit on metadata allows the join. A join with a small amount of metadata is always
    allowed. If the member has joined before, only the growth of its metadata counts."""
    size = event.metadata_bytes
    member = group.members.get(event.request.member_id)
    kept = 0 if member is None else member.metadata_bytes
    return size <= turn.settings.small_metadata_bytes or size - kept <= event.metadata_room


def _has_room(turn: Turn, group: Group, member_id: str) -> bool:
    """Whether ``group.max.size`` allows the join. During a join phase, only the members with waiting join
    requests are counted. If a group has too many members, those that join last are refused."""
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            if member is not None and member.awaiting_join is not None:
                return True
            return group.awaiting_join_count < turn.settings.max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member_id in group.members or len(group.members) < turn.settings.max_size


def _join_new(turn: Turn, group: Group, event: Join) -> None:
    instance_id = event.request.group_instance_id
    if instance_id is not None:
        old_id = group.static_ids.get(instance_id)
        if old_id is None:
            _add(turn, group, event, event.new_member_id)
        else:
            _replace_static(turn, group, event, old_id)
    elif event.api_version >= MEMBER_ID_REQUIRED_VERSION:
        group.pending_joins[event.new_member_id] = None
        turn.out.set_timer(
            HeartbeatTimer(group.group_id, event.new_member_id), event.request.session_timeout_ms
        )
        turn.out.reply(event.token, join_error(ErrorCode.member_id_required, event.new_member_id))
    else:
        _add(turn, group, event, event.new_member_id)


def _add(turn: Turn, group: Group, event: Join, member_id: str) -> None:
    request = event.request
    member = Member(
        member_id,
        request.group_instance_id,
        event.client,
        event.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocol_type,
        event.protocols,
        is_new=True,
        awaiting_join=event.token,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.member_added = True
    group.add(member)
    # A new member sends no heartbeats before it gets the response. In this time its client may give up and
    # join again, with another new member id. The coordinator cannot detect this, so it keeps the first member
    # only for a limited time.
    restart_heartbeat(turn, group, member, turn.settings.new_member_join_timeout_ms)
    rebalance_or_complete(turn, group)


def _join_known(turn: Turn, group: Group, event: Join) -> None:
    request = event.request
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        turn.out.reply(event.token, join_error(error.code, request.member_id))
        return
    same = member.protocols == event.protocols
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            _rejoin(turn, group, event, member)
        case GroupState.COMPLETING_REBALANCE if same:
            # The member joins again without a change. Perhaps it has not received the first response, so the
            # response is sent again.
            turn.out.reply(event.token, joined(group, member.member_id))
        case GroupState.STABLE if same and not group.is_leader(member.member_id):
            turn.out.reply(event.token, joined(group, member.member_id))
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            # A leader joins again when it detects a change that affects the assignment, for example new
            # partitions.
            _rejoin(turn, group, event, member)
        case GroupState.EMPTY | GroupState.DEAD:
            turn.out.reply(event.token, join_error(ErrorCode.unknown_member_id, member.member_id))


def _rejoin(turn: Turn, group: Group, event: Join, member: Member) -> None:
    _take_over(turn, group, event, member)
    rebalance_or_complete(turn, group)


def _take_over(turn: Turn, group: Group, event: Join, member: Member) -> None:
    """Let this request replace the member's earlier JoinGroup request. The earlier request gets an error, and
    this request gets the member's response."""
    answer_join(turn, member, join_error(ErrorCode.rebalance_in_progress, member.member_id))
    group.update(member, event.protocols, event.rebalance_timeout_ms, event.request.session_timeout_ms)
    member.awaiting_join = event.token


def _replace_static(turn: Turn, group: Group, event: Join, old_id: str) -> None:
    """Handle a restarted process that joins with its ``group.instance.id`` (KIP-345)."""
    old_leader = group.leader
    member = group.members[old_id]
    answer_join(turn, member, join_error(ErrorCode.fenced_instance_id, old_id))
    answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.fenced_instance_id))
    turn.out.cancel_timer(HeartbeatTimer(group.group_id, old_id))
    group.rename_static(old_id, event.new_member_id, event.client)
    _take_over(turn, group, event, member)
    restart_heartbeat(turn, group, member)
    match group.state:
        case GroupState.STABLE if group.select_protocol() == group.protocol_name:
            turn.out.records.append(GroupRecord(group.group_id, group.stored()))
            answer_join(turn, member, _resumed(group, event, old_leader))
        case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
            rebalance_or_complete(turn, group)
        case GroupState.PREPARING_REBALANCE:
            complete_if_all_joined(turn, group)
        case GroupState.EMPTY | GroupState.DEAD:
            raise AssertionError(f"group {group.group_id} has members but is {group.state.value}")


def _resumed(group: Group, event: Join, old_leader: str | None) -> JoinGroupResponse:
    """Answer a static member that has joined again. The generation continues with its assignment.

    If the member is the leader, it must not compute a new assignment. From version 9 on, a field of the
    response prevents this (KIP-814). In older versions, the response names the leader by its former member
    id, so the member does not see itself as the leader.
    """
    member_id = event.new_member_id
    is_leader = group.is_leader(member_id)
    skip = is_leader and event.api_version >= SKIP_ASSIGNMENT_VERSION
    leader = group.leader if event.api_version >= SKIP_ASSIGNMENT_VERSION else old_leader
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader or "",
        skip_assignment=skip,
        member_id=member_id,
        members=list_members(group) if skip else [],
    )
