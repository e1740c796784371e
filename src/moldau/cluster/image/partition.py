"""One partition in the metadata image."""

import uuid
from dataclasses import dataclass
from enum import IntEnum

from moldau.cluster.image.chunks import ChunkRegistration, Chunks, chunk_containing
from moldau.cluster.image.directories import MIGRATING_DIRECTORY
from moldau.cluster.image.log_generations import FIRST_GENERATION, LogGenerations

NO_LEADER = -1

NO_OWNER = -1
"""The value of ``owner`` for a partition of a kind without owners."""


class LeaderRecoveryState(IntEnum):
    """Whether the leader must recover first, because it was elected by an unclean election (KIP-704)."""

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
    """The generations of the partition's log. They are needed if the leader epochs of the log differ from the
    leader epochs in the metadata."""
    owner: int = NO_OWNER
    """The owner of this partition: the number of a partition of the kind's metadata topic. For a diskless
    partition, this is its coordinator (KIP-1164)."""
    start_offset: int = -1
    """The first offset of the active chunk (KIP-1114); -1 for a partition that never had other chunks."""
    start_timestamp_ms: int = -1
    """All records of the active chunk were appended at or after this time; -1 if ``start_offset`` is -1."""
    chunks: Chunks = ()
    """The inactive chunks, by ascending offsets. Nearly all partitions have no inactive chunks."""

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    def directory_of(self, broker_id: int) -> uuid.UUID:
        """The log directory of a broker's replica; a reserved id if no directory is assigned."""
        if broker_id in self.replicas:
            index = self.replicas.index(broker_id)
            if index < len(self.directories):
                return self.directories[index]
        return MIGRATING_DIRECTORY

    def chunk_at(self, offset: int) -> ChunkRegistration | None:
        """The inactive chunk that contains an offset."""
        return chunk_containing(self.chunks, offset)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.removing_replicas or self.adding_replicas)
