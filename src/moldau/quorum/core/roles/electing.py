"""The roles that ask for votes: prospective and candidate."""

from typing import TYPE_CHECKING

from moldau.quorum.core.election_state import VoteTally
from moldau.quorum.core.messages import Request, Response, VoteRequest, VoteResponse
from moldau.quorum.core.roles.base import Role
from moldau.quorum.core.transitions import RoleName
from moldau.quorum.core.voters import ReplicaKey

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore


class Electing(Role):
    """The common part of both roles: it sends a vote request to every voter that has not answered, and
    repeats the request until the voter answers or the election ends."""

    is_pre_vote: bool

    def __init__(self, core: "RaftCore", election_deadline_ms: int) -> None:
        super().__init__(core)
        self.election_deadline_ms = election_deadline_ms
        self.tally = VoteTally(core.voters, granted={core.local.id} if core.is_voter else set())

    @property
    def deadline_ms(self) -> int | None:
        now_ms, peers = self.core.now_ms, self.core.peers
        retries = [peers.next_ready_ms(node_id, now_ms) for node_id in self.tally.unanswered]
        return min([self.election_deadline_ms, *retries])

    def poll(self) -> None:
        if self.tally.is_won:
            self.on_won()
        elif self.core.now_ms >= self.election_deadline_ms:
            self.on_timed_out()
        elif self.tally.is_lost:
            self.on_lost()
        else:
            self._ask()

    def on_won(self) -> None:
        raise NotImplementedError

    def on_lost(self) -> None:
        raise NotImplementedError

    def on_timed_out(self) -> None:
        raise NotImplementedError

    def on_response(self, node_id: int, request: Request, response: Response) -> None:
        assert isinstance(response, VoteResponse)
        self.tally.record(node_id, response.granted)

    def describe(self) -> str:
        return f"granted={sorted(self.tally.granted)} rejected={sorted(self.tally.rejected)}"

    def _ask(self) -> None:
        core = self.core
        for node_id in self.tally.unanswered:
            voter = core.voters.get(node_id)
            assert voter is not None
            if core.peers.is_ready(node_id, core.now_ms):
                request = VoteRequest(
                    candidate=core.local,
                    epoch=core.epoch,
                    log_end=core.log.log_end,
                    pre_vote=self.is_pre_vote,
                    voter=voter.key,
                )
                core.send(node_id, request)


class Prospective(Electing):
    """Asks the other voters whether it would win an election (KIP-996). A replica that was disconnected for
    some time therefore does not raise the epoch while the other voters still follow a leader. With a higher
    epoch, it would force this leader to resign. This role persists nothing."""

    name = RoleName.PROSPECTIVE
    is_pre_vote = True

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        if pre_vote:
            return up_to_date
        election = self.core.election
        if election.voted is not None:
            return election.voted.is_same_replica(candidate)
        return election.leader_id is None and up_to_date

    def on_won(self) -> None:
        self.core.become_candidate()

    def on_lost(self) -> None:
        self.core.return_from_pre_vote()

    def on_timed_out(self) -> None:
        self.core.return_from_pre_vote()


class Candidate(Electing):
    """A candidate: it has voted for itself in a new epoch, and requests the votes of the other voters."""

    name = RoleName.CANDIDATE
    is_pre_vote = False

    def __init__(self, core: "RaftCore", election_deadline_ms: int) -> None:
        super().__init__(core, election_deadline_ms)
        self._is_lost = False

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        return pre_vote and up_to_date

    def on_won(self) -> None:
        self.core.become_leader(tuple(sorted(self.tally.granted)))

    def on_lost(self) -> None:
        """Wait for a random part of the back-off, then start another election. Because the wait is random,
        two candidates that have split the votes do not start the next election at the same time."""
        if self._is_lost:
            return
        self._is_lost = True
        core = self.core
        backoff_ms = 1 + core.entropy.randrange(max(1, core.settings.election_backoff_max_ms))
        self.election_deadline_ms = min(self.election_deadline_ms, core.now_ms + backoff_ms)

    def on_timed_out(self) -> None:
        self.core.become_prospective()
