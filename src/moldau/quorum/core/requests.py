"""Handles the requests of peers. Each request is checked first. Valid fetches and valid changes of the voters
are passed to the role, which answers them. This module answers all other requests."""

from typing import TYPE_CHECKING, Final, assert_never

from moldau.quorum.core.effects import SendReply
from moldau.quorum.core.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    UpgradeVersionRequest,
    VoterChangeRequest,
    VoterChangeResponse,
    VoteRequest,
)
from moldau.quorum.core.roles import Follower, Leader, Prospective
from moldau.quorum.core.voters import ReplicaKey
from moldau.quorum.core.votes import answer_vote, is_meant_for
from moldau.runtime import ErrorCode

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore

EPOCH_STEP_MAX: Final = 10_000
"""Maximum number of epochs by which the epoch in a request may be newer than this replica's epoch. Without a
limit, one request with the highest possible epoch would make every later election impossible, because each
election needs a higher epoch. If a voter has missed more elections than this limit, it learns the current
epoch from the answers to its own requests."""


class RequestDesk:
    """Checks a request, reads the epoch and the leader in it, and passes the request to the role."""

    def __init__(self, core: "RaftCore") -> None:
        self._core = core

    def on_request(self, request_id: int, request: Request) -> None:
        match request:
            case VoteRequest():
                self._on_vote(request_id, request)
            case BeginQuorumEpochRequest():
                self._on_begin_epoch(request_id, request)
            case EndQuorumEpochRequest():
                self._on_end_epoch(request_id, request)
            case FetchRequest():
                self._on_fetch(request_id, request)
            case FetchSnapshotRequest():
                self._on_fetch_snapshot(request_id, request)
            case AddVoterRequest() | RemoveVoterRequest() | UpdateVoterRequest() | UpgradeVersionRequest():
                self._on_voter_change(request_id, request)
            case _:
                assert_never(request)

    def _on_vote(self, request_id: int, request: VoteRequest) -> None:
        error = self._voters_only(request.candidate.id, request.epoch)
        self._core.emit(SendReply(request_id, answer_vote(self._core, request, error)))

    def _on_begin_epoch(self, request_id: int, request: BeginQuorumEpochRequest) -> None:
        core = self._core
        error = self._leaders_only(request.leader_id, request.epoch)
        if error is ErrorCode.none and not self._is_meant_for_this_replica(request.voter):
            error = ErrorCode.invalid_voter_key
        if error is ErrorCode.none:
            core.observe(request.epoch, request.leader_id)
            if isinstance(core.role, Prospective) and core.leader_id == request.leader_id:
                core.return_from_pre_vote()
            if isinstance(core.role, Follower):
                core.role.on_leader_heard()
        response = BeginQuorumEpochResponse(error=error, leader_id=core.leader_id, epoch=core.epoch)
        core.emit(SendReply(request_id, response))

    def _on_end_epoch(self, request_id: int, request: EndQuorumEpochRequest) -> None:
        core = self._core
        error = self._leaders_only(request.leader_id, request.epoch)
        if error is ErrorCode.none:
            core.observe(request.epoch, request.leader_id)
            core.role.on_leader_resigned(request.preferred_successors)
        response = EndQuorumEpochResponse(error=error, leader_id=core.leader_id, epoch=core.epoch)
        core.emit(SendReply(request_id, response))

    def _on_fetch(self, request_id: int, request: FetchRequest) -> None:
        core, end = self._core, request.log_end
        error = self._leader_only(request.epoch)
        if min(end.offset, end.epoch, request.epoch, request.max_wait_ms) < 0:
            error = ErrorCode.invalid_request
        if error is ErrorCode.none:
            core.role.on_fetch(request_id, request)
            return
        response = FetchResponse(error=error, leader_id=core.leader_id, epoch=core.epoch)
        core.emit(SendReply(request_id, response))

    def _on_fetch_snapshot(self, request_id: int, request: FetchSnapshotRequest) -> None:
        core = self._core
        error = self._leader_only(request.epoch)
        if error is ErrorCode.none:
            core.role.on_fetch_snapshot(request_id, request)
            return
        response = FetchSnapshotResponse(
            error=error, leader_id=core.leader_id, epoch=core.epoch, snapshot_id=request.snapshot_id
        )
        core.emit(SendReply(request_id, response))

    def _on_voter_change(self, request_id: int, request: VoterChangeRequest) -> None:
        core = self._core
        error = self._leader_only(request.epoch if isinstance(request, UpdateVoterRequest) else core.epoch)
        if error is ErrorCode.none:
            core.role.on_voter_change(request_id, request)
            return
        text = "this node does not lead the metadata quorum"
        response = VoterChangeResponse(error=error, leader_id=core.leader_id, epoch=core.epoch, message=text)
        core.emit(SendReply(request_id, response))

    def _voters_only(self, remote_id: int, epoch: int) -> ErrorCode:
        # With dynamic voters (KIP-853), a replica possibly does not know the voters yet. It must vote
        # nevertheless.
        if epoch < self._core.epoch:
            return ErrorCode.fenced_leader_epoch
        if remote_id < 0 or epoch > self._core.epoch + EPOCH_STEP_MAX:
            return ErrorCode.invalid_request
        if self._core.is_static and remote_id not in self._core.voters:
            return ErrorCode.inconsistent_voter_set
        return ErrorCode.none

    def _leaders_only(self, leader_id: int, epoch: int) -> ErrorCode:
        """Check a request that only the leader of an epoch sends. An epoch has only one leader. If the
        request names another leader than this replica knows, the request is wrong and gets an error code. It
        must not raise an exception, because an exception would end this node."""
        error, known = self._voters_only(leader_id, epoch), self._core.election.leader_id
        if error is ErrorCode.none and epoch == self._core.epoch and known not in (None, leader_id):
            return ErrorCode.invalid_request
        return error

    def _leader_only(self, epoch: int) -> ErrorCode:
        core = self._core
        if epoch < core.epoch:
            return ErrorCode.fenced_leader_epoch
        if epoch > core.epoch:
            # The sender gets the epoch from this answer. This replica will get the epoch from its leader.
            return ErrorCode.unknown_leader_epoch
        return ErrorCode.none if isinstance(core.role, Leader) else ErrorCode.not_leader_or_follower

    def _is_meant_for_this_replica(self, voter: ReplicaKey | None) -> bool:
        return is_meant_for(voter, self._core.local)
