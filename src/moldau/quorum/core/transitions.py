"""The table of legal transitions between roles. The diagram in the docs is made from this table."""

from collections.abc import Mapping
from enum import Enum


class RoleName(Enum):
    """The roles that a replica can have in an epoch."""

    UNATTACHED = "unattached"
    VOTED = "voted"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"
    RESIGNED = "resigned"


_U, _V, _P, _C, _F, _L, _R = RoleName
_NEWER = "learns of a newer epoch"
_FOUND = "finds the leader"
_GRANTED = "grants a vote"

LEGAL_MOVES: Mapping[tuple[RoleName, RoleName], str] = {
    (_U, _U): _NEWER,
    (_U, _V): _GRANTED,
    (_U, _P): "election time-out",
    (_U, _F): _FOUND,
    (_V, _U): _NEWER,
    (_V, _P): "election time-out",
    (_V, _F): _FOUND,
    (_P, _U): "learns of a newer epoch, or loses the pre-vote",
    (_P, _V): "grants a vote, or loses the pre-vote after it granted a vote",
    (_P, _C): "wins the pre-vote",
    (_P, _F): "finds the leader, or loses the pre-vote",
    (_C, _U): _NEWER,
    (_C, _P): "election time-out",
    (_C, _F): _FOUND,
    (_C, _L): "wins the election",
    (_F, _U): _NEWER,
    (_F, _P): "fetch time-out",
    (_F, _F): "learns of a newer leader",
    (_L, _U): _NEWER,
    (_L, _F): "learns of a newer leader",
    (_L, _R): "the node stops, is asked to resign, or has lost its majority",
    (_R, _U): "learns of a newer epoch, or election time-out",
    (_R, _F): "learns of a newer leader",
    (_R, _V): "is no longer a voter, and has informed the voters or waited for an election time-out",
}
"""The key is a pair of roles, from and to. The value is the condition. A vote in a newer epoch first changes
the role to unattached in that epoch."""

OBSERVER_ROLES = frozenset({_U, _V, _F, _R})
"""The roles that a replica can have when it is not a voter. Usually it is unattached or a follower. It can be
in the voted role, because a voter with an older set of voters can request its vote (KIP-853). It can be
resigned, because a leader that is removed from the voters resigns."""
