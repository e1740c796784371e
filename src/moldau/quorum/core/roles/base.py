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
    """One replica in one role of one epoch; created on entering the role, discarded on leaving.

    ``poll`` is called after every event: it checks the time, moves to another role, sends pending requests.
    It must be idempotent. All durable state is in the core's ``ElectionState``.
    """

    name: ClassVar[RoleName]

    def __init__(self, core: "RaftCore") -> None:
        self.core = core

    def enter(self) -> None:
        """Called once, after the core has made this its role."""

    def leave(self) -> None:
        """Called once, before the next role is entered."""

    def poll(self) -> None:
        """Carry out everything that is due now."""

    @property
    def deadline_ms(self) -> int | None:
        """The latest time of the next ``poll``."""
        return None

    @property
    def high_watermark(self) -> int | None:
        """The high watermark for responses to other replicas."""
        return self.core.commit_offset

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        """Whether a candidate of this same epoch gets this vote."""
        raise NotImplementedError

    def on_response(self, node_id: int, request: Request, response: Response) -> None:
        """An answer of this epoch to a request of this role; failures were filtered out."""

    def on_request_failed(self, node_id: int) -> None:
        """A request that this role sent has no answer: the peer is down, unreachable or too slow."""

    def on_fetch(self, request_id: int, request: FetchRequest) -> None:
        """A fetch with the right epoch. Only a leader answers it."""
        core = self.core
        error = ErrorCode.not_leader_or_follower
        core.emit(
            SendReply(request_id, FetchResponse(error=error, leader_id=core.leader_id, epoch=core.epoch))
        )

    def on_fetch_snapshot(self, request_id: int, request: FetchSnapshotRequest) -> None:
        """A snapshot fetch with the right epoch. Only a leader answers it."""
        core = self.core
        error = ErrorCode.not_leader_or_follower
        response = FetchSnapshotResponse(
            error=error, leader_id=core.leader_id, epoch=core.epoch, snapshot_id=request.snapshot_id
        )
        core.emit(SendReply(request_id, response))

    def on_voter_change(self, request_id: int, request: VoterChangeRequest) -> None:
        """A change of the voters with the right epoch. Only a leader answers it."""
        core = self.core
        error = ErrorCode.not_leader_or_follower
        core.emit(
            SendReply(
                request_id, VoterChangeResponse(error=error, leader_id=core.leader_id, epoch=core.epoch)
            )
        )

    def on_leader_resigned(self, preferred_successors: tuple[int, ...]) -> None:
        """The leader of this epoch has resigned."""

    def on_voters_changed(self) -> None:
        """The log contains a new set of voters."""

    def on_log_appended(self) -> None:
        """The log has grown."""

    def on_log_truncated(self) -> None:
        """The log was cut."""

    def on_log_flushed(self) -> None:
        """More of the log is durable."""

    def on_snapshot_installed(self) -> None:
        """The log now begins at a downloaded snapshot."""

    def describe(self) -> str:
        """One line for logs and golden tests."""
        return ""
