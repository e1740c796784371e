"""One replica of a partition: its role, its epoch, and its view of the watermark. Pure.

The driver carries out a replica's decisions in this order:

* *A new term as leader* (:meth:`Replica.lead`): the epoch begins at the log's end before any append.
* *A new term as follower* (:meth:`Replica.follow`): epochs without records are removed from the log's
  history. Then the follower fetches from :meth:`FollowerReplica.position`. If the leader answers with a
  diverging epoch, the log is truncated at :meth:`FollowerReplica.truncation` and
  :meth:`FollowerReplica.truncated` is called, before any append.
* *An append or a sync*: the log is changed first. Then :meth:`LeaderReplica.local_append`,
  :meth:`LeaderReplica.local_sync` or :meth:`FollowerReplica.appended` is called. With the FSYNCED policy a
  follower acknowledges only the records that it has synced.
* *A fetch of a follower*: :meth:`LeaderReplica.follower_fetched` is called after the follower's log was found
  to agree (:func:`diverging_epoch`).

A term lasts for one leader epoch. Events of an older epoch change nothing.
"""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from moldau.replication.core.leader import LeaderAndIsr, LeaderReplica, ReplicaOffsets
from moldau.replication.core.policy import WRITTEN, Durability, ReplicaPolicy
from moldau.replication.core.role_names import LEGAL_MOVES, ReplicaRole
from moldau.runtime.errors import ErrorCode

UNDEFINED = -1
"""An unknown epoch or offset."""


class IllegalMoveError(ValueError):
    """There are two leaders of one epoch, or a truncation below the watermark that the policy forbids."""


class EpochHistory(Protocol):
    """The epochs of a log, with their start offsets."""

    def epoch_for_offset(self, offset: int, /) -> int | None: ...

    def end_offset_for(self, epoch: int, log_end_offset: int, /) -> tuple[int, int]:
        """The largest known epoch not above ``epoch``, and its end offset; (-1, -1) when it is unknown."""
        ...


