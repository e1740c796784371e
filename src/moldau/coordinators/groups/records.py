"""What shards of groups write to ``__consumer_offsets``, apart from its encoding. Pure."""

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A consumer's position in one partition."""

    offset: int
    leader_epoch: int
    """-1 when the client did not say."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """When an OffsetCommit of version 2-4 set a retention time of its own; else -1."""
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset, or with ``value=None`` its tombstone."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member as it is written down: with the metadata of the chosen protocol only."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A generation of a group."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]

    @property
    def size_bytes(self) -> int:
        """About what it takes in the log."""
        return sum(
            len(member.subscription)
            + len(member.assignment)
            + 2 * len(member.member_id)
            + len(member.client_id)
            + len(member.client_host)
            + 40
            for member in self.members
        )


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group, or with ``value=None`` its tombstone."""

    group_id: str
    value: StoredGroup | None


ConsumerOffsetsRecord: TypeAlias = OffsetRecord | GroupRecord
