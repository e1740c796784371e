"""The transition of a group from one generation to the next. Pure.

In the prepare phase all members must join. The phase ends when all members have joined or when the rebalance
timeout is over. In the complete phase the members of the generation are known. The members get responses to
their joins, and the group waits for the leader's assignment. If a group was empty, its prepare phase does not
end when all members have joined: it waits ``group.initial.rebalance.delay.ms`` for further members.
"""

from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.sessions import answer_join, answer_sync, dismiss, restart_heartbeat
from moldau.coordinators.groups.classic.states import GroupState, can_rebalance
from moldau.coordinators.groups.operation import JoinTimer, SyncTimer, Turn
from moldau.coordinators.groups.records import GroupRecord
from moldau.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.runtime import ErrorCode


def joined(group: Group, member_id: str) -> JoinGroupResponse:
    """Return the JoinGroup response for a member of the current generation. The leader's response lists all
    members."""
    members = list_members(group) if group.is_leader(member_id) else []
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        member_id=member_id,
        members=members,
    )


def list_members(group: Group) -> list[JoinGroupResponseMember]:
    """Return all members with their metadata for the chosen protocol."""
    name = group.protocol_name
    assert name is not None
    return [
        JoinGroupResponseMember(
            member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata(name)
        )
        for member in group.members.values()
    ]


def rebalance_or_complete(turn: Turn, group: Group) -> None:
    """React to a change of the membership: begin a rebalance, or complete the join phase."""
    if can_rebalance(group.state):
        prepare(turn, group)
    else:
        complete_if_all_joined(turn, group)


def prepare(turn: Turn, group: Group) -> None:
    """Ask all members to join the next generation."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        reset_assignments(turn, group, ErrorCode.rebalance_in_progress)
    group.pending_syncs.clear()
    turn.out.cancel_timer(SyncTimer(group.group_id))
    was_empty = group.state is GroupState.EMPTY
    group.move_to(GroupState.PREPARING_REBALANCE, turn.now_ms)
    if was_empty:
        delay_ms = turn.settings.initial_rebalance_delay_ms
        group.member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        turn.out.set_timer(JoinTimer(group.group_id), delay_ms)
    elif group.all_joined:
        complete_join(turn, group)
    else:
        turn.out.set_timer(JoinTimer(group.group_id), group.rebalance_timeout_ms)


def complete_if_all_joined(turn: Turn, group: Group) -> None:
    """End the join phase early if all members have joined. But the join phase of a group that was empty
    always lasts for its whole delay.
    """
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.previous_state is not GroupState.EMPTY
        and group.all_joined
    ):
        complete_join(turn, group)


def on_join_timer(turn: Turn, group: Group) -> None:
    """Handle the end of the time for the join phase."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if group.previous_state is GroupState.EMPTY and group.member_added and group.initial_remaining_ms:
        group.member_added = False
        delay_ms = min(turn.settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        turn.out.set_timer(JoinTimer(group.group_id), delay_ms)
    else:
        complete_join(turn, group)


def complete_join(turn: Turn, group: Group) -> None:
    """Begin the next generation with the joined members.

    Static members stay even when they have not joined. They are removed when their session times out.
    """
    turn.out.cancel_timer(JoinTimer(group.group_id))
    absent = [
        each for each in group.members.values() if each.awaiting_join is None and each.instance_id is None
    ]
    for member in absent:
        dismiss(turn, group, member.member_id)
    if not group.elect_joined_leader() and group.members:
        # All remaining members are static members that have not joined. Wait until one of them joins, or
        # until their sessions end.
        turn.out.set_timer(JoinTimer(group.group_id), group.rebalance_timeout_ms)
        return
    group.next_generation(turn.now_ms)
    if group.state is GroupState.EMPTY:
        turn.out.records.append(GroupRecord(group.group_id, group.stored()))
        return
    for member in group.members.values():
        answer_join(turn, member, joined(group, member.member_id))
        restart_heartbeat(turn, group, member)
        member.is_new = False
        group.pending_syncs[member.member_id] = None
    turn.out.set_timer(SyncTimer(group.group_id), group.rebalance_timeout_ms)


def reset_assignments(turn: Turn, group: Group, error: ErrorCode) -> None:
    """Remove all assignments of the group. Members that wait for their assignment get ``error``, after which
    they join again."""
    for member in group.members.values():
        member.assignment = b""
        if answer_sync(turn, member, SyncGroupResponse(error_code=error)):
            restart_heartbeat(turn, group, member)


def on_sync_timer(turn: Turn, group: Group) -> None:
    """Remove members that joined but did not request their assignment in time. The other members
    rebalance."""
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_syncs:
        return
    for member_id in tuple(group.pending_syncs):
        dismiss(turn, group, member_id)
    prepare(turn, group)


def on_heartbeat_timer(turn: Turn, group: Group, member_id: str) -> None:
    """Handle the time-out of a member's session. For a new member id, handle the end of the time in which a
    client must join with it.
    """
    if member_id in group.pending_joins:
        dismiss(turn, group, member_id)
        complete_if_all_joined(turn, group)
        return
    member = group.members.get(member_id)
    if member is None or member.excused_from_heartbeat:
        return
    dismiss(turn, group, member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        if group.all_joined:
            complete_join(turn, group)
    else:
        rebalance_or_complete(turn, group)
