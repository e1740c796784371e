"""The Raft core of KRaft (KIP-595, 630, 996). It accepts events, returns effects, and does no I/O.

The core has one :class:`~moldau.quorum.core.roles.Role` at a time. It checks requests and epochs, changes the
role as ``LEGAL_MOVES`` allows, and delegates decisions to the role. The module ``effects.py`` has the
contract of the core's driver.
"""

from typing import assert_never

from moldau.quorum.core.effects import (
    AppendAsLeader,
    BecameFollower,
    CommitAdvanced,
    Effect,
    FlushLog,
    LeaderLost,
    PersistElectionState,
    RejectAppend,
    Send,
    TruncateLog,
    VotersChanged,
)
from moldau.quorum.core.effects import (
    LeadershipEnded as ResignedEffect,
)
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.events import (
    AppendRequested,
    Event,
    LogAppended,
    LogFlushed,
    LogTruncated,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    SnapshotInstalled,
    Tick,
)
from moldau.quorum.core.log_view import LogView
from moldau.quorum.core.messages import FetchRequest, Request, VoterChangeResponse
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.requests import RequestDesk
from moldau.quorum.core.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
    Voted,
)
from moldau.quorum.core.transitions import LEGAL_MOVES, OBSERVER_ROLES, RoleName
from moldau.quorum.core.voters import Membership, ReplicaKey, VoterSet
from moldau.quorum.peers import Peers
from moldau.quorum.settings import RaftSettings
from moldau.runtime import Entropy, ErrorCode


class RaftInvariantError(AssertionError):
    """The replica is in a state that the protocol excludes. If the node continued, data could be lost."""


