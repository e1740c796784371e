"""One replica of a partition: its role, its epoch, and its view of the watermark. Pure.

The driver carries out a replica's decisions in this order:

* *A new term as leader* (:meth:`Replica.lead`): the epoch begins at the log's end before any append.
* *A new term as follower* (:meth:`Replica.follow`): epochs without records are removed from the log's
  history. Then the follower fetches from :meth:`FollowerReplica.position`. If the leader's response has a
  diverging epoch, the log is truncated at :meth:`FollowerReplica.truncation`. Then
  :meth:`FollowerReplica.truncated` is called, before any append.
* *An append or a sync*: the log is changed first. Then :meth:`LeaderReplica.local_append`,
  :meth:`LeaderReplica.local_sync` or :meth:`FollowerReplica.appended` is called. With the FSYNCED policy a
  follower acknowledges only the records that it has synced.
* *A fetch of a follower*: :meth:`LeaderReplica.follower_fetched` is called after the follower's log was found
  to agree (:func:`diverging_epoch`).

A term lasts for one leader epoch. Events of an older epoch change nothing.
"""

from collections.abc import Iterable
from typing import ClassVar, TypeAlias

from moldau.replication.core.divergence import UNDEFINED
from moldau.replication.core.follower import FollowerReplica
from moldau.replication.core.leader import LeaderAndIsr, LeaderReplica, ReplicaOffsets
from moldau.replication.core.policy import WRITTEN, ReplicaPolicy
from moldau.replication.core.role_names import LEGAL_MOVES, IllegalMoveError, ReplicaRole
from moldau.runtime.errors import ErrorCode


class ResignedReplica:
    """A replica that does not lead and does not follow. It has no metadata yet, its partition has no leader,
    or it is stopped."""

    name: ClassVar = ReplicaRole.RESIGNED

    def __init__(self, leader_epoch: int, high_watermark: int, *, has_led: bool = False) -> None:
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.has_led = has_led
        """Whether the replica led in this epoch. It must not lead this epoch again, because the controller
        may still commit proposals that the replica sent as the leader."""


ReplicaState: TypeAlias = LeaderReplica | FollowerReplica | ResignedReplica


class Replica:
    """This broker's replica of one partition. ``LEGAL_MOVES`` contains the legal changes of its role."""

    def __init__(
        self, local_id: int, *, high_watermark: int, policy: ReplicaPolicy = WRITTEN, min_in_sync: int = 1
    ) -> None:
        self.local_id = local_id
        self.policy = policy
        self.min_in_sync = min_in_sync
        self.role: ReplicaState = ResignedReplica(UNDEFINED, high_watermark)

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

    # -- changes of the role --------------------------------------------------------------------

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
        log_start_offset: int = 0,
    ) -> bool:
        """Lead in ``leader_epoch``, because this broker is the leader in the metadata. If this replica
        already leads in this epoch, only ``replicas``, ``in_sync`` and ``partition_epoch`` are updated.

        The high watermark of a new term is not below the start of the log. Otherwise followers could not
        adopt this start, and could not join the in-sync set.

        Returns whether the watermark moved.
        """
        role = self.role
        if isinstance(role, LeaderReplica) and role.leader_epoch == leader_epoch:
            return role.set_changed(in_sync, partition_epoch, replicas)
        if not self._may_move(ReplicaRole.LEADER, leader_epoch):
            return False
        self._end_idle_periods()
        known = min(role.high_watermark, log_end_offset)
        self.role = LeaderReplica(
            self.local_id,
            LeaderAndIsr(leader_epoch, replicas, in_sync, partition_epoch),
            ReplicaOffsets(log_end_offset, max(known, log_start_offset), synced_offset),
            now_ms=now_ms,
            min_in_sync=self.min_in_sync,
            policy=self.policy,
        )
        self.role.advance()
        return self.role.high_watermark > known

    def follow(self, leader_epoch: int, leader_id: int) -> bool:
        """Follow the leader in the metadata. Returns whether a new term begins."""
        role = self.role
        if isinstance(role, FollowerReplica) and (role.leader_epoch, role.leader_id) == (
            leader_epoch,
            leader_id,
        ):
            return False
        if not self._may_move(ReplicaRole.FOLLOWER, leader_epoch):
            return False
        self._end_idle_periods()
        self.role = FollowerReplica(leader_epoch, leader_id, role.high_watermark, self.policy)
        return True

    def resign(self, leader_epoch: int) -> bool:
        """Resign, because no broker leads or because this broker stops. Returns whether the role or its epoch
        changed."""
        role = self.role
        if isinstance(role, ResignedReplica) and role.leader_epoch == leader_epoch:
            return False
        if not self._may_move(ReplicaRole.RESIGNED, leader_epoch):
            return False
        self._end_idle_periods()
        has_led = isinstance(role, LeaderReplica) and role.leader_epoch == leader_epoch
        self.role = ResignedReplica(leader_epoch, role.high_watermark, has_led=has_led)
        return True

    def _end_idle_periods(self) -> None:
        if isinstance(self.role, LeaderReplica):
            self.role.end_idle_periods()

    def _may_move(self, target: ReplicaRole, leader_epoch: int) -> bool:
        """Whether the replica may change to the role ``target`` in this epoch. The result is False for an
        older epoch. Raises :class:`IllegalMoveError` for a change that ``LEGAL_MOVES`` does not contain."""
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
        """Set ``min.insync.replicas``, which has changed. Returns whether the watermark moved."""
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
        """Return the offset up to which a reader may read. Followers may read the whole log of the leader."""
        role = self.role
        if is_replica and isinstance(role, LeaderReplica):
            return role.log_end_offset
        return role.high_watermark
