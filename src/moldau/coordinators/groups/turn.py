"""One operation on a group: its inputs, and the collector of its effects. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.coordinators.effects import Outbox
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.tally import GroupTally


@dataclass(frozen=True, slots=True)
class HeartbeatTimer:
    """Deadline for the next sign of life of a member, or of a given-out id."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """End of the join phase, even if members are missing."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Deadline for joined members to request their assignment."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ExpiryTimer:
    """Time of the next check for expired offsets and groups."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The context of one operation."""

    settings: GroupSettings
    now_ms: int
    expiry_now_ms: int
    """The time by which offsets expire: never later than ``now_ms``, and without jumps."""
    tally: GroupTally = field(default_factory=GroupTally)
    out: Outbox[ConsumerOffsetsRecord] = field(default_factory=Outbox)


@dataclass(frozen=True, slots=True)
class Turns:
    """Begins the operations of a shard."""

    settings: GroupSettings
    tally: GroupTally
    expiry_now_ms: Callable[[], int] | None = None
    """Returns the time by which offsets expire; without it, that is the time of the operation."""

    def begin(self, now_ms: int) -> Turn:
        """The context of an operation that happens now."""
        # Read in each operation: an entry that is stamped while the clock is behind must not expire when the
        # clock is corrected.
        expiry_now_ms = now_ms if self.expiry_now_ms is None else self.expiry_now_ms()
        return Turn(self.settings, now_ms, expiry_now_ms, self.tally)
