"""The common part of the roles."""

from typing import TYPE_CHECKING, ClassVar

from moldau.quorum.core.effects import SendReply
from moldau.quorum.core.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    Response,
    VoterChangeRequest,
    VoterChangeResponse,
)
from moldau.quorum.core.transitions import RoleName
from moldau.quorum.core.voters import ReplicaKey
from moldau.runtime import ErrorCode

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore


class Role:
    """A replica in one role of one epoch. The object is created when the role begins, and dropped when it
    ends.

    ``poll`` is called after every event. It checks the time, changes the role if necessary, and sends pending
    requests. It must be idempotent. All durable state is in the core's ``ElectionState``.
    """

    name: ClassVar[RoleName]

    def __init__(self, core: "RaftCore") -> None:
        self.core = core

    def enter(self) -> None:
        """Called once, after this object has become the core's role."""

    def leave(self) -> None:
        """Called once, before the next role begins."""

    def poll(self) -> None:
        """Do all work whose time has come."""

    @property
    def deadline_ms(self) -> int | None:
        """The latest time of the next call of ``poll``."""
        return None

    @property
    def high_watermark(self) -> int | None:
        """The high watermark for responses to other replicas."""
        return self.core.commit_offset

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        """Whether a candidate of the same epoch gets the vote of this replica."""
        raise NotImplementedError

    def on_response(self, node_id: int, request: Request, response: Response) -> None:
        """Handle an answer, in this epoch, to a request of this role. Answers with errors do not reach this
        method."""

    def on_request_failed(self, node_id: int) -> None:
        """Handle a failed request of this role. The peer is down, unreachable or too slow."""

    def on_fetch(self, request_id: int, request: FetchRequest) -> None:
        """Handle a fetch that has the current epoch. Every role except the leader refuses it."""
        core = self.core
        error = ErrorCode.not_leader_or_follower
        core.emit(
            SendReply(request_id, FetchResponse(error=error, leader_id=core.leader_id, epoch=core.epoch))
        )

    def on_fetch_snapshot(self, request_id: int, request: FetchSnapshotRequest) -> None:
        """Handle a snapshot fetch that has the current epoch. Every role except the leader refuses it."""
        core = self.core
        error = ErrorCode.not_leader_or_follower
        response = FetchSnapshotResponse(
            error=error, leader_id=core.leader_id, epoch=core.epoch, snapshot_id=request.snapshot_id
        )
        core.emit(SendReply(request_id, response))

    def on_voter_change(self, request_id: int, request: VoterChangeRequest) -> None:
        """Handle a change of the voters that has the current epoch. Every role except the leader refuses
        it."""
        core = self.core
        error = ErrorCode.not_leader_or_follower
        core.emit(
            SendReply(
                request_id, VoterChangeResponse(error=error, leader_id=core.leader_id, epoch=core.epoch)
            )
        )

    def on_leader_resigned(self, preferred_successors: tuple[int, ...]) -> None:
        """Handle the resignation of the leader of this epoch."""

    def on_voters_changed(self) -> None:
        """Handle a new set of voters in the log."""

    def on_log_appended(self) -> None:
        """Handle the growth of the log."""

    def on_log_truncated(self) -> None:
        """Handle a truncation of the log."""

    def on_log_flushed(self) -> None:
        """Handle a flush. More records of the log are now durable."""

    def on_snapshot_installed(self) -> None:
        """Handle an installed snapshot. The log now begins at the end of the snapshot."""

    def describe(self) -> str:
        """Return a description in one line, for logs and golden tests."""
        return ""
