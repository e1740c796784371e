"""Decides whether a replica votes for a candidate. Pure.

The checks in this module are the same in every role. After these checks, the method ``grants_vote`` of the
role decides (``roles/``).
"""

from typing import TYPE_CHECKING

from moldau.quorum.core.messages import VoteRequest, VoteResponse
from moldau.quorum.core.voters import ReplicaKey
from moldau.runtime import ErrorCode

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore


def answer_vote(core: "RaftCore", request: VoteRequest, error: ErrorCode) -> VoteResponse:
    """Decide on a vote or a pre-vote, and store the vote. ``error`` is the result of the checks that apply to
    all requests."""
    granted = False
    if error is ErrorCode.none:
        error = _check(core, request)
    if error is ErrorCode.none:
        if request.epoch > core.epoch:
            core.become_unattached(request.epoch)
        granted = core.role.grants_vote(
            request.candidate,
            up_to_date=request.log_end.is_at_least(core.log.log_end),
            pre_vote=request.pre_vote,
        )
        if granted and not request.pre_vote and core.election.voted is None:
            core.become_voted(request.candidate)
    return VoteResponse(error=error, leader_id=core.leader_id, epoch=core.epoch, granted=granted)


def is_meant_for(voter: ReplicaKey | None, local: ReplicaKey) -> bool:
    """Whether a vote request is for this replica. Requests of old versions do not name a replica, and they
    count as requests for this replica."""
    return voter is None or voter.is_same_replica(local)


def _check(core: "RaftCore", request: VoteRequest) -> ErrorCode:
    end = request.log_end
    # A real vote is for a new epoch, which has no records yet. A pre-vote is for the sender's current epoch.
    last_epoch = request.epoch if request.pre_vote else request.epoch - 1
    if end.offset < 0 or end.epoch < 0 or end.epoch > last_epoch:
        return ErrorCode.invalid_request
    if not is_meant_for(request.voter, core.local):
        return ErrorCode.invalid_voter_key
    if core.is_static and not core.is_voter:
        return ErrorCode.inconsistent_voter_set
    return ErrorCode.none