class RaftCore:
    """One replica of one replicated log.

    ``now_ms`` comes from a clock that never steps back. Call :meth:`start` once. Then call :meth:`step` for
    each event, and not later than :attr:`next_deadline_ms`.
    """

    def __init__(
        self,
        *,
        local: ReplicaKey,
        voters: VoterSet,
        log: LogView,
        election: ElectionState,
        settings: RaftSettings,
        entropy: Entropy,
        membership: Membership | None = None,
    ) -> None:
        """``voters`` are the static voters, which are used until the log contains a set of voters. Without
        static voters, the set is empty."""
        self.local = local
        self.static_voters = voters
        self.voters = log.voters.voters if log.voters is not None else voters
        self.membership = membership or Membership()
        self.log = log
        self.settings = settings
        self.entropy = entropy
        self.election = election
        self.peers = Peers(settings)
        self.now_ms = 0
        snapshot_id = log.latest_snapshot_id
        self.commit_offset = max(log.log_start_offset, snapshot_id.offset if snapshot_id else 0)
        self.flushed_offset = log.log_end.offset
        self.role: Role = Unattached(self, 0)
        self._flush_asked_offset = self.flushed_offset
        self._effects: list[Effect] = []
        self._desk = RequestDesk(self)

    # The state that the roles and the driver read

    @property
    def is_voter(self) -> bool:
        return self.voters.has(self.local)

    @property
    def may_stand(self) -> bool:
        """Whether this replica may be a candidate.

        A record may remove this replica from the voters. Until this replica knows that the record is
        committed, it may still be a candidate. This rule is needed if no other replica has the record yet:
        this replica then has the longest log, and a voter does not vote for a candidate with a shorter log.
        The replica does not count its own vote in this case (Raft dissertation §4.2.2).
        """
        logged = self.log.voters
        if self.is_voter or logged is None or logged.previous is None:
            return self.is_voter
        return logged.offset >= self.commit_offset and logged.previous.has(self.local)

    @property
    def is_static(self) -> bool:
        """Whether the voters are static. In this case, all nodes are configured with the same voters, and
        certain requests (for example vote requests) are refused if their sender is not a voter."""
        return self.log.voters is None and len(self.static_voters) > 0

    @property
    def acknowledges(self) -> bool:
        """Whether a fetch of this replica acknowledges the records before the fetch offset as durable.

        The result is also true for a controller that may become a voter. The leader may count the controller
        as a voter before the controller knows that it is a voter.
        """
        return self.is_voter or self.membership.own is not None

    def contacts(self, except_id: int) -> tuple[int, ...]:
        """Nodes that may know the leader."""
        return (*self.voters.others(except_id), *self.membership.bootstrap_ids)

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def leader_id(self) -> int | None:
        """The leader of this epoch; ``None`` while it is unknown, or after this node has resigned."""
        return None if isinstance(self.role, Resigned) else self.election.leader_id

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time of the next ``Tick``."""
        return self.role.deadline_ms

    # Calls of the driver

    def start(self, now_ms: int) -> list[Effect]:
        """Enter the role that the durable state allows, and return the first effects.

        A replica that led its last epoch starts as resigned. A replica that was a candidate in its last epoch
        starts as voted (for itself). In either case the replica may have lost unsynced bytes, so it must not
        write in that epoch again. A single voter leads a new epoch immediately.
        """
        self.now_ms = now_ms
        log_epoch = self.log.log_end.epoch
        if self.election.epoch < log_epoch:
            self._set_election(ElectionState(epoch=log_epoch))
        election = self.election
        if self.is_voter and self.voters.majority == 1:
            # The replica begins a new epoch immediately. The state here does not name the leader of the last
            # epoch. Therefore listeners get no event about the loss of that leader.
            self.election = ElectionState(epoch=election.epoch, voted=election.voted)
            self.role = Unattached(self, now_ms)
        elif election.leader_id == self.local.id:
            successors = self.voters.others(self.local.id)
            self.role = Resigned(self, self._election_deadline_ms(), successors)
        elif election.leader_id is not None:
            self.role = Follower(self, election.leader_id, now_ms + self.settings.fetch_timeout_ms)
            self.emit(BecameFollower(election.epoch, election.leader_id))
        elif election.voted is not None and (self.is_voter or not self.is_static):
            self.role = Voted(self, self._election_deadline_ms())
        else:
            self.role = Unattached(self, self._election_deadline_ms())
        self.role.enter()
        self._poll_until_stable()
        return self._take_effects()

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event. Returns the effects in order. Raises :class:`RaftInvariantError` if the replica
        reaches a state that the protocol excludes."""
        self.now_ms = max(self.now_ms, now_ms)
        match event:
            case Tick():
                pass
            case RequestReceived(request_id, request):
                self._desk.on_request(request_id, request)
            case ResponseReceived():
                self._on_response(event)
            case RequestFailed(correlation_id):
                pending = self.peers.answered(correlation_id)
                if pending is not None:
                    self.peers.back_off(pending.node_id, self.now_ms)
                    self.role.on_request_failed(pending.node_id)
            case AppendRequested(append_id, epoch):
                self._on_append_requested(append_id, epoch)
            case LogAppended():
                self._follow_voters()
                self.role.on_log_appended()
                self._ask_for_flush()
            case LogTruncated():
                self._flush_asked_offset = min(self._flush_asked_offset, self.log.log_end.offset)
                self._follow_voters()
                self.role.on_log_truncated()
                self._ask_for_flush()
            case LogFlushed(offset):
                self.flushed_offset = max(self.flushed_offset, min(offset, self.log.log_end.offset))
                self.role.on_log_flushed()
            case SnapshotInstalled(snapshot_id):
                self._on_snapshot_installed(snapshot_id)
            case ResignRequested(epoch):
                if isinstance(self.role, Leader) and epoch == self.epoch:
                    self.resign()
            case _:
                assert_never(event)
        self._poll_until_stable()
        return self._take_effects()

    # Calls of the roles

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, node_id: int, request: Request, wait_ms: int = 0) -> None:
        correlation_id = self.peers.sent(node_id, request, self.now_ms, wait_ms)
        self.emit(Send(correlation_id, node_id, request))

    def send_fetch(self, node_id: int) -> None:
        """Fetch records, beginning at the end of the log. A voter does this only when its whole log is
        durable."""
        request = FetchRequest(
            replica=self.local,
            epoch=self.epoch,
            log_end=self.log.log_end,
            max_wait_ms=self.settings.fetch_max_wait_ms,
            max_bytes=self.settings.fetch_max_bytes,
            high_watermark=self.commit_offset,
        )
        self.send(node_id, request, self.settings.fetch_max_wait_ms)

    def commit_up_to(self, offset: int) -> None:
        """Advance the commit offset to ``offset``. If the commit offset is already that high, nothing
        happens."""
        if offset > self.commit_offset:
            self.commit_offset = offset
            self.emit(CommitAdvanced(offset))

    def truncate_to_divergence(self, theirs: OffsetAndEpoch) -> bool:
        """Remove the records of this log that cannot be in the leader's log, according to ``theirs``. Returns
        whether any records were removed.

        ``theirs`` is an epoch of the leader with its end in the leader's log. It is the last epoch of this
        log, or the next lower epoch that the leader has.
        """
        ours = self.log.end_offset_for_epoch(theirs.epoch)
        offset = min(ours.offset, theirs.offset) if ours.epoch == theirs.epoch else ours.offset
        if offset < self.commit_offset:
            raise RaftInvariantError(
                f"the leader {self.leader_id} of epoch {self.epoch} diverges at {theirs}, below the "
                f"committed offset {self.commit_offset}"
            )
        if offset >= self.log.log_end.offset:
            return False
        self.emit(TruncateLog(offset))
        self.flushed_offset = min(self.flushed_offset, offset)
        return True

    def observe(self, epoch: int, leader_id: int | None) -> None:
        """Use the epoch and the leader that another replica has sent, if they are newer than this
        replica's."""
        if leader_id == self.local.id and epoch >= self.epoch:
            # The other replica names this node as the leader. This node led that epoch before it lost its
            # disk, so the epoch has no leader now, and another election must follow.
            leader_id = None
        if epoch > self.epoch:
            if leader_id is None:
                self.become_unattached(epoch)
            else:
                self.become_follower(epoch, leader_id)
        elif epoch == self.epoch and leader_id is not None:
            known = self.election.leader_id
            if known is None:
                self.become_follower(epoch, leader_id)
            elif known != leader_id:
                raise RaftInvariantError(f"epoch {epoch} has two leaders, {known} and {leader_id}")

    # Changes of the role

    def become_unattached(self, epoch: int) -> None:
        """Enter a newer epoch whose leader is unknown."""
        had_leader = self.election.leader_id is not None
        # The remaining time of the election time-out is kept. Otherwise a series of newer epochs could delay
        # elections forever.
        waiting = self.role
        deadline_ms = self._election_deadline_ms()
        if isinstance(waiting, Unattached):
            deadline_ms = min(deadline_ms, max(waiting.election_deadline_ms, self.now_ms + 1))
        self._set_election(ElectionState(epoch=epoch))
        self._enter(Unattached(self, deadline_ms))
        if had_leader:
            self.emit(LeaderLost(epoch))

    def become_observer(self) -> None:
        """Become an observer of the current epoch, after this replica was the leader of this epoch and has
        resigned. The election state shows that the replica has voted for itself in this epoch.

        The replica does not enter a newer epoch here. The voters would not have this epoch yet, so the
        replica would ignore the leader that they elect.
        """
        self._set_election(ElectionState(epoch=self.epoch, voted=self.local))
        self._enter(Voted(self, self._election_deadline_ms()))

    def become_voted(self, candidate: ReplicaKey) -> None:
        """Vote for another replica in this epoch. The election time-out restarts, so that the candidate has
        enough time."""
        self._set_election(ElectionState(epoch=self.epoch, voted=candidate))
        self._enter(Voted(self, self._election_deadline_ms()))

    def become_follower(self, epoch: int, leader_id: int) -> None:
        voted = self.election.voted if epoch == self.epoch else None
        was_known = (self.epoch, self.election.leader_id) == (epoch, leader_id)
        self._set_election(ElectionState(epoch=epoch, leader_id=leader_id, voted=voted))
        self._enter(Follower(self, leader_id, self.now_ms + self.settings.fetch_timeout_ms))
        if not was_known:
            self.emit(BecameFollower(epoch, leader_id))

    def become_prospective(self) -> None:
        self._enter(Prospective(self, self._election_deadline_ms()))

    def return_from_pre_vote(self) -> None:
        """Leave the prospective role after a lost pre-vote. If the leader of the epoch is known, this replica
        follows it again. Otherwise the replica waits for an election (KIP-996)."""
        election = self.election
        if election.leader_id is not None:
            self.become_follower(election.epoch, election.leader_id)
        elif election.voted is not None:
            self._enter(Voted(self, self._election_deadline_ms()))
        else:
            self._enter(Unattached(self, self._election_deadline_ms()))

    def become_candidate(self) -> None:
        had_leader = self.election.leader_id is not None
        self._set_election(ElectionState(epoch=self.epoch + 1, voted=self.local))
        self._enter(Candidate(self, self._election_deadline_ms()))
        if had_leader:
            self.emit(LeaderLost(self.epoch))

    def become_leader(self, granting_voters: tuple[int, ...]) -> None:
        self._set_election(
            ElectionState(epoch=self.epoch, leader_id=self.local.id, voted=self.election.voted)
        )
        self._enter(Leader(self, self.log.log_end.offset, granting_voters))

    def resign(self) -> None:
        leader = self.role
        assert isinstance(leader, Leader)
        self._enter(Resigned(self, self._election_deadline_ms(), leader.successors()))
        self.emit(ResignedEffect(self.epoch))

    # Internal methods

    def _enter(self, role: Role) -> None:
        move = (self.role.name, role.name)
        if move not in LEGAL_MOVES or (not self.may_stand and role.name not in OBSERVER_ROLES):
            raise RaftInvariantError(f"illegal move from {move[0].value} to {move[1].value}")
        self.role.leave()
        self.peers.forget_all()
        self.role = role
        role.enter()

    def _set_election(self, election: ElectionState) -> None:
        if election.epoch < self.election.epoch:
            raise RaftInvariantError(f"epoch {self.election.epoch} would go back to {election.epoch}")
        if election != self.election:
            self.election = election
            # All writes of the state in one step are combined into one write. This write contains the last
            # state of the step, and is at the position of the first of the combined writes. An effect after
            # this position may need the state of the last write.
            for position, effect in enumerate(self._effects):
                if isinstance(effect, PersistElectionState):
                    self._effects[position] = PersistElectionState(election)
                    return
            self.emit(PersistElectionState(election))

    def _election_deadline_ms(self) -> int:
        timeout_ms = self.settings.election_timeout_ms
        return self.now_ms + timeout_ms + self.entropy.randrange(timeout_ms)

    def _on_response(self, event: ResponseReceived) -> None:
        pending = self.peers.answered(event.correlation_id)
        if pending is None:
            return
        role, epoch, response = self.role, self.epoch, event.response
        if isinstance(response, VoterChangeResponse) and response.epoch < 0:
            role.on_response(pending.node_id, pending.request, response)
            return
        self.observe(response.epoch, response.leader_id)
        if self.role is not role or response.epoch < epoch:
            # The answer belongs to a request of a former role, or it comes from a replica that lags behind.
            self.peers.back_off(pending.node_id, self.now_ms)
        elif response.error is not ErrorCode.none and not isinstance(role, Follower):
            self.peers.back_off(pending.node_id, self.now_ms)
        else:
            role.on_response(pending.node_id, pending.request, response)

    def _on_append_requested(self, append_id: int, epoch: int) -> None:
        if isinstance(self.role, Leader) and epoch == self.epoch:
            self.emit(AppendAsLeader(append_id, epoch))
        else:
            self.emit(RejectAppend(append_id, ErrorCode.not_leader_or_follower))

    def _on_snapshot_installed(self, snapshot_id: OffsetAndEpoch) -> None:
        self.flushed_offset = self._flush_asked_offset = self.log.log_end.offset
        self._follow_voters()
        self.commit_up_to(snapshot_id.offset)
        self.role.on_snapshot_installed()

    def _follow_voters(self) -> None:
        """Use the voters that the log contains now, even before they are committed (KIP-853)."""
        logged = self.log.voters
        voters = logged.voters if logged is not None else self.static_voters
        if voters != self.voters:
            self.voters = voters
            self.emit(VotersChanged(voters))
            self.role.on_voters_changed()

    def _poll_until_stable(self) -> None:
        """Let the role act until the role does not change any more."""
        for _ in range(len(RoleName) + 1):
            role = self.role
            role.poll()
            if role is self.role:
                break
        else:
            raise RaftInvariantError("the roles change without end")

    def _ask_for_flush(self) -> None:
        # The leader does not count the fetches of a broker, so a broker does not have to sync its log
        # immediately.
        end_offset = self.log.log_end.offset
        if self.acknowledges and end_offset > self._flush_asked_offset:
            self._flush_asked_offset = end_offset
            self.emit(FlushLog())

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
