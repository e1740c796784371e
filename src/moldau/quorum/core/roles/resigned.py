"""The resigned leader. It led this epoch, and informs the other voters that its leadership has ended."""

from typing import TYPE_CHECKING

from moldau.quorum.core.messages import EndQuorumEpochRequest, Request, Response
from moldau.quorum.core.roles.base import Role
from moldau.quorum.core.transitions import RoleName
from moldau.quorum.core.voters import ReplicaKey

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore


class Resigned(Role):
    """A former leader also gets this role after a restart. It may have lost bytes that other replicas have
    with this epoch. Therefore it must not write in this epoch again."""

    name = RoleName.RESIGNED

    def __init__(
        self, core: "RaftCore", election_deadline_ms: int, preferred_successors: tuple[int, ...]
    ) -> None:
        super().__init__(core)
        self.election_deadline_ms = election_deadline_ms
        self.preferred_successors = preferred_successors
        self.untold = set(core.voters.others(core.local.id))

    @property
    def deadline_ms(self) -> int | None:
        retries = [self.core.peers.next_ready_ms(node_id, self.core.now_ms) for node_id in self.untold]
        return min([self.election_deadline_ms, *retries])

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        return pre_vote and up_to_date

    def poll(self) -> None:
        core = self.core
        if not core.may_stand and (not self.untold or core.now_ms >= self.election_deadline_ms):
            core.become_observer()
            return
        if core.now_ms >= self.election_deadline_ms:
            core.become_unattached(core.epoch + 1)
            return
        for node_id in sorted(self.untold):
            if core.peers.is_ready(node_id, core.now_ms):
                request = EndQuorumEpochRequest(
                    leader_id=core.local.id,
                    epoch=core.epoch,
                    preferred_successors=self.preferred_successors,
                )
                core.send(node_id, request)

    def on_response(self, node_id: int, request: Request, response: Response) -> None:
        self.untold.discard(node_id)

    def describe(self) -> str:
        return f"untold={sorted(self.untold)}"
