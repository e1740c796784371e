"""Fetches of followers from idle partitions.

A broker leads thousands of idle partitions, and their followers fetch twice a second. Therefore the leader
does not visit an idle partition for each fetch. The time of the last fetch is stored once for all idle
partitions of a fetch session.

An idle period begins when a follower fetches from the end of a partition and knows all its offsets. It ends
when the leader's state of the partition changes, or when the follower's position changes. The next fetch of
the session then visits the partition. A request that waits at the leader also waits for this partition from
then on.
"""

from collections.abc import Callable

from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.leader import LeaderReplica
from moldau.replication.waiters import Waiter
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log.state.disk_access import DiskAccess
from moldau.storage.log.state.offsets import LogOffsets


class SessionFetches:
    """The fetches of one fetch session, if a follower uses the session."""

    __slots__ = ("_changed", "_now_ms", "_waiter", "last_ms", "sender")

    def __init__(self) -> None:
        self.sender = (-1, -1)
        """The broker id and the broker epoch of the follower."""
        self.last_ms = 0
        """The time of the last fetch, by the clock that measures the lag of followers."""
        self._now_ms: Callable[[], int] | None = None
        self._waiter: Waiter[PartitionKey] | None = None
        self._changed: list[PartitionKey] = []

    def begin(self) -> None:
        """Record a fetch. Call this before the partitions are visited."""
        if self._now_ms is not None:
            self.last_ms = self._now_ms()
        self._waiter, self._changed = None, []

    def wait(self, waiter: Waiter[PartitionKey]) -> None:
        """Let the fetch wait for all partitions whose idle periods have ended since :meth:`begin`, or end
        later."""
        waiter.add(self._changed)
        self._waiter, self._changed = waiter, []

    def idle_since(self, fetched_ms: int, now_ms: Callable[[], int]) -> None:
        """Record the time of the present fetch, and the clock that measured this time."""
        self.last_ms, self._now_ms = fetched_ms, now_ms

    def changed(self, key: PartitionKey) -> None:
        """Record that the idle period of a partition has ended."""
        if self._waiter is None:
            self._changed.append(key)
        else:
            self._waiter.add((key,))


class IdleFollower:
    """The idle periods of a follower of one partition, in one fetch session."""

    __slots__ = ("_access", "_fetches", "_key", "_leader", "_log_start_offset", "_offsets", "_replica_id")

    def __init__(self, fetches: SessionFetches, key: PartitionKey) -> None:
        self._fetches = fetches
        self._key = key
        self._leader: LeaderReplica | None = None
        """The term of the leader. This value and the parts of the log are ``None`` outside of an idle period.
        """
        # A fetch checks many idle partitions, and the parts of the log are seldom in the CPU's caches.
        # Therefore few of them are used, without the log itself.
        self._offsets: LogOffsets | None = None
        self._access: DiskAccess | None = None
        self._replica_id = self._log_start_offset = -1

    def begin(
        self, replica_id: int, leader: LeaderReplica, log: PartitionLog, now_ms: Callable[[], int]
    ) -> None:
        """Begin an idle period. :meth:`LeaderReplica.idle_follower_fetched` has just recorded the fetch."""
        self._leader, self._replica_id = leader, replica_id
        self._offsets, self._access = log.offsets, log.access
        self._log_start_offset = log.offsets.log_start_offset
        self._fetches.idle_since(leader.begin_idle(replica_id, self), now_ms)

    @property
    def lasts(self) -> bool:
        """Whether the follower still knows everything. The leader's term ends the period when its own state
        changes. It does not know all changes of the log, therefore these are checked here."""
        offsets, access = self._offsets, self._access
        return (
            offsets is not None
            and access is not None
            and offsets.log_start_offset == self._log_start_offset
            and access.failure is None
        )

    def end(self) -> None:
        """End the period. The leader then knows the time of the last fetch."""
        leader, self._leader = self._leader, None
        self._offsets = self._access = None
        if leader is not None:
            leader.end_idle(self._replica_id, self, self._fetches.last_ms)
            self._fetches.changed(self._key)
