"""Random histories of a group. The invariants must be true for any behaviour of its members."""

import contextlib

import hypothesis.strategies as st
from group_model import GroupModel, subscription
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.states import TRANSITIONS, GroupState
from moldau.coordinators.groups.operation import HeartbeatTimer, JoinTimer, SyncTimer
from moldau.coordinators.groups.records import GroupRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.runtime import ErrorCode, KafkaError

INSTANCES = (None, None, None, "one", "two")
PROTOCOLS = (("range", "sticky"), ("sticky", "range"), ("range",))
TOPICS = ("orders", "returns")


class GroupLife(RuleBasedStateMachine):
    """Clients that usually follow the protocol, in a group of at most four members."""

    model: GroupModel

    @initialize(
        delay_ms=st.sampled_from([0, 3_000]), instances=st.lists(st.sampled_from(INSTANCES), max_size=3)
    )
    def begin(self, delay_ms: int, instances: list[str | None]) -> None:
        self.model = GroupModel(
            GroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=4, offsets_retention_ms=400_000)
        )
        self.ids: dict[str, str | None] = {}
        """All member ids that the group has assigned, with their instance ids."""
        self.instance_of: dict[int, str | None] = {}
        self.generation = 0
        self.written_generation = 0
        self.leaders: dict[int, set[str]] = {}
        self.assigned: dict[tuple[int, str], bytes] = {}
        self.synced: dict[int, tuple[int, str]] = {}
        for instance in instances:
            self.join_new(instance, PROTOCOLS[0], 3)
        self.cooperate()

    @property
    def group(self) -> Group | None:
        return self.model.shard.classic.by_id.get("g")

    def _some_id(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.ids)), label="member")

    # Actions of clients

    @rule()
    def cooperate(self) -> None:
        """All members join and sync correctly."""
        group = self.group
        if group is None:
            return
        for member_id in list(group.members):
            member = group.members.get(member_id)
            if member is not None and member.awaiting_join is None and member_id in self.ids:
                self._join_again(member_id, PROTOCOLS[0], "orders")
        self.model.advance(6_000)
        self._look()
        leader = group.leader
        for member_id in [each for each in group.members if each != leader] + ([leader] if leader else []):
            if member_id in self.ids:
                self._sync(member_id, group.generation)

    @rule(
        instance=st.sampled_from(INSTANCES),
        protocols=st.sampled_from(PROTOCOLS),
        version=st.sampled_from([3, 9]),
    )
    def join_new(self, instance: str | None, protocols: tuple[str, ...], version: int) -> None:
        offered = tuple((name, subscription("orders")) for name in protocols)
        token = self.model.join("c", instance_id=instance, protocols=offered, version=version)
        self.instance_of[token] = instance
        self._look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), protocols=st.sampled_from(PROTOCOLS), topic=st.sampled_from(TOPICS))
    def join_again(self, data: st.DataObject, protocols: tuple[str, ...], topic: str) -> None:
        self._join_again(self._some_id(data), protocols, topic)

    def _join_again(self, member_id: str, protocols: tuple[str, ...], topic: str) -> None:
        offered = tuple((name, subscription(topic)) for name in protocols)
        token = self.model.join("c", member_id, instance_id=self.ids[member_id], protocols=offered)
        self.instance_of[token] = self.ids[member_id]
        self._look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, data: st.DataObject, behind: int) -> None:
        member_id = self._some_id(data)
        group = self.group
        self._sync(member_id, (group.generation if group else 0) - behind)

    def _sync(self, member_id: str, generation: int) -> None:
        assignments = {each: f"{each}@{generation}".encode() for each in self.ids}
        token = self.model.sync(member_id, generation, assignments, instance_id=self.ids[member_id])
        self.synced[token] = (generation, member_id)
        self._look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        member_id = self._some_id(data)
        group = self.group
        self.model.heartbeat(member_id, group.generation if group else 0, instance_id=self.ids[member_id])
        self._look()

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member_id = self._some_id(data)
        self.model.leave((member_id, self.ids[member_id]))
        self._look()

    @rule(instance=st.sampled_from(["one", "two"]))
    def remove_static(self, instance: str) -> None:
        self.model.leave(("", instance))
        self._look()

    @rule(data=st.data(), offset=st.integers(0, 9), topic=st.sampled_from(TOPICS))
    def commit(self, data: st.DataObject, offset: int, topic: str) -> None:
        member_id, generation = "", -1
        group = self.group
        if group is not None and group.members:
            member_id, generation = data.draw(st.sampled_from(sorted(group.members))), group.generation
        with contextlib.suppress(KafkaError):
            self.model.commit(offset, topic=topic, member_id=member_id, generation=generation)
        self._look()

    @rule(by_ms=st.sampled_from([1, 2_999, 10_000, 30_000, 600_000]))
    def wait(self, by_ms: int) -> None:
        self.model.advance(by_ms)
        self._look()

    @rule()
    def restart(self) -> None:
        self.model.asked.clear()
        self.synced.clear()
        self.model.start()
        self.generation = 0
        self.leaders.clear()
        self.assigned.clear()
        self._look()

    # Invariants

    def _look(self) -> None:
        """Check the responses and records since the last check."""
        for record in self.model.fresh_records:
            if isinstance(record, GroupRecord):
                if record.value is None:
                    self._forget_generations()
                else:
                    assert record.value.generation >= self.written_generation
                    self.written_generation = record.value.generation
        ended = GroupRecord("g", None) in self.model.fresh_records
        for token, response in self.model.fresh_replies:
            if isinstance(response, JoinGroupResponse):
                self._check_join(token, response)
            elif isinstance(response, SyncGroupResponse) and response.error_code is ErrorCode.none:
                generation, member_id = self.synced[token]
                first = self.assigned.setdefault((generation, member_id), response.assignment)
                assert first == response.assignment
        self.model.fresh_records.clear()
        self.model.fresh_replies.clear()
        if ended and self.group is None:
            self._forget_generations()

    def _forget_generations(self) -> None:
        """Called when the group was removed. A new group with the same name begins again with the first
        generation."""
        self.written_generation = self.generation = 0
        self.leaders.clear()
        self.assigned.clear()

    def _check_join(self, token: int, response: JoinGroupResponse) -> None:
        if response.member_id:
            self.ids.setdefault(response.member_id, self.instance_of.get(token))
        if response.error_code is not ErrorCode.none:
            return
        if response.members and not response.skip_assignment:
            assert response.leader == response.member_id
            assert response.member_id in {member.member_id for member in response.members}
            self.leaders.setdefault(response.generation_id, set()).add(response.member_id)

    @invariant()
    def every_unanswered_request_is_remembered_once(self) -> None:
        waiting = [
            token
            for group in self.model.shard.classic.by_id.values()
            for member in group.members.values()
            for token in (member.awaiting_join, member.awaiting_sync)
            if token is not None
        ]
        assert sorted(waiting) == sorted(self.model.asked)

    @invariant()
    def held_metadata_are_those_of_the_members(self) -> None:
        classic = self.model.shard.classic
        assert classic.metadata_bytes == sum(
            member.metadata_bytes for group in classic.by_id.values() for member in group.members.values()
        )

    @invariant()
    def generations_grow_and_have_one_leader(self) -> None:
        group = self.group
        if group is None:
            return
        assert group.generation >= self.generation
        self.generation = group.generation
        assert (group.leader in group.members) == bool(group.members)
        assert all(len(leaders) == 1 for leaders in self.leaders.values())

    @invariant()
    def members_fit_the_state(self) -> None:
        group = self.group
        if group is None:
            return
        assert group.state in TRANSITIONS
        if group.state is GroupState.EMPTY:
            assert not group.members
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.members
            assert all(group.protocol_name in member.protocol_names for member in group.members.values())
            assert all(member.awaiting_join is None for member in group.members.values())
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert all(member.awaiting_sync is None for member in group.members.values())
        assert group.static_ids == {
            member.instance_id: member_id for member_id, member in group.members.items() if member.instance_id
        }
        assert len(group.members) <= self.model.settings.max_size or group.state is not GroupState.STABLE

    @invariant()
    def nobody_is_forgotten_by_the_clock(self) -> None:
        group = self.group
        timers = self.model.session_timers()
        if group is None:
            return
        for member in group.members.values():
            assert member.excused_from_heartbeat or HeartbeatTimer("g", member.member_id) in timers
        for member_id in group.pending_joins:
            assert HeartbeatTimer("g", member_id) in timers
        assert (JoinTimer("g") in timers) == (group.state is GroupState.PREPARING_REBALANCE)
        assert (SyncTimer("g") in timers) == bool(group.pending_syncs)

    @invariant()
    def a_restart_brings_back_what_was_settled(self) -> None:
        restored = self.model.replayed()
        live = self.model.shard
        assert restored.offsets.store.of_group("g") == live.offsets.store.of_group("g")
        group, again = self.group, restored.classic.by_id.get("g")
        if group is not None and group.state is GroupState.STABLE:
            assert again is not None
            assert again.state is GroupState.STABLE
            assert again.stored() == group.stored()
            assert again.topics == group.topics


GroupLife.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGroupLife = GroupLife.TestCase
