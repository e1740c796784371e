"""One partition in the metadata image, and the reserved log directory ids of KIP-858."""

import uuid
from dataclasses import dataclass
from enum import IntEnum

from moldau.cluster.image.generations import FIRST_GENERATION, LogGenerations

NO_LEADER = -1

MIGRATING_DIRECTORY = uuid.UUID(int=0)
"""The replica has a directory that the metadata do not name yet: records before KIP-858."""
UNASSIGNED_DIRECTORY = uuid.UUID(int=1)
"""The broker has not chosen a directory for the replica yet."""
LOST_DIRECTORY = uuid.UUID(int=2)
"""The replica is in a failed directory whose id is unknown."""
RESERVED_DIRECTORY_COUNT = 100
"""KIP-858 reserves the ids below this number; they never name a real directory."""

NO_COORDINATOR = -1
"""The value of ``diskless_coordinator`` for a partition that is not diskless."""


class LeaderRecoveryState(IntEnum):
    """Whether the leader must first recover from an unclean election (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRegistration:
    """A partition. Replicas are broker ids; ``replicas[0]`` is the preferred leader."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    directories: tuple[uuid.UUID, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_eligible_leader_replicas: tuple[int, ...] = ()
    generations: LogGenerations = FIRST_GENERATION
    """The generations of a diskless partition's log."""
    diskless_coordinator: int = NO_COORDINATOR
    """The partition of ``__diskless_metadata`` that owns this diskless partition (KIP-1164)."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    def directory_of(self, broker_id: int) -> uuid.UUID:
        """The log directory of a broker's replica; a reserved id where none is assigned."""
        if broker_id in self.replicas:
            index = self.replicas.index(broker_id)
            if index < len(self.directories):
                return self.directories[index]
        return MIGRATING_DIRECTORY

    @property
    def is_reassigning(self) -> bool:
        return bool(self.removing_replicas or self.adding_replicas)
