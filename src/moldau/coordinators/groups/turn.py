"""One operation on a group: what it may look at, and where its effects go. Pure."""

from dataclasses import dataclass, field

from moldau.coordinators.effects import Outbox
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.tally import GroupTally


@dataclass(frozen=True, slots=True)
class HeartbeatTimer:
    """A member, or an id that was given out, must be heard of before this is due."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """The join phase ends when this is due, whoever is missing."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Members that have joined must have asked for their assignment before this is due."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ExpiryTimer:
    """Time to look for offsets and groups that nobody needs any more."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The circumstances of one operation."""

    settings: GroupSettings
    now_ms: int
    tally: GroupTally = field(default_factory=GroupTally)
    out: Outbox[ConsumerOffsetsRecord] = field(default_factory=Outbox)


@dataclass(frozen=True, slots=True)
class Turns:
    """Begins the operations of a shard."""

    settings: GroupSettings
    tally: GroupTally

    def begin(self, now_ms: int) -> Turn:
        """The circumstances of an operation that happens now."""
        return Turn(self.settings, now_ms, self.tally)
