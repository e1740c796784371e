"""One small class per role; the legal moves are in ``moldau.quorum.transitions``."""

from moldau.quorum.roles.base import Role
from moldau.quorum.roles.electing import Candidate, Prospective
from moldau.quorum.roles.follower import Follower
from moldau.quorum.roles.leader import Leader
from moldau.quorum.roles.resigned import Resigned
from moldau.quorum.roles.waiting import Unattached, Voted

__all__ = ["Candidate", "Follower", "Leader", "Prospective", "Resigned", "Role", "Unattached", "Voted"]
