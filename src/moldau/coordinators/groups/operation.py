"""One operation on a group: its inputs, and the effects that it collects. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.coordinators.effects import Outbox
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.tally import GroupTally


@dataclass(frozen=True, slots=True)
class HeartbeatTimer:
    """Deadline for the next request of a member. For a member with a new id, it is the deadline for the
    join."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """End of the join phase, even if members are missing."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Deadline by which joined members must request their assignment."""

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
    """The time that decides whether offsets expire. It is never later than ``now_ms``. On a node it comes
    from the deletion clock, which does not jump forward.
    """
    tally: GroupTally = field(default_factory=GroupTally)
    out: Outbox[ConsumerOffsetsRecord] = field(default_factory=Outbox)


@dataclass(frozen=True, slots=True)
class Turns:
    """Creates the context for each operation of a shard."""

    settings: GroupSettings
    tally: GroupTally
    expiry_now_ms: Callable[[], int] | None = None
    """Returns the time that decides whether offsets expire. If it is ``None``, the time of the operation is
    used."""

    def begin(self, now_ms: int) -> Turn:
        """Make the context of an operation at the present time."""
        # The deletion clock is read in each operation, so that it detects if the wall clock is behind for
        # some time. Otherwise entries that get too early timestamps in this time would expire as soon as the
        # wall clock is corrected.
        expiry_now_ms = now_ms if self.expiry_now_ms is None else self.expiry_now_ms()
        return Turn(self.settings, now_ms, expiry_now_ms, self.tally)
