"""The roles that wait because the leader of the epoch is not known yet: unattached and voted."""

from typing import TYPE_CHECKING

from moldau.quorum.core.messages import Request, Response
from moldau.quorum.core.roles.base import Role
from moldau.quorum.core.transitions import RoleName
from moldau.quorum.core.voters import ReplicaKey

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore


class Unattached(Role):
    """The unattached role. The replica knows only the epoch. A voter waits for an election. An observer asks
    the voters for the leader."""

    name = RoleName.UNATTACHED

    def __init__(self, core: "RaftCore", election_deadline_ms: int) -> None:
        super().__init__(core)
        self.election_deadline_ms = election_deadline_ms
        self._asked: int | None = None

    @property
    def deadline_ms(self) -> int | None:
        if self.core.may_stand:
            return self.election_deadline_ms
        if self._asked is None:
            return None
        return self.core.peers.next_ready_ms(self._asked, self.core.now_ms)

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        return up_to_date

    def poll(self) -> None:
        core = self.core
        if core.may_stand:
            if core.now_ms >= self.election_deadline_ms:
                core.become_prospective()
            return
        # An observer sends a fetch to any voter. The voter's answer names the leader (KIP-595).
        if self._asked is None or core.peers.is_ready(self._asked, core.now_ms):
            contacts = core.contacts(core.local.id)
            ready = [node_id for node_id in contacts if core.peers.is_ready(node_id, core.now_ms)]
            if ready:
                self._asked = ready[core.entropy.randrange(len(ready))]
                core.send_fetch(self._asked)

    def on_response(self, node_id: int, request: Request, response: Response) -> None:
        # The voter did not know the leader. An answer that names the leader would have ended this role.
        # Pause, then ask another voter.
        self.core.peers.back_off(node_id, self.core.now_ms)


class Voted(Unattached):
    """The voted role. The replica has voted in this epoch, and waits for the result."""

    name = RoleName.VOTED

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        if pre_vote:
            return up_to_date
        voted = self.core.election.voted
        return voted is not None and voted.is_same_replica(candidate)
