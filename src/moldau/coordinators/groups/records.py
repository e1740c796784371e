"""Records of ``__consumer_offsets`` as Python objects. Their encoding is in another module. Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID


class CommittedOffset(NamedTuple):
    """A consumer's position in one partition."""

    offset: int
    leader_epoch: int
    """The leader epoch of the commit; -1 when the client did not send it."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """The time at which the offset expires, if an OffsetCommit of version 2-4 contains a retention time;
    otherwise -1."""
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset; ``value=None`` is a tombstone."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member as the record contains it. It has only the metadata for the chosen protocol."""

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

    def batch_size_bytes(self, group_id: str) -> int:
        """Return an upper limit for the size of the batch with this group's record. If it is above the
        maximum size of a batch, the caller must refuse the change of the group."""
        names = _sizes(group_id, self.protocol_type, self.protocol_name, self.leader)
        return (
            _FIXED_BYTES
            + names
            + sum(
                len(member.subscription)
                + len(member.assignment)
                + _sizes(member.member_id, member.instance_id, member.client_id, member.client_host)
                + _FIXED_BYTES_A_MEMBER
                for member in self.members
            )
        )


_FIXED_BYTES: Final = 61 + 26 + 4 + 26
"""Size of the fixed parts of a group's batch: the batch header, the record header and the key, and the
numbers and the lengths of texts in the value."""
_FIXED_BYTES_A_MEMBER: Final = 24


def _sizes(*texts: str | None) -> int:
    return sum(len(text.encode()) for text in texts if text)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group; ``value=None`` is a tombstone."""

    group_id: str
    value: StoredGroup | None


ConsumerOffsetsRecord: TypeAlias = OffsetRecord | GroupRecord
