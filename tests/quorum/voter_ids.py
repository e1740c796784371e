"""Sets of voters by their ids."""

from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet


def voters_of(*ids: int) -> VoterSet:
    """Voters without addresses."""
    return VoterSet(Voter(ReplicaKey(voter_id)) for voter_id in ids)
