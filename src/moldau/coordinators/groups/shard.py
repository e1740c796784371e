"""The groups of one partition of ``__consumer_offsets``: a shard that contains two state machines. Pure.

The state machines are the classic groups and the committed offsets. A request for one of them is passed to it
directly. This class passes on records and timers, and handles requests about a group as a whole. Every
operation returns :class:`Effects`: records to write, responses to requests (its own request or waiting
requests), and timers. The state that is restored after a restart is changed only by records.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, assert_never

from moldau.coordinators.effects import BatchKind, Effects, TimerKey, Token
from moldau.coordinators.groups.canonical import canonical
from moldau.coordinators.groups.classic import describing
from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.groups import ClassicGroups
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.offsets.offsets import GroupOffsets
from moldau.coordinators.groups.offsets.operations import check_commit, check_transactional_commit
from moldau.coordinators.groups.offsets.run_replay import OffsetRuns
from moldau.coordinators.groups.operation import ExpiryTimer, Turns
from moldau.coordinators.groups.records import ConsumerOffsetsRecord, GroupRecord, OffsetRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.tally import GroupTally
from moldau.coordinators.shard import CanonicalState
from moldau.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from moldau.protocol.messages.describe_groups import DescribedGroup
from moldau.protocol.messages.list_groups import ListedGroup
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.runtime import ErrorCode, KafkaError

GROUP_ID_NOT_FOUND_VERSION = 9
"""The first version of OffsetCommit whose response for an unknown group is GROUP_ID_NOT_FOUND."""


EXPIRY_A_TURN = 100
"""Number of groups and offsets that an expiry check examines in one iteration of the event loop. The checks
of all partitions may run in the same iteration."""
OFFSETS_A_TURN: Final = 1_000
"""Number of offsets that are deleted in one iteration of the event loop. This takes about 5 ms."""


class GroupShard:
    """Groups by id, and their offsets."""

    def __init__(
        self,
        settings: GroupSettings,
        tally: GroupTally | None = None,
        expiry_now_ms: Callable[[], int] | None = None,
    ) -> None:
        """``expiry_now_ms`` returns the time that decides whether offsets expire. By default it is the time
        of each operation."""
        self.settings = settings
        self._turns = Turns(settings, tally or GroupTally(), expiry_now_ms)
        self.classic = ClassicGroups(self._turns)
        self.offsets = GroupOffsets(self._turns)
        self._to_expire: list[str] = []
        """Groups that the current expiry check has not examined yet. The last group in the list is examined
        next."""

    # records and timers

    def replay(self, offset: int, record: ConsumerOffsetsRecord, kind: BatchKind) -> None:
        """Apply one record."""
        match record:
            case OffsetRecord(value=value):
                if value is not None:
                    self.classic.ensure(record.group_id)
                self.offsets.replay(offset, record, kind)
            case GroupRecord():
                self.classic.replay(record)
            case _:
                assert_never(record)

    def run_replay(self) -> OffsetRuns:
        """Return the faster replay of committed offsets for a load of this shard."""
        return OffsetRuns(self.offsets.store, self.classic.ensure)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Apply the end of a transaction that committed offsets."""
        self.offsets.replay_marker(producer_id, committed)

    def on_loaded(self, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Restart the members' sessions, and schedule the next expiry check."""
        turn = self._turns.begin(now_ms)
        self.classic.on_loaded(turn)
        turn.out.set_timer(ExpiryTimer(), self.settings.offsets_retention_check_interval_ms)
        return turn.out.effects(atomic=False)

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Handle the end of a session, the end of a join or sync phase, or the time of the next expiry
        check."""
        if isinstance(key, ExpiryTimer):
            return self.expire(now_ms)
        turn = self._turns.begin(now_ms)
        self.classic.on_timer(turn, key)
        return turn.out.effects()

    def canonical(self) -> CanonicalState:
        """Return the committed offsets, and the complete generations of the groups by name."""
        return canonical(self.classic.by_id.items(), self.offsets)

    # offsets of a group: the state of the group determines whether they may be changed

    def commit_offsets(
        self, token: Token, request: OffsetCommitRequest, api_version: int, now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Handle OffsetCommit with topics by name. Raises :class:`KafkaError` when the commit is not
        allowed."""
        turn = self._turns.begin(now_ms)
        group = self.classic.by_id.get(request.group_id)
        if group is not None:
            check_commit(group, request)
            self.classic.note_commit(turn, group, request)
        elif request.generation_id_or_member_epoch >= 0:
            unknown = api_version >= GROUP_ID_NOT_FOUND_VERSION
            raise KafkaError(ErrorCode.group_id_not_found if unknown else ErrorCode.illegal_generation)
        self.offsets.commit(turn, token, request)
        return replace(turn.out.effects(), is_refusable=True)

    def commit_offsets_in_transaction(
        self, token: Token, request: OffsetCommitRequest, producer: BatchKind, now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Handle TxnOffsetCommit. The offsets take effect when the transaction is committed (KIP-98,
        KIP-447).

        Raises :class:`KafkaError` when nothing may be committed.
        """
        turn = self._turns.begin(now_ms)
        group = self.classic.by_id.get(request.group_id)
        if group is not None:
            check_transactional_commit(group, request)
        elif request.generation_id_or_member_epoch >= 0:
            raise KafkaError(ErrorCode.illegal_generation)
        self.offsets.commit(turn, token, request)
        return replace(turn.out.effects(), kind=producer, is_refusable=True)

    def delete_offsets(
        self, token: Token, request: OffsetDeleteRequest, now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Handle OffsetDelete. Raises :class:`KafkaError` when no offset may be deleted."""
        turn = self._turns.begin(now_ms)
        group = self._existing(request.group_id)
        self.offsets.delete(turn, token, group, request)
        return replace(turn.out.effects(), is_refusable=True)

    def expire(self, now_ms: int) -> Effects[ConsumerOffsetsRecord]:
        """Remove offsets that are older than their retention, then groups without members and offsets.

        Each call examines some of the groups, and sets the timer for the next groups.
        """
        turn = self._turns.begin(now_ms)
        waiting = self._to_expire or list(reversed(self.classic.by_id))
        work = 0
        while waiting and work < EXPIRY_A_TURN:
            group = self.classic.by_id.get(waiting.pop())
            if group is None:
                continue
            work += 1 + self.offsets.store.count_of(group.group_id)
            found = len(turn.out.records)
            nothing_left = self.offsets.expire(turn, group, OFFSETS_A_TURN)
            if len(turn.out.records) - found == OFFSETS_A_TURN:
                waiting.append(group.group_id)
            if nothing_left and group.state is GroupState.EMPTY and not group.pending_joins:
                turn.out.records.append(GroupRecord(group.group_id, None))
        self._to_expire = waiting
        interval_ms = self.settings.offsets_retention_check_interval_ms
        turn.out.set_timer(ExpiryTimer(), 0 if waiting else interval_ms)
        return turn.out.effects(atomic=False)

    # administration

    def describe(self, group_ids: Iterable[str]) -> list[DescribedGroup]:
        """Handle DescribeGroups."""
        return [describing.describe(group_id, self.classic.by_id.get(group_id)) for group_id in group_ids]

    def list_groups(
        self, group_ids: Iterable[str], states: Iterable[str], types: Iterable[str]
    ) -> list[ListedGroup]:
        """Handle ListGroups for some of the groups. An empty filter matches all groups."""
        by_id = self.classic.by_id
        groups = [by_id[group_id] for group_id in group_ids if group_id in by_id]
        return describing.list_groups(groups, states, types)

    def delete_groups(
        self, token: Token, group_ids: Iterable[str], now_ms: int
    ) -> Effects[ConsumerOffsetsRecord]:
        """Handle DeleteGroups: delete empty groups with their offsets.

        A call deletes a limited number of offsets. If the limit is reached, the remaining groups still exist
        and are not in the result. The first of them may have lost some of its offsets. The caller must call
        this method again for the remaining groups.
        """
        turn = self._turns.begin(now_ms)
        results: list[DeletableGroupResult] = []
        room = OFFSETS_A_TURN
        for group_id in dict.fromkeys(group_ids):
            group = self.classic.by_id.get(group_id)
            error = ErrorCode.none
            if group is None:
                error = ErrorCode.group_id_not_found
            elif group.state is not GroupState.EMPTY:
                error = ErrorCode.non_empty_group
            elif self.offsets.delete_some(turn, group_id, room):
                break
            else:
                self.classic.delete(turn, group)
                room = max(0, OFFSETS_A_TURN - len(turn.out.records))
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        turn.out.reply(token, DeleteGroupsResponse(results=results))
        return turn.out.effects(atomic=False)

    def _existing(self, group_id: str) -> Group:
        group = self.classic.by_id.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"The group {group_id} does not exist.")
        return group