def diverging_epoch(
    history: EpochHistory, log_end_offset: int, offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """Compare a fetcher's log with this one (KIP-595). Returns ``None`` if it agrees up to ``offset``.

    Otherwise returns the largest epoch here that is not above the fetcher's epoch, and its end offset; (-1,
    -1) if there is none.
    """
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = history.end_offset_for(last_fetched_epoch, log_end_offset)
    if epoch == last_fetched_epoch and end_offset >= offset:
        return None
    return epoch, end_offset


class FetchPosition(NamedTuple):
    """The position of a follower's next fetch."""

    leader_id: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    """Epoch of the last record before the offset; -1 when there is none."""
    log_start_offset: int = 0
    """The start of the follower's own log."""


class ResignedReplica:
    """A replica that does not lead and does not follow: before its first metadata, without a leader, or
    stopped."""

    name: ClassVar = ReplicaRole.RESIGNED

    def __init__(self, leader_epoch: int, high_watermark: int, *, has_led: bool = False) -> None:
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.has_led = has_led
        """Whether the replica led in this epoch. It must not lead this epoch again, because proposals of
        that time may still be committed.
        """


class FollowerReplica:
    """One term of this broker as a follower of one leader (in one leader epoch)."""

    name: ClassVar = ReplicaRole.FOLLOWER

    def __init__(self, leader_epoch: int, leader_id: int, high_watermark: int, policy: ReplicaPolicy) -> None:
        self.leader_epoch = leader_epoch
        self.leader_id = leader_id
        self.high_watermark = high_watermark
        """The leader's watermark at the last fetch, or the log's end if that is lower."""
        self._policy = policy

    def position(self, history: EpochHistory, log_end_offset: int) -> FetchPosition:
        """The position of the next fetch. Its last fetched epoch is that of the last record, even if a
        later epoch has begun.
        """
        epoch = history.epoch_for_offset(log_end_offset - 1) if log_end_offset else None
        return FetchPosition(
            self.leader_id, self.leader_epoch, log_end_offset, UNDEFINED if epoch is None else epoch
        )

    def truncation(
        self, history: EpochHistory, log_end_offset: int, diverging_epoch: int, end_offset: int
    ) -> int:
        """The offset at which the log must be truncated, given the leader's largest epoch that is not above
        the epoch of the last record here.

        If this log does not have the leader's epoch either, it is truncated at the end of its own largest
        epoch below the leader's epoch, and the next fetch starts there (KIP-279). Raises
        :class:`IllegalMoveError` like :meth:`truncated`.
        """
        offset = self._agreed_offset(history, log_end_offset, diverging_epoch, end_offset)
        if self._is_lost(offset):
            raise IllegalMoveError(f"a cut to {offset}, below the watermark {self.high_watermark}")
        return offset

    def _agreed_offset(
        self, history: EpochHistory, log_end_offset: int, diverging_epoch: int, end_offset: int
    ) -> int:
        if end_offset == UNDEFINED:
            # The leader's epochs begin above this log's end. Only committed records are certain to agree.
            return min(self.high_watermark, log_end_offset)
        if diverging_epoch == UNDEFINED:
            return min(end_offset, log_end_offset)
        own_epoch, own_end = history.end_offset_for(diverging_epoch, log_end_offset)
        if own_epoch == UNDEFINED:
            return min(end_offset, log_end_offset)
        if own_epoch != diverging_epoch:
            return min(own_end, log_end_offset)
        return min(own_end, end_offset, log_end_offset)

    def truncated(self, log_end_offset: int) -> bool:
        """Note a truncation of the log; return whether it removed records that this replica considered
        committed.

        With WRITTEN that can be legal (after an unclean election, or if a leader lost its last writes). With
        policies that count only synced records it is illegal, and :class:`IllegalMoveError` is raised.
        """
        if log_end_offset >= self.high_watermark:
            return False
        if self._is_lost(log_end_offset):
            raise IllegalMoveError(
                f"the log was cut to {log_end_offset}, below the watermark {self.high_watermark}"
            )
        self.high_watermark = log_end_offset
        return True

    def _is_lost(self, offset: int) -> bool:
        """Whether a truncation at ``offset`` removes records that must never be removed."""
        return offset < self.high_watermark and self._policy.durability is Durability.FSYNCED

    def appended(self, log_end_offset: int, leader_high_watermark: int) -> bool:
        """Note that fetched records were appended; return whether the watermark moved."""
        watermark = min(leader_high_watermark, log_end_offset)
        if watermark <= self.high_watermark:
            return False
        self.high_watermark = watermark
        return True

    def acknowledged_offset(self, log_end_offset: int, synced_offset: int) -> int:
        """The offset to acknowledge to the leader. This follower's copies below it count towards the
        watermark."""
        if self._policy.durability is Durability.FSYNCED:
            return min(synced_offset, log_end_offset)
        return log_end_offset


Role: TypeAlias = LeaderReplica | FollowerReplica | ResignedReplica


class Replica:
    """This broker's replica of one partition. The legal changes of the role are in ``LEGAL_MOVES``."""

    def __init__(
        self, local_id: int, *, high_watermark: int, policy: ReplicaPolicy = WRITTEN, min_in_sync: int = 1
    ) -> None:
        self.local_id = local_id
        self.policy = policy
        self.min_in_sync = min_in_sync
        self.role: Role = ResignedReplica(UNDEFINED, high_watermark)

    @property
    def leader_epoch(self) -> int:
        return self.role.leader_epoch

    @property
    def high_watermark(self) -> int:
        """First offset that consumers may not read yet."""
        return self.role.high_watermark

    @property
    def leader(self) -> LeaderReplica | None:
        """The present term as leader; ``None`` if this replica does not lead."""
        role = self.role
        return role if isinstance(role, LeaderReplica) else None

    @property
    def follower(self) -> FollowerReplica | None:
        """The present term as follower; ``None`` if this replica does not follow."""
        role = self.role
        return role if isinstance(role, FollowerReplica) else None

    # -- moves ----------------------------------------------------------------------------------

    def lead(
        self,
        leader_epoch: int,
        replicas: Iterable[int],
        in_sync: Iterable[int],
        *,
        partition_epoch: int,
        log_end_offset: int,
        synced_offset: int,
        now_ms: int,
    ) -> bool:
        """Lead in ``leader_epoch``, because the metadata name this broker as leader. Within the current epoch
        only the sets are updated.

        Return whether the watermark moved.
        """
        role = self.role
        if isinstance(role, LeaderReplica) and role.leader_epoch == leader_epoch:
            return role.set_changed(in_sync, partition_epoch, replicas)
        if not self._may_move(ReplicaRole.LEADER, leader_epoch):
            return False
        self.role = LeaderReplica(
            self.local_id,
            LeaderAndIsr(leader_epoch, replicas, in_sync, partition_epoch),
            ReplicaOffsets(log_end_offset, min(role.high_watermark, log_end_offset), synced_offset),
            now_ms=now_ms,
            min_in_sync=self.min_in_sync,
            policy=self.policy,
        )
        return self.role.advance()

    def follow(self, leader_epoch: int, leader_id: int) -> bool:
        """Follow the leader that the metadata name; return whether this begins a term."""
        role = self.role
        if isinstance(role, FollowerReplica) and (role.leader_epoch, role.leader_id) == (
            leader_epoch,
            leader_id,
        ):
            return False
        if not self._may_move(ReplicaRole.FOLLOWER, leader_epoch):
            return False
        self.role = FollowerReplica(leader_epoch, leader_id, role.high_watermark, self.policy)
        return True

    def resign(self, leader_epoch: int) -> bool:
        """Resign, because no broker leads or this broker stops; return whether the role or its epoch
        changed."""
        role = self.role
        if isinstance(role, ResignedReplica) and role.leader_epoch == leader_epoch:
            return False
        if not self._may_move(ReplicaRole.RESIGNED, leader_epoch):
            return False
        has_led = isinstance(role, LeaderReplica) and role.leader_epoch == leader_epoch
        self.role = ResignedReplica(leader_epoch, role.high_watermark, has_led=has_led)
        return True

    def _may_move(self, target: ReplicaRole, leader_epoch: int) -> bool:
        """Whether the move is allowed; False for an older epoch. Raises :class:`IllegalMoveError`."""
        source, known = self.role.name, self.role.leader_epoch
        if leader_epoch < known:
            return False
        is_free = ReplicaRole.RESIGNED in (source, target)
        if target is ReplicaRole.LEADER and isinstance(self.role, ResignedReplica) and self.role.has_led:
            is_free = False
        if (source, target) not in LEGAL_MOVES or (leader_epoch == known and not is_free):
            raise IllegalMoveError(f"{source.value} to {target.value} in epoch {leader_epoch}")
        return True

    def change_min_in_sync(self, min_in_sync: int) -> bool:
        """Set ``min.insync.replicas``, which has changed; return whether the watermark moved."""
        self.min_in_sync = min_in_sync
        role = self.role
        return isinstance(role, LeaderReplica) and role.change_min_in_sync(min_in_sync)

    # -- requests -------------------------------------------------------------------------------

    def check_epoch(self, current_leader_epoch: int, *, may_follow: bool = False) -> ErrorCode:
        """Check the leader epoch in a request (KIP-320); -1 means that the request has no epoch.

        ``may_follow`` means that a follower may also answer the request (KIP-392).
        """
        role = self.role
        if not isinstance(role, LeaderReplica) and not (may_follow and isinstance(role, FollowerReplica)):
            return ErrorCode.not_leader_or_follower
        if current_leader_epoch == UNDEFINED or current_leader_epoch == role.leader_epoch:
            return ErrorCode.none
        if current_leader_epoch < role.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    def readable_end(self, *, is_replica: bool) -> int:
        """The offset up to which a reader may read. Followers may read the leader's whole log."""
        role = self.role
        if is_replica and isinstance(role, LeaderReplica):
            return role.log_end_offset
        return role.high_watermark
