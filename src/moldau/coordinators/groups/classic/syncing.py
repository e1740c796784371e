"""SyncGroup, Heartbeat and LeaveGroup: the requests of a member within a generation. Pure."""

from moldau.coordinators.effects import Token
from moldau.coordinators.groups.classic.group import UNKNOWN_MEMBER_ID, Group
from moldau.coordinators.groups.classic.rebalance import (
    complete_if_all_joined,
    prepare,
    rebalance_or_complete,
    reset_assignments,
)
from moldau.coordinators.groups.classic.sessions import answer_sync, dismiss, restart_heartbeat
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.operation import SyncTimer, Turn
from moldau.coordinators.groups.records import GroupRecord
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.runtime import ErrorCode, KafkaError


def sync(turn: Turn, group: Group, token: Token, request: SyncGroupRequest) -> None:
    """Handle SyncGroup: a member requests its assignment. If the member is the leader, its request contains
    the assignments of all members."""
    error = _refusal(group, request)
    if error is not ErrorCode.none:
        turn.out.reply(token, SyncGroupResponse(error_code=error))
        return
    member = group.members[request.member_id]
    match group.state:
        case GroupState.COMPLETING_REBALANCE:
            answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.rebalance_in_progress))
            member.awaiting_sync = token
            _has_synced(turn, group, member.member_id)
            if group.is_leader(member.member_id):
                _assign(turn, group, {each.member_id: bytes(each.assignment) for each in request.assignments})
        case GroupState.STABLE:
            _has_synced(turn, group, member.member_id)
            turn.out.reply(token, assigned(group, member.assignment))
        case GroupState.PREPARING_REBALANCE:
            turn.out.reply(token, SyncGroupResponse(error_code=ErrorCode.rebalance_in_progress))
        case GroupState.EMPTY | GroupState.DEAD:
            turn.out.reply(token, SyncGroupResponse(error_code=ErrorCode.unknown_member_id))


def assigned(group: Group, assignment: bytes) -> SyncGroupResponse:
    """Return the SyncGroup response with a member's assignment in the present generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )


def heartbeat(turn: Turn, group: Group, token: Token, request: HeartbeatRequest) -> None:
    """Handle Heartbeat: restart the member's session. The response shows whether the member must join
    again."""
    error = ErrorCode.none
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.illegal_generation)
    except KafkaError as refusal:
        error = refusal.code
    else:
        restart_heartbeat(turn, group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.rebalance_in_progress
    turn.out.reply(token, HeartbeatResponse(error_code=error))


def leave(turn: Turn, group: Group, token: Token, identities: list[MemberIdentity]) -> None:
    """Remove members that leave. An operator may also remove static members by instance id."""
    results = [
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=_leave_one(turn, group, identity),
        )
        for identity in identities
    ]
    turn.out.reply(token, LeaveGroupResponse(members=results))
    if any(result.error_code is ErrorCode.none for result in results):
        match group.state:
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                rebalance_or_complete(turn, group)
            case GroupState.PREPARING_REBALANCE:
                complete_if_all_joined(turn, group)
            case GroupState.EMPTY | GroupState.DEAD:
                pass


def _leave_one(turn: Turn, group: Group, identity: MemberIdentity) -> ErrorCode:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if member_id == UNKNOWN_MEMBER_ID:
        if instance_id is None or instance_id not in group.static_ids:
            return ErrorCode.unknown_member_id
        member_id = group.static_ids[instance_id]
    elif member_id not in group.pending_joins:
        try:
            group.check_member(member_id, instance_id)
        except KafkaError as error:
            return error.code
    dismiss(turn, group, member_id)
    return ErrorCode.none


def _refusal(group: Group, request: SyncGroupRequest) -> ErrorCode:
    try:
        group.check_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        return error.code
    if request.generation_id != group.generation:
        return ErrorCode.illegal_generation
    for said, known in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if said is not None and known is not None and said != known:
            return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


def _has_synced(turn: Turn, group: Group, member_id: str) -> None:
    group.pending_syncs.pop(member_id, None)
    if not group.pending_syncs:
        turn.out.cancel_timer(SyncTimer(group.group_id))


def _assign(turn: Turn, group: Group, assignments: dict[str, bytes]) -> None:
    """Complete the generation: store it, and send the responses to all waiting members."""
    stored = group.stored(assignments)
    if stored.batch_size_bytes(group.group_id) > turn.settings.max_write_bytes:
        # The record of the group would be too large for one batch. Therefore the assignment is refused.
        reset_assignments(turn, group, ErrorCode.unknown_server_error)
        prepare(turn, group)
        return
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.move_to(GroupState.STABLE, turn.now_ms)
    turn.tally.completed_rebalances += 1
    turn.out.records.append(GroupRecord(group.group_id, group.stored()))
    for member in group.members.values():
        if answer_sync(turn, member, assigned(group, member.assignment)):
            restart_heartbeat(turn, group, member)
