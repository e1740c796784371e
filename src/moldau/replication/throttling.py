"""The rate limit that throttled replicas on one broker share, either as leaders or as followers (KIP-73).
Pure.

The limit applies while the average over the last windows exceeds the rate. Then a leader sends no records to
throttled followers that are not in sync. A follower does not fetch those throttled partitions in which it
lags. All bytes of throttled partitions are counted, including the bytes of replicas that are in sync.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from moldau.runtime.byte_quota import ByteRateQuota, QuotaSettings

ALL: Final = "*"
UNLIMITED: Final = 2**63 - 1


class ReplicationQuota:
    """A limit in bytes per second, and the replicas of one broker to which it applies. Times are in seconds
    of the event loop's clock."""

    def __init__(self, local_id: int, *, window_count: int = 11, window_s: int = 1) -> None:
        """The window configs are ``replication.quota.window.num`` and
        ``replication.quota.window.size.seconds``."""
        self._local_id = local_id
        self._rate = ByteRateQuota(QuotaSettings(UNLIMITED, window_count, window_s, window_count_min=1))
        self._throttled: dict[str, frozenset[int] | None] = {}
        """Throttled partitions by topic; ``None`` means all partitions of the topic."""

    @property
    def bytes_per_second(self) -> int:
        """The limit in bytes per second. It is the config ``leader.replication.throttled.rate`` or
        ``follower.replication.throttled.rate``."""
        return self._rate.settings.bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, rate: int) -> None:
        self._rate.settings = replace(self._rate.settings, bytes_per_second=rate)

    def throttle(self, topic: str, replicas: Sequence[str]) -> None:
        """Throttle the replicas of a topic that a config value names. The value is ``*``, a list of
        ``partition:broker`` pairs, or empty."""
        self._throttled.pop(topic, None)
        if tuple(replicas) == (ALL,):
            self._throttled[topic] = None
            return
        pairs = [each.split(":") for each in replicas]
        own = frozenset(int(partition) for partition, broker in pairs if int(broker) == self._local_id)
        if own:
            self._throttled[topic] = own

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Whether the bytes of a partition are counted, because its replica here is throttled."""
        if topic not in self._throttled:
            return False
        partitions = self._throttled[topic]
        return partitions is None or partition in partitions

    def record(self, size_bytes: int, now_s: float) -> None:
        """Count bytes of throttled partitions. The counted bytes may exceed the quota."""
        self._rate.record(size_bytes, now_s)

    def rate(self, now_s: float) -> float:
        """Return the rate of throttled partitions in bytes per second, as the quota measures it."""
        return self._rate.bytes_per_second(now_s)

    def is_exceeded(self, now_s: float) -> bool:
        """Whether the rate is above the quota now."""
        return self.rate(now_s) > self.bytes_per_second
