"""A classic group: its members, generation and state. Pure. Other modules of this folder change it."""

import struct
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from moldau.coordinators.groups.classic.member import ClientFacts, HeldMetadata, Member
from moldau.coordinators.groups.classic.states import TRANSITIONS, GroupState
from moldau.coordinators.groups.records import StoredGroup, StoredMember
from moldau.runtime import ErrorCode, KafkaError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
UNKNOWN_MEMBER_ID: Final = ""


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of ``ConsumerProtocolSubscription`` blobs; ``None`` when a blob is unreadable.

    Only the fields of version 0 are read, because every later version begins with them.
    """
    topics: set[str] = set()
    try:
        for blob in subscriptions:
            topics.update(_topics(blob))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return frozenset(topics)


def _topics(blob: bytes) -> Iterable[str]:
    (version, count) = struct.unpack_from(">hi", blob)
    if version < 0 or count < 0:
        raise ValueError("not a subscription")
    position = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", blob, position)
        position += 2
        name = blob[position : position + length]
        if length < 0 or len(name) != length:
            raise ValueError("a topic name is cut off")
        position += length
        yield name.decode()


class Group:
    """One classic group. Members keep the order in which they joined."""

    def __init__(self, group_id: str, now_ms: int, held: HeldMetadata | None = None) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = now_ms
        """Time of the last change of the state; -1 when an old record lacks it."""
        self.generation = 0
        self.protocol_type: str | None = None
        """The protocol type; ``None`` for a simple group, which only stores offsets."""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        """Member id by ``group.instance.id``."""
        self.pending_joins: dict[str, None] = {}
        """Member ids that clients have got in MEMBER_ID_REQUIRED responses. The clients have not joined with
        these ids yet (KIP-394)."""
        self.pending_syncs: dict[str, None] = {}
        """Members of this generation that have not requested their assignment yet."""
        self.topics: frozenset[str] | None = None
        """Topics of the members' subscriptions; ``None`` when they are unknown."""
        self.member_added = False
        """Whether a member has joined during the initial delay, which is then extended."""
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self._supported: Counter[str] = Counter()
        self._held = held or HeldMetadata()

    # queries

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def awaiting_join_count(self) -> int:
        return sum(member.awaiting_join is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether all members have joined the next generation."""
        return not self.pending_joins and all(
            member.awaiting_join is not None for member in self.members.values()
        )

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read ``topic``. If the subscriptions of a consumer group are unknown, the result is
        True."""
        return self.uses_consumer_protocol if self.topics is None else topic in self.topics

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether a new member with these protocols can be in one group with the other members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        if self.protocol_type != protocol_type:
            return False
        return any(self._supported[name] == len(self.members) for name in names)

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request names.

        Raises UNKNOWN_MEMBER_ID if there is no such member, or FENCED_INSTANCE_ID when a newer process uses
        the same instance id.
        """
        if instance_id is not None:
            owner = self.static_ids.get(instance_id)
            if owner is None:
                raise KafkaError(ErrorCode.unknown_member_id)
            if owner != member_id:
                raise KafkaError(ErrorCode.fenced_instance_id)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        return member

    # changes

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state. A transition that is not allowed raises an error, because it is a bug."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"group {self.group_id}: {self.state.value} -> {state.value} is not legal")
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    def add(self, member: Member) -> None:
        """Add a new member."""
        if member.instance_id is not None:
            assert member.instance_id not in self.static_ids
            self.static_ids[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._supported.update(set(member.protocol_names))
        self._held.size_bytes += member.metadata_bytes
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> Member | None:
        """Remove a member, or a member id that no member has used."""
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._supported.subtract(set(member.protocol_names))
        self._held.size_bytes -= member.metadata_bytes
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def update(
        self,
        member: Member,
        protocols: tuple[tuple[str, bytes], ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Apply the data of a member that joins again."""
        self._supported.subtract(set(member.protocol_names))
        self._held.size_bytes -= member.metadata_bytes
        member.protocols = protocols
        self._supported.update(set(member.protocol_names))
        self._held.size_bytes += member.metadata_bytes
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def rename_static(self, old_id: str, new_id: str, client: ClientFacts) -> Member:
        """Replace a static member by its restarted process, which has a new member id."""
        member = self.members[old_id]
        self.members = {
            (new_id if member_id == old_id else member_id): each for member_id, each in self.members.items()
        }
        member.member_id = new_id
        member.client = client
        assert member.instance_id is not None
        self.static_ids[member.instance_id] = new_id
        if old_id in self.pending_syncs:
            del self.pending_syncs[old_id]
            self.pending_syncs[new_id] = None
        if self.leader == old_id:
            self.leader = new_id
        return member

    def elect_joined_leader(self) -> bool:
        """If the leader is not one of the joining members, choose another leader. Returns False when no
        member is joining."""
        if self.leader is not None and self.members[self.leader].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    def select_protocol(self) -> str:
        """Return the protocol with the most votes. Each member votes for the first protocol in its list that
        all members support. If several protocols have the same number of votes, the protocol that got a vote
        first is chosen."""
        everyone = len(self.members)
        candidates = {name for name, count in self._supported.items() if count == everyone}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def next_generation(self, now_ms: int) -> None:
        """Determine the members of the next generation and its protocol."""
        self.generation += 1
        self.pending_syncs.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self._learn_topics()
        self.move_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    def _learn_topics(self) -> None:
        if not self.uses_consumer_protocol:
            self.topics = None
        elif not self.members:
            self.topics = frozenset()
        elif self.protocol_name is not None:
            name = self.protocol_name
            self.topics = subscribed_topics(member.metadata(name) for member in self.members.values())

    def end(self) -> None:
        """Mark the group as deleted, and subtract the metadata of its members from the total size of
        metadata."""
        self.state = GroupState.DEAD
        for member in self.members.values():
            self._held.size_bytes -= member.metadata_bytes

    # the group's record

    def stored(self, assignments: dict[str, bytes] | None = None) -> StoredGroup:
        """The record of the group. If ``assignments`` is given, these assignments replace the current
        assignments of the members."""
        name = self.protocol_name
        return StoredGroup(
            self.protocol_type or "",
            self.generation,
            name,
            self.leader,
            self.state_timestamp_ms,
            tuple(
                StoredMember(
                    member.member_id,
                    member.instance_id,
                    member.client.client_id,
                    member.client.host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    b"" if name is None else member.metadata(name),
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def restore(cls, group_id: str, stored: StoredGroup, held: HeldMetadata | None = None) -> "Group":
        """The group that a record describes. The group is stable if the record has members; otherwise it is
        empty."""
        group = cls(group_id, stored.state_timestamp_ms, held)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol_name = stored.protocol_name
        group._take_in(stored.members)
        group.leader = stored.leader if stored.members else None
        if stored.members:
            group.previous_state, group.state = GroupState.COMPLETING_REBALANCE, GroupState.STABLE
        group._learn_topics()
        return group

    def _take_in(self, members: Iterable[StoredMember]) -> None:
        for stored in members:
            rebalance_timeout_ms = stored.rebalance_timeout_ms
            if rebalance_timeout_ms < 0:
                rebalance_timeout_ms = stored.session_timeout_ms
            self.add(
                Member(
                    stored.member_id,
                    stored.instance_id,
                    ClientFacts(stored.client_id, stored.client_host),
                    rebalance_timeout_ms,
                    stored.session_timeout_ms,
                    self.protocol_type or "",
                    ((self.protocol_name or "", stored.subscription),),
                    stored.assignment,
                )
            )
