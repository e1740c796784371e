"""The leader. It appends records and answers fetches. From the fetches it computes the offset up to which a
majority has all records."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.quorum.core.effects import (
    AppendLeaderChange,
    AppendVoters,
    BecameLeader,
    ReplyWithRecords,
    ReplyWithSnapshot,
    SendReply,
)
from moldau.quorum.core.messages import (
    UNKNOWN_HIGH_WATERMARK,
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Request,
    Response,
    VoterChangeRequest,
)
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.progress import ReplicaProgress
from moldau.quorum.core.roles.base import Role
from moldau.quorum.core.roles.reconfiguration import Reconfiguration
from moldau.quorum.core.transitions import RoleName
from moldau.quorum.core.voters import ReplicaKey
from moldau.runtime import ErrorCode

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """A fetch that waits, because there are no new records."""

    request: FetchRequest
    deadline_ms: int


class Leader(Role):
    """Leads the epoch. The high watermark is computed again for each epoch. It is unknown until a majority
    has the first record of this epoch. Before that, older records do not count as committed (Raft §5.4.2)."""

    name = RoleName.LEADER

    def __init__(self, core: "RaftCore", epoch_start_offset: int, granting_voters: tuple[int, ...]) -> None:
        super().__init__(core)
        self.epoch_start_offset = epoch_start_offset
        self.granting_voters = granting_voters
        others = core.voters.others(core.local.id)
        self.progress: dict[ReplicaKey, ReplicaProgress] = {}
        """The progress of each replica that is not counted as a voter."""
        self._voter_progress = {voter_id: ReplicaProgress(last_fetch_ms=None) for voter_id in others}
        self._voters = core.voters
        self._leaving: set[ReplicaKey] = set()
        """The voters that the latest set of voters does not contain any more."""
        self._majority_high_watermark: int | None = None
        self._heard_in_window: set[int] = set()
        self._check_quorum_deadline_ms = core.now_ms + core.settings.check_quorum_timeout_ms
        self._remind_at_ms = dict.fromkeys(others, core.now_ms)
        self._parked: dict[int, ParkedFetch] = {}
        self._reconfiguration = Reconfiguration(core, self)

    @property
    def high_watermark(self) -> int | None:
        return self._majority_high_watermark

    @property
    def voter_progress(self) -> dict[int, ReplicaProgress]:
        return self._voter_progress

    @property
    def deadline_ms(self) -> int | None:
        core = self.core
        times = [parked.deadline_ms for parked in self._parked.values()]
        times += self._reconfiguration.deadlines_ms
        for node_id, remind_at_ms in self._remind_at_ms.items():
            times.append(max(remind_at_ms, core.peers.next_ready_ms(node_id, core.now_ms)))
        if self._voter_progress:
            times.append(self._check_quorum_deadline_ms)
        return min(times, default=None)

    def enter(self) -> None:
        core = self.core
        core.emit(BecameLeader(core.epoch, self.epoch_start_offset))
        core.emit(AppendLeaderChange(core.epoch, core.local.id, core.voters.ids, self.granting_voters))
        logged = core.log.voters
        if logged is not None and logged.offset < 0:
            # Only the snapshot from the formatting of this node's folder contains the voters. No record of
            # the log contains them yet, so other nodes do not know these voters.
            core.emit(AppendVoters(core.epoch, logged.voters, logged.kraft_version))

    def leave(self) -> None:
        self._reconfiguration.leave()
        parked, self._parked = self._parked, {}
        for request_id in parked:
            self.core.emit(SendReply(request_id, self._fetch_error(ErrorCode.not_leader_or_follower)))

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        return False

    def poll(self) -> None:
        core = self.core
        if self._voter_progress and core.now_ms >= self._check_quorum_deadline_ms:
            core.resign()
            return
        self._reconfiguration.poll()
        if self._is_taken_out:
            core.resign()
            return
        self._remind_voters()
        for request_id, parked in list(self._parked.items()):
            if core.now_ms >= parked.deadline_ms or self._has_news(parked.request):
                del self._parked[request_id]
                self._answer_fetch(request_id, parked.request)

    def on_response(self, node_id: int, request: Request, response: Response) -> None:
        """Handle the answer of a voter to the announcement. The voter now knows the leader and will fetch. If
        it does not fetch, the announcement is repeated later."""

    def on_voter_change(self, request_id: int, request: VoterChangeRequest) -> None:
        self._reconfiguration.on_request(request_id, request)

    def on_voters_changed(self) -> None:
        """Use the new voters. There is no election. The leader keeps the progress of the other voters."""
        core, before = self.core, self._voters
        self._voters = core.voters
        self._leaving = {voter.key for voter in before if not core.voters.has(voter.key)}
        for voter in before:
            if voter.key.id in self._voter_progress and not core.voters.has(voter.key):
                self.progress[voter.key] = self._voter_progress.pop(voter.key.id)
                del self._remind_at_ms[voter.key.id]
                self._heard_in_window.discard(voter.key.id)
        for voter in core.voters:
            if voter.key.id != core.local.id and voter.key.id not in self._voter_progress:
                self._voter_progress[voter.key.id] = self.progress.pop(voter.key, ReplicaProgress())
                self._remind_at_ms[voter.key.id] = core.now_ms
        self._check_quorum_deadline_ms = core.now_ms + core.settings.check_quorum_timeout_ms
        self._advance_high_watermark()

    def on_log_appended(self) -> None:
        self._reconfiguration.on_log_appended()

    def on_log_flushed(self) -> None:
        self._advance_high_watermark()

    def on_fetch(self, request_id: int, request: FetchRequest) -> None:
        core = self.core
        self._heard_from(request.replica)
        answer = self._compare_logs(request.log_end)
        if answer is not None:
            core.emit(SendReply(request_id, answer))
            return
        self._note_progress(request)
        if request.max_wait_ms <= 0 or self._has_news(request):
            self._answer_fetch(request_id, request)
        else:
            self._parked[request_id] = ParkedFetch(request, core.now_ms + request.max_wait_ms)

    def on_fetch_snapshot(self, request_id: int, request: FetchSnapshotRequest) -> None:
        core = self.core
        self._heard_from(request.replica)
        size_bytes = core.log.snapshot_size_bytes(request.snapshot_id)
        error = ErrorCode.none
        if size_bytes is None:
            error = ErrorCode.snapshot_not_found
        elif not 0 <= request.position < size_bytes:
            error = ErrorCode.position_out_of_range
        response = FetchSnapshotResponse(
            error=error,
            leader_id=core.local.id,
            epoch=core.epoch,
            snapshot_id=request.snapshot_id,
            size_bytes=size_bytes or 0,
            position=request.position,
        )
        if error is ErrorCode.none:
            core.emit(ReplyWithSnapshot(request_id, response, request.max_bytes))
        else:
            core.emit(SendReply(request_id, response))

    def successors(self) -> tuple[int, ...]:
        """Return the ids of the other voters, sorted by the length of their logs. The voter with the longest
        log is the first (KIP-595, EndQuorumEpoch)."""
        offsets = {voter: progress.end_offset for voter, progress in self._voter_progress.items()}
        return tuple(sorted(offsets, key=lambda voter: (-offsets[voter], voter)))

    def describe(self) -> str:
        offsets = {voter: progress.end_offset for voter, progress in self._voter_progress.items()}
        return f"start={self.epoch_start_offset} hw={self._majority_high_watermark} voters={offsets}"

    @property
    def _is_taken_out(self) -> bool:
        """Whether a set of voters without this node is committed. If so, another node must lead (KIP-853)."""
        return self._are_voters_committed and not self.core.is_voter

    @property
    def _are_voters_committed(self) -> bool:
        """Whether the log contains a set of voters, and the latest set is committed."""
        logged = self.core.log.voters
        return logged is not None and (self._majority_high_watermark or 0) > logged.offset

    def _counts(self, replica: ReplicaKey) -> bool:
        """Whether a replica is one of the other voters. Its directory must be the directory in the voter's
        entry."""
        return replica.id in self._voter_progress and self.core.voters.has(replica)

    def _heard_from(self, replica: ReplicaKey) -> None:
        core = self.core
        if not self._counts(replica):
            return
        self._remind_at_ms[replica.id] = core.now_ms + core.settings.begin_epoch_interval_ms
        self._heard_in_window.add(replica.id)
        if len(self._heard_in_window) + core.is_voter >= core.voters.majority:
            self._heard_in_window.clear()
            self._check_quorum_deadline_ms = core.now_ms + core.settings.check_quorum_timeout_ms

    def _remind_voters(self) -> None:
        core = self.core
        for node_id, remind_at_ms in self._remind_at_ms.items():
            if core.now_ms >= remind_at_ms and core.peers.is_ready(node_id, core.now_ms):
                self._remind_at_ms[node_id] = core.now_ms + core.settings.begin_epoch_interval_ms
                voter = core.voters.get(node_id)
                request = BeginQuorumEpochRequest(
                    leader_id=core.local.id, epoch=core.epoch, voter=voter.key if voter else None
                )
                core.send(node_id, request)

    def _compare_logs(self, theirs: OffsetAndEpoch) -> FetchResponse | None:
        """Compare the follower's log with this log. Returns ``None`` if the two logs agree, and this log
        still has the next records that the follower needs. Otherwise returns the answer for the follower."""
        log = self.core.log
        if theirs == OffsetAndEpoch(0, 0) and log.log_start_offset == 0:
            return None
        earliest = log.earliest_snapshot_id
        if earliest is not None and self._is_before(theirs, earliest):
            return self._fetch_answer(snapshot_id=log.latest_snapshot_id)
        ours = log.end_offset_for_epoch(theirs.epoch)
        if ours.epoch != theirs.epoch or ours.offset < theirs.offset:
            return self._fetch_answer(diverging=ours)
        return None

    def _is_before(self, theirs: OffsetAndEpoch, earliest: OffsetAndEpoch) -> bool:
        start = self.core.log.log_start_offset
        if theirs.offset < start or (theirs.epoch < earliest.epoch and start > 0):
            return True
        return theirs.offset == start and start > 0 and theirs.epoch != earliest.epoch

    def _note_progress(self, request: FetchRequest) -> None:
        core = self.core
        if self._counts(request.replica):
            progress = self._voter_progress[request.replica.id]
        elif request.replica.id >= 0:
            self._forget_silent_observers()
            progress = self.progress.setdefault(request.replica, ReplicaProgress())
        else:
            return
        progress.fetched(request.log_end.offset, core.log.log_end.offset, core.now_ms)
        self._advance_high_watermark()

    def _forget_silent_observers(self) -> None:
        oldest_ms = self.core.now_ms - self.core.settings.observer_session_timeout_ms
        for key in [key for key, seen in self.progress.items() if (seen.last_fetch_ms or 0) < oldest_ms]:
            del self.progress[key]

    def _advance_high_watermark(self) -> None:
        core = self.core
        offsets = [progress.end_offset for progress in self._voter_progress.values()]
        if core.is_voter:
            offsets.append(core.flushed_offset)
        offset = sorted(offsets, reverse=True)[core.voters.majority - 1]
        if offset > self.epoch_start_offset and offset > (self._majority_high_watermark or 0):
            self._majority_high_watermark = offset
            core.commit_up_to(offset)
            self._reconfiguration.on_committed(offset)

    def _has_news(self, request: FetchRequest) -> bool:
        """Whether a waiting fetch must be answered now.

        An observer uses only committed records. If it got records before they are committed, it would need a
        second response to each record, with the new high watermark.
        """
        known = self._majority_high_watermark
        if known is not None and request.high_watermark < known:
            return True
        end_offset = self.core.log.log_end.offset
        if known is not None and not self._is_or_was_voter(request.replica):
            end_offset = known
        return request.log_end.offset < end_offset

    def _is_or_was_voter(self, replica: ReplicaKey) -> bool:
        """Whether a replica is a voter, or is a voter until the latest set of voters is committed."""
        if self._counts(replica):
            return True
        return not self._are_voters_committed and any(key.is_same_replica(replica) for key in self._leaving)

    def _answer_fetch(self, request_id: int, request: FetchRequest) -> None:
        answer, offset = self._fetch_answer(), request.log_end.offset
        if offset < self.core.log.log_start_offset:
            # The log was pruned while the fetch was waiting. The fetch is evaluated again, and the answer
            # names the snapshot.
            self.core.emit(SendReply(request_id, answer))
        elif offset < self.core.log.log_end.offset:
            self.core.emit(ReplyWithRecords(request_id, answer, offset, request.max_bytes))
        else:
            self.core.emit(SendReply(request_id, answer))

    def _fetch_answer(
        self, *, diverging: OffsetAndEpoch | None = None, snapshot_id: OffsetAndEpoch | None = None
    ) -> FetchResponse:
        core, known = self.core, self._majority_high_watermark
        return FetchResponse(
            error=ErrorCode.none,
            leader_id=core.local.id,
            epoch=core.epoch,
            high_watermark=UNKNOWN_HIGH_WATERMARK if known is None else known,
            log_start_offset=core.log.log_start_offset,
            diverging=diverging,
            snapshot_id=snapshot_id,
        )

    def _fetch_error(self, error: ErrorCode) -> FetchResponse:
        return FetchResponse(error=error, leader_id=self.core.leader_id, epoch=self.core.epoch)
