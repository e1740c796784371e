"""A replica that leads its partition. It tracks its followers' progress, the watermark and the in-sync set.
Pure.

**The watermark** is the minimum of the acknowledged offsets of the leader and of these replicas:

* the members of the *maximal* in-sync set (KIP-497). This set contains the committed set and the set of the
  proposal in progress. The controller has committed one of these two sets. Therefore all members of the
  committed set have all records below the watermark;
* replicas that have caught up and may join. If the watermark did not wait for them, new appends could move
  the watermark ahead of such a replica again and again, and the replica could never join.

The watermark never moves back, and it does not advance while fewer than ``min.insync.replicas`` are in sync.

**The in-sync set** is changed only by the controller. :meth:`LeaderReplica.propose` returns a proposal, which
the driver sends (AlterPartition). The driver then reports one result. It is either the committed set from the
response or the metadata (:meth:`LeaderReplica.set_changed`), or a failure
(:meth:`LeaderReplica.proposal_failed`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

from moldau.replication.core.policy import WRITTEN, Durability, ReplicaPolicy
from moldau.replication.core.role_names import ReplicaRole

UNKNOWN_EPOCH = -1
"""The value for an unknown broker epoch. Requests of older versions have no field for the epoch."""


class IdlePeriod(Protocol):
    """A period in which a follower fetches again and again, and each fetch changes only the times of the
    follower. The leader does not record these fetches one by one.

    The follower is in sync, and all records are committed. Therefore the watermark cannot move before an
    append or a change of the in-sync set, and these end the period.
    """

    def end(self) -> None:
        """End the period. Calls :meth:`LeaderReplica.end_idle` with the time of the last fetch."""
        ...


@dataclass(slots=True)
class FollowerProgress:
    """The progress of one follower, according to its fetches."""

    log_end_offset: int = -1
    log_start_offset: int = -1
    acknowledged_offset: int = -1
    """The end of the follower's log, or of the synced part of this log. The follower's copies below this
    offset count towards the watermark."""
    last_caught_up_ms: int = 0
    leader_end_at_last_fetch: int = 0
    last_fetch_ms: int = 0
    broker_epoch: int = UNKNOWN_EPOCH
    """The follower's broker epoch at its last fetch (KIP-903)."""
    idle: IdlePeriod | None = None
    """The idle period in progress. Its end records the last time."""


