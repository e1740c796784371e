"""A member's session: its heartbeats, its waiting requests, and its end. Pure."""

from moldau.coordinators.groups.classic.group import UNKNOWN_MEMBER_ID, Group
from moldau.coordinators.groups.classic.member import Member
from moldau.coordinators.groups.operation import HeartbeatTimer, Turn
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.runtime import ErrorCode


def join_error(error: ErrorCode, member_id: str = UNKNOWN_MEMBER_ID) -> JoinGroupResponse:
    """The JoinGroup response that refuses a join."""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def restart_heartbeat(turn: Turn, group: Group, member: Member, timeout_ms: int | None = None) -> None:
    """Restart the member's session timeout after a request of the member."""
    turn.out.set_timer(
        HeartbeatTimer(group.group_id, member.member_id),
        member.session_timeout_ms if timeout_ms is None else timeout_ms,
    )


def answer_join(turn: Turn, member: Member, response: JoinGroupResponse) -> None:
    """If the member's join request waits, send its response."""
    if member.awaiting_join is not None:
        turn.out.reply(member.awaiting_join, response)
        member.awaiting_join = None


def answer_sync(turn: Turn, member: Member, response: SyncGroupResponse) -> bool:
    """If the member's sync request waits, send its response. Returns whether a request waited."""
    if member.awaiting_sync is None:
        return False
    turn.out.reply(member.awaiting_sync, response)
    member.awaiting_sync = None
    return True


def dismiss(turn: Turn, group: Group, member_id: str) -> None:
    """Remove a member, or a member id that no member has used. If a request of the member waits, send a
    response."""
    member = group.remove(member_id)
    turn.out.cancel_timer(HeartbeatTimer(group.group_id, member_id))
    if member is not None:
        answer_join(turn, member, join_error(ErrorCode.unknown_member_id))
        answer_sync(turn, member, SyncGroupResponse(error_code=ErrorCode.unknown_member_id))
