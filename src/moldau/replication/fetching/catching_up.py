"""The order in which a follower copies partitions in which it is far behind. Pure.

Copies have connections of their own, and their bytes are spread over time. Otherwise the requests for
partitions in sync would wait for large responses, and producers with acks=all would wait for these requests.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from moldau.protocol.partitions import PartitionKey
from moldau.replication.fetching.fetch_session import FetchLimits
from moldau.runtime.byte_quota import BytePacer, QuotaSettings

CHECK_S: Final = 5.0
"""Interval in seconds at which the distance to the leader is compared with the distance before."""
SHRINKING: Final = 0.9
"""Part of the earlier distance that may be left after :data:`CHECK_S`. If more is left, the pace is too
slow."""

Move = Callable[[PartitionKey], None]
"""Moves a partition to another connection."""


def is_far_behind(size_bytes: int, limits: FetchLimits) -> bool:
    """Whether a follower is far behind in a partition. ``size_bytes`` is the size of the partition's records
    in one response. The follower has appended them, and still lacks committed records."""
    return size_bytes >= limits.max_bytes // 4


def copy_limits(limits: FetchLimits) -> FetchLimits:
    """The limits of requests on a connection for copies.

    Larger responses would keep the event loops of both brokers busy for longer. The leader answers at once,
    because the other partitions wait for the end of a request. It has no records for a copy only if it
    throttles the replication of the partition.
    """
    return replace(
        limits,
        response_max_bytes=min(limits.response_max_bytes, limits.max_bytes),
        wait_max_ms=0,
    )


class CatchUpPace:
    """The rate of all copies of a broker together (``replica.catch.up.max.bytes.per.second``). Times are in
    seconds of the event loop's clock."""

    def __init__(self, bytes_per_second: int) -> None:
        self._pacer = BytePacer(QuotaSettings(bytes_per_second))

    def pause_s(self, size_bytes: int, now_s: float) -> float:
        """Count copied bytes. Returns the time in seconds for which their connection must pause."""
        self._pacer.reserve(size_bytes, now_s)
        return self._pacer.wait_s(now_s)


class CopyTurns:
    """Selects the one partition that the next request of a connection copies. The partitions take turns.

    A response has the records of about one partition. If a request named all partitions, both brokers would
    also process all others, each time. With six partitions, a copy would take a third more CPU time.
    """

    def __init__(self) -> None:
        self._waiting: dict[PartitionKey, None] = {}
        """The partitions without the current one, in the order of their next turns."""
        self.current: PartitionKey | None = None
        """The partition that has its turn; ``None`` if no partition can be requested now."""

    def add(self, key: PartitionKey) -> None:
        """Add a partition after the others."""
        if key != self.current:
            self._waiting[key] = None

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition."""
        self._waiting.pop(key, None)
        if key == self.current:
            self.current = None

    def give(self, is_ready: Callable[[PartitionKey], bool]) -> PartitionKey | None:
        """End the turn of the current partition, and give the turn to the next partition that is ready.
        Returns this partition."""
        if self.current is not None:
            self._waiting[self.current] = None
        self.current = next((key for key in self._waiting if is_ready(key)), None)
        if self.current is not None:
            del self._waiting[self.current]
        return self.current


class CopyProgress:
    """Whether a copy comes closer to the end of the leader's log. If producers write as fast as the pace
    permits, the copy would never end. It then continues without pauses."""

    __slots__ = ("_checked_s", "_distance", "is_too_slow")

    def __init__(self, now_s: float) -> None:
        self._checked_s = now_s
        self._distance = -1
        self.is_too_slow = False
        """Whether this copy must not pause any more."""

    def copied(self, distance: int, now_s: float) -> None:
        """Note the number of committed records that the follower still lacks."""
        if self._distance < 0:
            self._distance = distance
        elif now_s >= self._checked_s + CHECK_S:
            self.is_too_slow = self.is_too_slow or distance > self._distance * SHRINKING
            self._checked_s, self._distance = now_s, distance
