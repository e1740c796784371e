"""The roles. Each role is one small class. The legal transitions are in
``moldau.quorum.core.transitions``."""

from moldau.quorum.core.roles.base import Role
from moldau.quorum.core.roles.electing import Candidate, Prospective
from moldau.quorum.core.roles.follower import Follower
from moldau.quorum.core.roles.leader import Leader
from moldau.quorum.core.roles.resigned import Resigned
from moldau.quorum.core.roles.waiting import Unattached, Voted

__all__ = ["Candidate", "Follower", "Leader", "Prospective", "Resigned", "Role", "Unattached", "Voted"]