class InSyncMember(NamedTuple):
    """A replica of a proposed set, and the broker epoch that the leader knows from the fetches of this
    replica. The broker epoch identifies the incarnation of the broker."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class InSyncProposal:
    """A change of the in-sync set. The leader requests it from the controller (AlterPartition)."""

    leader_epoch: int
    partition_epoch: int
    """The committed partition epoch on which the proposal is based. The controller refuses any other epoch.
    """
    members: tuple[InSyncMember, ...]
    former_size: int
    """Number of replicas in the committed set on which the proposal is based."""

    @property
    def in_sync(self) -> frozenset[int]:
        return frozenset(member.broker_id for member in self.members)


class ProposalFailure(Enum):
    """The outcome of a proposal if the response of the controller contains no committed set, or if there is
    no response."""

    NOT_ATTEMPTED = "the controller has not committed it and will not"
    SUPERSEDED = "the controller is ahead of this leader: newer metadata are on their way"
    UNKNOWN = "it may have been committed: it is sent again"


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """A leadership that the controller has committed."""

    leader_epoch: int
    replicas: Iterable[int]
    in_sync: Iterable[int]
    partition_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ReplicaOffsets:
    """The offsets that are known when a leadership begins."""

    log_end: int
    high_watermark: int
    synced: int = 0
    """Records below this offset are durable. The value is needed only if the policy acknowledges only durable
    records."""


class LeaderReplica:
    """One leadership of this broker over a partition, in one leader epoch (a term)."""

    name: ClassVar = ReplicaRole.LEADER

    def __init__(
        self,
        local_id: int,
        term: LeaderAndIsr,
        offsets: ReplicaOffsets,
        *,
        now_ms: int,
        min_in_sync: int = 1,
        policy: ReplicaPolicy = WRITTEN,
    ) -> None:
        self.local_id = local_id
        self.leader_epoch = term.leader_epoch
        self.partition_epoch = term.partition_epoch
        self.policy = policy
        self.in_sync = frozenset(term.in_sync)
        """The committed in-sync set."""
        self.pending: InSyncProposal | None = None
        """The proposal in progress; ``None`` if no proposal is in progress. At most one proposal is in
        progress."""
        self._must_send_again = False
        self.min_in_sync = min_in_sync
        self.log_end_offset = offsets.log_end
        self._syncs = policy.durability is Durability.FSYNCED
        self.acknowledged_offset = offsets.synced if self._syncs else offsets.log_end
        """This replica's own copies below this offset count towards the watermark."""
        self.high_watermark = offsets.high_watermark
        self.start_offset = offsets.log_end
        """First offset of this term. Records of earlier terms are committed when the watermark reaches it."""
        self.followers = {
            replica: FollowerProgress(last_caught_up_ms=now_ms)
            for replica in term.replicas
            if replica != local_id
        }
        self.log_start_offset = -1
        """The start of the local log, if followers adopt it. A follower with an earlier start does not join,
        because it may not know the last deletion of records. As the next leader it would return them."""
        self._active: Mapping[int, int] = {}
        self._joining: set[int] = set()
        self._bounding: tuple[int, ...] = ()
        self.alone = False
        """Whether an append moves the watermark immediately, because it needs neither another replica nor a
        sync."""
        self._has_idle = False
        """Whether some followers may be in idle periods."""
        self._bounds_changed()

    # -- the log --------------------------------------------------------------------------------

    def local_append(self, log_end_offset: int) -> bool:
        """Record the new end of the local log. Returns whether the high watermark moved."""
        self.log_end_offset = log_end_offset
        if self._has_idle:
            self.end_idle_periods()
        if self.alone:
            self.acknowledged_offset = log_end_offset
            moved = log_end_offset > self.high_watermark
            if moved:
                self.high_watermark = log_end_offset
            return moved
        if self._syncs:
            return False
        self.acknowledged_offset = log_end_offset
        return self.advance()

    def local_sync(self, synced_offset: int) -> bool:
        """Record that the local log is durable below an offset. Returns whether the high watermark moved."""
        if not self._syncs:
            return False
        self.acknowledged_offset = min(synced_offset, self.log_end_offset)
        return self.advance()

    # -- followers ------------------------------------------------------------------------------

    def is_stale_fetch(self, replica_id: int, broker_epoch: int) -> bool:
        """Whether a fetch comes from an old incarnation of a follower. A newer incarnation has replaced
        it."""
        progress = self.followers.get(replica_id)
        return progress is not None and UNKNOWN_EPOCH < broker_epoch < progress.broker_epoch

    def follower_fetched(
        self,
        replica_id: int,
        fetch_offset: int,
        now_ms: int,
        *,
        synced_offset: int | None = None,
        broker_epoch: int = UNKNOWN_EPOCH,
        log_start_offset: int = -1,
    ) -> bool:
        """Record a fetch of a follower whose log agrees up to ``fetch_offset``. Returns whether the watermark
        moved.

        ``synced_offset`` is the end of the durable part of the follower's log, if the policy requires this
        value. Otherwise all records before the fetch offset count as durable.
        """
        progress = self.followers.get(replica_id)
        if progress is None or UNKNOWN_EPOCH < broker_epoch < progress.broker_epoch:
            return False
        if progress.idle is not None:
            progress.idle.end()
        if fetch_offset >= self.log_end_offset:
            progress.last_caught_up_ms = now_ms
        elif fetch_offset >= progress.leader_end_at_last_fetch:
            # The follower now has all records that existed at its last fetch. Therefore it was caught up at
            # the time of that fetch.
            progress.last_caught_up_ms = max(progress.last_caught_up_ms, progress.last_fetch_ms)
        progress.log_end_offset = progress.acknowledged_offset = fetch_offset
        progress.log_start_offset = log_start_offset
        if self._syncs and synced_offset is not None:
            progress.acknowledged_offset = min(synced_offset, fetch_offset)
        progress.leader_end_at_last_fetch = self.log_end_offset
        progress.last_fetch_ms = now_ms
        if broker_epoch != UNKNOWN_EPOCH:
            progress.broker_epoch = broker_epoch
        if replica_id not in self.in_sync and self._active and self._may_join(replica_id):
            self._joining.add(replica_id)
            self._bounds_changed()
        return self.advance()

    def idle_follower_fetched(
        self, replica_id: int, fetch_offset: int, now_ms: int, *, broker_epoch: int, log_start_offset: int
    ) -> bool:
        """Record a fetch that changes only the times of the follower. Returns ``False``, and records nothing,
        if the fetch may change more. :meth:`follower_fetched` then records it.

        The times are enough if an in-sync follower fetches from the end of the log again, and all records are
        committed.
        """
        progress = self.followers.get(replica_id)
        if (
            progress is None
            or replica_id not in self.in_sync
            or broker_epoch != progress.broker_epoch
            or log_start_offset != progress.log_start_offset
            or not fetch_offset == progress.log_end_offset == progress.acknowledged_offset
            or not fetch_offset == self.log_end_offset == self.high_watermark
        ):
            return False
        if progress.idle is not None:
            progress.idle.end()
        progress.last_caught_up_ms = progress.last_fetch_ms = now_ms
        progress.leader_end_at_last_fetch = fetch_offset
        return True

    def begin_idle(self, replica_id: int, period: IdlePeriod) -> int:
        """Begin an idle period of a follower, after :meth:`idle_follower_fetched` has recorded a fetch.
        Returns the time of this fetch."""
        progress = self.followers[replica_id]
        progress.idle = period
        self._has_idle = True
        return progress.last_fetch_ms

    def end_idle(self, replica_id: int, period: IdlePeriod, last_fetch_ms: int) -> None:
        """Record the end of an idle period, and the time of the last fetch in it."""
        progress = self.followers.get(replica_id)
        if progress is not None and progress.idle is period:
            progress.idle = None
            progress.last_caught_up_ms = progress.last_fetch_ms = last_fetch_ms

    def end_idle_periods(self) -> None:
        """End the idle periods of all followers, because the state of this replica changes."""
        self._has_idle = False
        for progress in self.followers.values():
            if progress.idle is not None:
                progress.idle.end()

    def end_offsets_with(self, offset: int) -> dict[int, int]:
        """The log ends of in-sync followers, by the ids of the followers. A follower is included if its log
        contains ``offset``, or ends at ``offset``."""
        return {
            replica: progress.log_end_offset
            for replica, progress in self.followers.items()
            if replica in self.in_sync and progress.log_start_offset <= offset <= progress.log_end_offset
        }

    def low_watermark(self, log_start_offset: int) -> int:
        """Return the lowest log start of all replicas. ``log_start_offset`` is the start of the local log.
        Followers on fenced brokers are left out, unless they are in sync, because an in-sync follower can
        become the leader."""
        starts = (
            progress.log_start_offset
            for replica, progress in self.followers.items()
            if replica in self._active or replica in self.maximal_in_sync
        )
        return min((log_start_offset, *starts))

    def lagging(self, now_ms: int, lag_ms_max: int) -> frozenset[int]:
        """In-sync followers that have not been caught up for ``lag_ms_max``. They may be removed from the
        set."""
        return frozenset(
            replica
            for replica, progress in self.followers.items()
            if replica in self.in_sync and self._lags(progress, now_ms, lag_ms_max)
        )

    def _lags(self, progress: FollowerProgress, now_ms: int, lag_ms_max: int) -> bool:
        is_behind = progress.acknowledged_offset < self.log_end_offset
        return is_behind and now_ms - progress.last_caught_up_ms > lag_ms_max

    def caught_up_outsiders(self) -> frozenset[int]:
        """Return the followers outside the in-sync set that have enough records to join."""
        return frozenset(
            replica
            for replica, progress in self.followers.items()
            if replica not in self.in_sync and self._is_long_enough(progress)
        )

    def _is_long_enough(self, progress: FollowerProgress) -> bool:
        """Whether a follower has all committed records, and also all records of earlier terms."""
        return progress.acknowledged_offset >= max(self.high_watermark, self.start_offset)

    def _knows_start(self, progress: FollowerProgress) -> bool:
        """Whether a follower's log does not begin before this log. Old followers do not send their start."""
        return progress.log_start_offset < 0 or progress.log_start_offset >= self.log_start_offset

    def _may_join(self, replica_id: int) -> bool:
        """Whether a follower has enough records, knows the start of the log, and its broker is active
        (KIP-841) and still has the incarnation that has fetched (KIP-903)."""
        active_epoch = self._active.get(replica_id)
        progress = self.followers[replica_id]
        if active_epoch is None or progress.broker_epoch not in (UNKNOWN_EPOCH, active_epoch):
            return False
        return self._is_long_enough(progress) and self._knows_start(progress)

    # -- the in-sync set ------------------------------------------------------------------------

    def brokers_changed(self, active: Mapping[int, int]) -> bool:
        """Record the epochs of the brokers that are not fenced and not shutting down. Returns whether the
        watermark moved."""
        self._active = active
        self._joining = {replica for replica in self._joining if self._may_join(replica)}
        self._bounds_changed()
        return self.advance()

    def set_changed(
        self, in_sync: Iterable[int], partition_epoch: int = -1, replicas: Iterable[int] | None = None
    ) -> bool:
        """Record an in-sync set that the controller has committed. Sets with older partition epochs are
        ignored.

        Returns whether the watermark moved.
        """
        if partition_epoch < self.partition_epoch:
            return False
        if partition_epoch > self.partition_epoch:
            # The pending proposal is over. The new set is the result of this proposal, or the proposal is
            # based on an old epoch, which the controller refuses.
            self.pending, self._must_send_again = None, False
        self.partition_epoch = partition_epoch
        self.end_idle_periods()
        self.in_sync = frozenset(in_sync)
        if replicas is not None:
            known = self.followers
            others = [replica for replica in replicas if replica != self.local_id]
            self.followers = {replica: known.get(replica) or FollowerProgress() for replica in others}
        self._joining = {
            replica for replica in self._joining if replica in self.followers and replica not in self.in_sync
        }
        self._bounds_changed()
        return self.advance()

    def propose(self, now_ms: int, lag_ms_max: int, *, local_broker_epoch: int) -> InSyncProposal | None:
        """The proposal to send now. It is ``None`` when the set is correct, or when the controller has not
        yet answered a proposal."""
        if self.pending is not None:
            send_again, self._must_send_again = self._must_send_again, False
            return self.pending if send_again else None
        if self._is_complete(now_ms, lag_ms_max):
            return None
        self._joining = {
            replica
            for replica in self._joining
            if self._may_join(replica) and not self._lags(self.followers[replica], now_ms, lag_ms_max)
        }
        joining = {replica for replica in self.caught_up_outsiders() if self._may_join(replica)}
        proposed = (self.in_sync - self.lagging(now_ms, lag_ms_max)) | joining
        if proposed != self.in_sync:
            members = [self._member(replica, local_broker_epoch) for replica in sorted(proposed)]
            self.pending = InSyncProposal(
                self.leader_epoch, self.partition_epoch, tuple(members), len(self.in_sync)
            )
        self._bounds_changed()
        return self.pending

    def _is_complete(self, now_ms: int, lag_ms_max: int) -> bool:
        """Whether all followers are in sync and may stay. This is the usual case of a regular check. It makes
        no objects, because a broker that leads thousands of partitions makes the garbage collector visit
        them."""
        return not self._joining and all(
            replica in self.in_sync and not self._lags(progress, now_ms, lag_ms_max)
            for replica, progress in self.followers.items()
        )

    def _member(self, replica: int, local_broker_epoch: int) -> InSyncMember:
        if replica == self.local_id:
            return InSyncMember(replica, local_broker_epoch)
        progress = self.followers.get(replica)
        return InSyncMember(replica, UNKNOWN_EPOCH if progress is None else progress.broker_epoch)

    def proposal_failed(self, proposal: InSyncProposal, failure: ProposalFailure) -> bool:
        """Record the failure of the pending proposal. Failures of other proposals are ignored. Returns
        whether the watermark moved."""
        if proposal is not self.pending:
            return False
        if failure is ProposalFailure.NOT_ATTEMPTED:
            self.pending = None
            self._bounds_changed()
            return self.advance()
        self._must_send_again = failure is ProposalFailure.UNKNOWN
        return False

    # -- the watermark --------------------------------------------------------------------------

    @property
    def maximal_in_sync(self) -> frozenset[int]:
        """The union of the committed set and of the proposal in progress."""
        return self.in_sync if self.pending is None else self.in_sync | self.pending.in_sync

    def change_min_in_sync(self, min_in_sync: int) -> bool:
        """Set ``min.insync.replicas``, which has changed. Returns whether the watermark moved."""
        self.min_in_sync = min_in_sync
        self._bounds_changed()
        return self.advance()

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether a write with acks=all is accepted.

        At least ``min.insync.replicas`` replicas must be in sync. If the partition has fewer replicas, then
        under Kafka's policy (WRITTEN) it is enough that all of them are in sync.
        """
        needed = self.min_in_sync
        if not self.policy.needs_min_in_sync_always:
            needed = min(needed, 1 + len(self.followers))
        return len(self.in_sync) >= needed

    def _bounds_changed(self) -> None:
        bounding = (self.maximal_in_sync | self._joining) - {self.local_id}
        self._bounding = tuple(sorted(bounding))
        self.alone = not bounding and not self._syncs and self.has_enough_in_sync

    def advance(self) -> bool:
        """Move the watermark to its highest valid position. Returns whether it moved."""
        candidate = self.acknowledged_offset
        if candidate <= self.high_watermark or not self.has_enough_in_sync:
            return False
        followers = self.followers
        for replica in self._bounding:
            progress = followers.get(replica)
            if progress is None:
                return False  # The end of this replica's log is not known yet.
            if progress.acknowledged_offset < candidate:
                candidate = progress.acknowledged_offset
        if candidate > self.high_watermark:
            self.high_watermark = candidate
            return True
        return False
