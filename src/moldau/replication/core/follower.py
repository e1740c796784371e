"""A replica that follows its partition's leader. It decides from which offset it fetches, and at which offset
its log is truncated. Pure.
"""

from typing import ClassVar, NamedTuple

from moldau.replication.core.divergence import UNDEFINED, EpochHistory
from moldau.replication.core.policy import Durability, ReplicaPolicy
from moldau.replication.core.role_names import IllegalMoveError, ReplicaRole


class FetchPosition(NamedTuple):
    """The position of a follower's next fetch."""

    leader_id: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    """Epoch of the last record before the offset; -1 when there is no such record."""
    log_start_offset: int = 0
    """The start of the follower's own log."""


class FollowerReplica:
    """A term in which this broker follows one leader. It lasts for one leader epoch."""

    name: ClassVar = ReplicaRole.FOLLOWER

    def __init__(self, leader_epoch: int, leader_id: int, high_watermark: int, policy: ReplicaPolicy) -> None:
        self.leader_epoch = leader_epoch
        self.leader_id = leader_id
        self.high_watermark = high_watermark
        """The leader's watermark at the last fetch, or the end of this replica's log if the end is lower than
        that watermark."""
        self._policy = policy

    def position(self, history: EpochHistory, log_end_offset: int) -> FetchPosition:
        """The position of the next fetch. The last fetched epoch is the epoch of the last record, even if a
        later epoch has begun without records."""
        epoch = history.epoch_for_offset(log_end_offset - 1) if log_end_offset else None
        return FetchPosition(
            self.leader_id, self.leader_epoch, log_end_offset, UNDEFINED if epoch is None else epoch
        )

    def truncation(
        self, history: EpochHistory, log_end_offset: int, diverging_epoch: int, end_offset: int
    ) -> int:
        """The offset at which the log must be truncated. ``diverging_epoch`` is the epoch of the
        last record in this log, or the next lower epoch that the leader has. In the leader's log this epoch
        ends at ``end_offset``.

        If this log does not have the diverging epoch, this log is truncated at the end of its next lower
        epoch. The next fetch starts at that offset (KIP-279). Raises :class:`IllegalMoveError` like
        :meth:`truncated`.
        """
        offset = self._agreed_offset(history, log_end_offset, diverging_epoch, end_offset)
        if self._is_lost(offset):
            raise IllegalMoveError(f"a truncation to {offset}, below the watermark {self.high_watermark}")
        return offset

    def _agreed_offset(
        self, history: EpochHistory, log_end_offset: int, diverging_epoch: int, end_offset: int
    ) -> int:
        if end_offset == UNDEFINED:
            # The leader has none of this log's epochs and no earlier epoch. Only the committed records are
            # certainly the same in both logs.
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
        """Record a truncation of the log. Returns whether it removed records that this replica considered
        committed.

        With the policy WRITTEN such a truncation can be legal, after an unclean election or if a leader lost
        its last writes. With policies that count only synced records the truncation is illegal, and
        :class:`IllegalMoveError` is raised.
        """
        if log_end_offset >= self.high_watermark:
            return False
        if self._is_lost(log_end_offset):
            raise IllegalMoveError(
                f"the log was truncated to {log_end_offset}, below the watermark {self.high_watermark}"
            )
        self.high_watermark = log_end_offset
        return True

    def _is_lost(self, offset: int) -> bool:
        """Whether a truncation at ``offset`` removes records that must never be removed."""
        return offset < self.high_watermark and self._policy.durability is Durability.FSYNCED

    def appended(self, log_end_offset: int, leader_high_watermark: int) -> bool:
        """Record that fetched records were appended. Returns whether the watermark moved."""
        watermark = min(leader_high_watermark, log_end_offset)
        if watermark <= self.high_watermark:
            return False
        self.high_watermark = watermark
        return True

    def acknowledged_offset(self, log_end_offset: int, synced_offset: int) -> int:
        """Return the offset that is acknowledged to the leader. This follower's copies below the offset count
        towards the watermark."""
        if self._policy.durability is Durability.FSYNCED:
            return min(synced_offset, log_end_offset)
        return log_end_offset
