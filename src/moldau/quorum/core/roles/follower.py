"""The follower. It fetches the log from the leader (KIP-595). If the leader's log begins after the end of
this log, it fetches a snapshot."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.quorum.core.effects import AbandonSnapshot, AppendAsFollower, InstallSnapshot, WriteSnapshotChunk
from moldau.quorum.core.messages import (
    AddVoterRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Request,
    Response,
    UpdateVoterRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.roles.base import Role
from moldau.quorum.core.transitions import RoleName
from moldau.quorum.core.voters import ReplicaKey
from moldau.runtime import ErrorCode

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore


@dataclass(slots=True)
class DownloadProgress:
    """The part of a snapshot that was received so far. ``installing`` means that the snapshot is complete and
    that the driver makes it durable."""

    snapshot_id: OffsetAndEpoch
    position: int = 0
    installing: bool = False


class Follower(Role):
    """Follows the leader of the epoch. If a voter gets no answer within the fetch time-out, it starts an
    election. An observer searches for another leader in this case."""

    name = RoleName.FOLLOWER

    def __init__(self, core: "RaftCore", leader_id: int, fetch_deadline_ms: int) -> None:
        super().__init__(core)
        self.leader_id = leader_id
        self.fetch_deadline_ms = fetch_deadline_ms
        self.has_fetched = False
        self.download: DownloadProgress | None = None
        self._asked = leader_id
        self._leader_high_watermark = -1
        self._log_is_changing = False
        self._is_told_of_this_node = False
        self._ask_for_membership_ms = core.now_ms

    @property
    def deadline_ms(self) -> int | None:
        if self._must_wait_for_the_disk():
            return self.fetch_deadline_ms
        return min(self.fetch_deadline_ms, self.core.peers.next_ready_ms(self._asked, self.core.now_ms))

    def leave(self) -> None:
        if self.download is not None:
            self.core.emit(AbandonSnapshot(self.download.snapshot_id))
            self.download = None

    def grants_vote(self, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool) -> bool:
        # A replica that gets answers from this epoch's leader grants no pre-vote against that leader
        # (KIP-996).
        return pre_vote and up_to_date and not self.has_fetched

    def poll(self) -> None:
        core = self.core
        if core.now_ms >= self.fetch_deadline_ms:
            if core.may_stand:
                core.become_prospective()
                return
            self._look_for_another_leader()
        if self._must_wait_for_the_disk() or not core.peers.is_ready(self._asked, core.now_ms):
            return
        if self.download is not None:
            self._send_fetch_snapshot(self.download)
            return
        wish = self._membership_wish()
        if wish is not None:
            self._ask_for_membership_ms = core.now_ms + core.settings.voter_update_interval_ms
            core.send(self.leader_id, wish)
        else:
            core.send_fetch(self._asked)

    def on_response(self, node_id: int, request: Request, response: Response) -> None:
        if isinstance(response, FetchResponse):
            assert isinstance(request, FetchRequest)
            self._on_fetched(request, response)
        elif isinstance(response, FetchSnapshotResponse):
            self._on_snapshot_fetched(response)
        elif isinstance(response, VoterChangeResponse):
            self._is_told_of_this_node = response.error is ErrorCode.none
            if response.error is ErrorCode.request_timed_out:
                # The leader did not change the voters in time. Either another change of the voters is in
                # progress, or the leader does not know yet that this node has caught up.
                core = self.core
                self._ask_for_membership_ms = core.now_ms + core.settings.voter_update_interval_ms // 10

    def on_request_failed(self, node_id: int) -> None:
        # The request may have failed because the leader's process has ended. An observer does not start
        # elections. Therefore it asks another voter for the leader immediately, and does not wait for the
        # fetch time-out.
        if not self.core.is_voter and node_id == self._asked and self.download is None:
            self._ask_another_voter()

    def on_leader_heard(self) -> None:
        """Handle the leader's own announcement that it leads this epoch."""
        self._heard_leader()

    def on_leader_resigned(self, preferred_successors: tuple[int, ...]) -> None:
        core = self.core
        if not core.may_stand:
            return
        try:
            position = preferred_successors.index(core.local.id)
        except ValueError:
            position = len(preferred_successors)
        # The first voter in ``preferred_successors`` starts an election immediately. Each later voter in the
        # list waits longer than the voter before it, so that the earlier voters have time for an election.
        backoff_ms = 0 if position == 0 else core.settings.retry_backoff_ms << min(position, 16)
        self.has_fetched = False
        self.fetch_deadline_ms = core.now_ms + min(backoff_ms, core.settings.election_backoff_max_ms)

    def on_log_appended(self) -> None:
        self._log_is_changing = False
        self.core.commit_up_to(min(self._leader_high_watermark, self.core.log.log_end.offset))

    def on_log_truncated(self) -> None:
        self._log_is_changing = False

    def on_snapshot_installed(self) -> None:
        self.download = None
        self._heard_leader()

    def describe(self) -> str:
        return f"leader={self.leader_id}" + (f" download={self.download}" if self.download else "")

    def _must_wait_for_the_disk(self) -> bool:
        # A fetch offset acknowledges all records before it, so a voter fetches again only when these records
        # are durable.
        core = self.core
        if self._log_is_changing or (self.download is not None and self.download.installing):
            return True
        return core.acknowledges and core.flushed_offset < core.log.log_end.offset

    def _membership_wish(self) -> VoterChangeRequest | None:
        """Return the change of the voters that this controller now requests from its leader, if there is such
        a change (KIP-853)."""
        core = self.core
        own, logged = core.membership.own, core.log.voters
        if own is None or core.now_ms < self._ask_for_membership_ms or self._asked != self.leader_id:
            return None
        if not self.has_fetched or core.log.log_end.offset < self._leader_high_watermark:
            return None
        known = core.voters.get(core.local.id)
        if core.is_voter:
            # While the voters are static, this request tells the leader the directory of this voter. The
            # leader needs the directories for the change to dynamic voters.
            is_known = self._is_told_of_this_node if logged is None else known == own
            return None if is_known else UpdateVoterRequest(voter=own, epoch=core.epoch)
        if logged is None or not core.membership.auto_join:
            return None
        if known is not None:
            # The set of voters has an entry with this node's id and another directory id. This entry belongs
            # to an earlier incarnation of this node, whose disk was lost.
            return RemoveVoterRequest(key=known.key)
        return AddVoterRequest(voter=own, ack_when_committed=False)

    def _look_for_another_leader(self) -> None:
        # An observer can learn the leader from any voter. It cannot learn the new leader from a leader that
        # no longer answers.
        core = self.core
        if self.download is not None:
            self._abandon(self.download)
        self._ask_another_voter()
        self.fetch_deadline_ms = core.now_ms + core.settings.fetch_timeout_ms

    def _ask_another_voter(self) -> None:
        core = self.core
        others = core.contacts(self._asked)
        if others:
            self._asked = others[core.entropy.randrange(len(others))]

    def _heard_leader(self) -> None:
        self._asked = self.leader_id
        self.fetch_deadline_ms = self.core.now_ms + self.core.settings.fetch_timeout_ms

    def _on_fetched(self, request: FetchRequest, response: FetchResponse) -> None:
        core = self.core
        if response.error is not ErrorCode.none:
            core.peers.back_off(self._asked, core.now_ms)
            self._asked = self.leader_id
            return
        self.has_fetched = True
        self._heard_leader()
        self._leader_high_watermark = response.high_watermark
        if response.diverging is not None:
            self._log_is_changing = core.truncate_to_divergence(response.diverging)
        elif response.snapshot_id is not None:
            self._begin_download(response.snapshot_id)
        elif response.records:
            if request.log_end != core.log.log_end:
                return
            self._log_is_changing = True
            core.emit(AppendAsFollower(response.records))
        else:
            core.commit_up_to(min(response.high_watermark, core.log.log_end.offset))

    def _begin_download(self, snapshot_id: OffsetAndEpoch) -> None:
        # If the snapshot ends below the commit offset, it is not downloaded, because it would move the log
        # back.
        if snapshot_id.offset > self.core.commit_offset or self.core.log.log_end.offset == 0:
            self.download = DownloadProgress(snapshot_id)
        else:
            self.core.peers.back_off(self.leader_id, self.core.now_ms)

    def _send_fetch_snapshot(self, download: DownloadProgress) -> None:
        core = self.core
        request = FetchSnapshotRequest(
            replica=core.local,
            epoch=core.epoch,
            snapshot_id=download.snapshot_id,
            position=download.position,
            max_bytes=core.settings.snapshot_chunk_max_bytes,
        )
        core.send(self.leader_id, request)

    def _on_snapshot_fetched(self, response: FetchSnapshotResponse) -> None:
        core, download = self.core, self.download
        if download is None or response.snapshot_id != download.snapshot_id:
            return
        if response.error in (ErrorCode.snapshot_not_found, ErrorCode.position_out_of_range):
            # The leader has a newer snapshot. Its answer to the next fetch will name this snapshot.
            self._heard_leader()
            self._abandon(download)
        elif response.error is not ErrorCode.none:
            core.peers.back_off(self.leader_id, core.now_ms)
        elif response.position != download.position or not self._advances(download, response):
            self._abandon(download)
            core.peers.back_off(self.leader_id, core.now_ms)
        else:
            self._heard_leader()
            core.emit(WriteSnapshotChunk(download.snapshot_id, download.position, response.data))
            download.position += len(response.data)
            if download.position >= response.size_bytes:
                download.installing = True
                core.emit(InstallSnapshot(download.snapshot_id))

    @staticmethod
    def _advances(download: DownloadProgress, response: FetchSnapshotResponse) -> bool:
        return len(response.data) > 0 or download.position == response.size_bytes

    def _abandon(self, download: DownloadProgress) -> None:
        self.core.emit(AbandonSnapshot(download.snapshot_id))
        self.download = None
