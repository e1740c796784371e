"""The durable election state of a replica, and the object that counts the votes of an election."""

from dataclasses import dataclass, field

from moldau.quorum.core.voters import ReplicaKey, VoterSet


@dataclass(frozen=True, slots=True)
class ElectionState:
    """The durable state of an election. Kafka stores it in the ``quorum-state`` file."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None

    def __str__(self) -> str:
        leader = "none" if self.leader_id is None else self.leader_id
        voted = "none" if self.voted is None else self.voted.id
        return f"epoch={self.epoch} leader={leader} voted={voted}"


@dataclass(slots=True)
class VoteTally:
    """The votes of one election. If a voter answers several times, only its last answer counts."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, voter_id: int, granted: bool) -> None:
        if voter_id not in self.voters:
            return
        (self.rejected if granted else self.granted).discard(voter_id)
        (self.granted if granted else self.rejected).add(voter_id)

    @property
    def is_won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        """Whether the candidate can no longer get the votes of a majority."""
        return len(self.voters) - len(self.rejected) < self.voters.majority

    @property
    def unanswered(self) -> list[int]:
        return [v for v in self.voters.ids if v not in self.granted and v not in self.rejected]
