"""The classic groups in a partition of ``__consumer_offsets``. This is one of the state machines of the
shard. Pure.

Each completed generation is stored as a record. State between two generations (such as joining members) is
lost when the shard is closed. The protocol allows this loss, because clients then join again.
"""

from moldau.coordinators.effects import Effects, TimerKey, Token
from moldau.coordinators.groups.classic import joining, rebalance, sessions, syncing
from moldau.coordinators.groups.classic.group import UNKNOWN_MEMBER_ID, Group
from moldau.coordinators.groups.classic.member import HeldMetadata
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.operation import HeartbeatTimer, JoinTimer, SyncTimer, Turn, Turns
from moldau.coordinators.groups.records import ConsumerOffsetsRecord, GroupRecord
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau.runtime import ErrorCode


class ClassicGroups:
    """Groups by id."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.by_id: dict[str, Group] = {}
        self._held = HeldMetadata()
        self._live = False

    # replay

    def replay(self, record: GroupRecord) -> None:
        """Apply one record. If the shard has just decided the record, a record with a value changes nothing,
        because the operation has already changed the group."""
        if record.value is None:
            gone = self.by_id.pop(record.group_id, None)
            if gone is not None:
                gone.end()
        elif not self._live:
            before = self.by_id.get(record.group_id)
            if before is not None:
                before.end()
            self.by_id[record.group_id] = Group.restore(record.group_id, record.value, self._held)

    def ensure(self, group_id: str) -> None:
        """Create the group if it does not exist. A group with committed offsets needs a group object even if
        it has no members."""
        if group_id not in self.by_id:
            self.by_id[group_id] = Group(group_id, -1, self._held)

    def on_loaded(self, turn: Turn) -> None:
        """Restart every member's session timeout. If a group now has more members than ``group.max.size``,
        begin a rebalance of the group."""
        self._live = True
        for group in self.by_id.values():
            for member in group.members.values():
                sessions.restart_heartbeat(turn, group, member)
            if len(group.members) > turn.settings.max_size:
                rebalance.prepare(turn, group)

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        """Handle the end of a session, or the end of a join or sync phase."""
        assert isinstance(key, HeartbeatTimer | JoinTimer | SyncTimer)
        group = self.by_id.get(key.group_id)
        if group is not None:
            match key:
                case HeartbeatTimer(_, member_id):
                    rebalance.on_heartbeat_timer(turn, group, member_id)
                case JoinTimer():
                    rebalance.on_join_timer(turn, group)
                case SyncTimer():
                    rebalance.on_sync_timer(turn, group)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of metadata that the members of all groups keep in memory."""
        return self._held.size_bytes

    # requests of members

    def join(self, event: joining.Join, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Handle JoinGroup. The first member creates the group."""
        turn = self._turns.begin(now_ms)
        request = event.request
        group = self.by_id.get(request.group_id)
        if (
            not turn.settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= (turn.settings.max_session_timeout_ms)
        ):
            error = sessions.join_error(ErrorCode.invalid_session_timeout, request.member_id)
            turn.out.reply(event.token, error)
        elif group is None and request.member_id != UNKNOWN_MEMBER_ID:
            error = sessions.join_error(ErrorCode.unknown_member_id, request.member_id)
            turn.out.reply(event.token, error)
        else:
            if group is None:
                group = self.by_id[request.group_id] = Group(request.group_id, now_ms, self._held)
            joining.join(turn, group, event)
        return turn.out.effects()

    def sync(self, token: Token, request: SyncGroupRequest, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Handle SyncGroup. The response to a follower waits for the leader's assignment."""
        turn = self._turns.begin(now_ms)
        group = self.by_id.get(request.group_id)
        if group is None:
            turn.out.reply(token, SyncGroupResponse(error_code=ErrorCode.unknown_member_id))
        else:
            syncing.sync(turn, group, token, request)
        return turn.out.effects()

    def heartbeat(
        self, token: Token, request: HeartbeatRequest, now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Handle Heartbeat."""
        turn = self._turns.begin(now_ms)
        group = self.by_id.get(request.group_id)
        if group is None:
            turn.out.reply(token, HeartbeatResponse(error_code=ErrorCode.unknown_member_id))
        else:
            syncing.heartbeat(turn, group, token, request)
        return turn.out.effects()

    def leave(self, token: Token, request: LeaveGroupRequest, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Handle LeaveGroup in the form of version 3 and later, with a list of members."""
        turn = self._turns.begin(now_ms)
        group = self.by_id.get(request.group_id)
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

    # methods that the shard's other state machines call

    def note_commit(self, turn: Turn, group: Group, request: OffsetCommitRequest) -> None:
        """Restart the session of the member that commits, because the commit shows that the member is
        alive."""
        member = group.members.get(request.member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            sessions.restart_heartbeat(turn, group, member)

    def delete(self, turn: Turn, group: Group) -> None:
        """Delete an empty group, and its member ids that no member has used."""
        turn.out.records.append(GroupRecord(group.group_id, None))
        for member_id in group.pending_joins:
            turn.out.cancel_timer(HeartbeatTimer(group.group_id, member_id))
