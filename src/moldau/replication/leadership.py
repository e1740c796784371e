"""What a leader knows of its followers, and the high watermark that follows from it. Pure.

Legal moves: a follower's fetch moves its end offset and its caught-up time; the leader's own append
moves the local end; the in-sync set changes only when the controller has agreed (KIP-497).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class FollowerProgress:
    """How far one follower has come."""

    log_end_offset: int = -1
    last_caught_up_ms: int = 0
    leader_end_at_last_fetch: int = 0
    last_fetch_ms: int = 0


class Leadership:
    """One term of this broker as a partition's leader."""

    def __init__(
        self,
        local_id: int,
        leader_epoch: int,
        replicas: Iterable[int],
        in_sync: Iterable[int],
        *,
        log_end_offset: int,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        self.local_id = local_id
        self.leader_epoch = leader_epoch
        self.in_sync = frozenset(in_sync)
        self.log_end_offset = log_end_offset
        self.high_watermark = high_watermark
        self.start_offset = log_end_offset
        """First offset of this term: records of earlier terms are committed once this one is reached."""
        self.followers = {
            replica: FollowerProgress(last_caught_up_ms=now_ms) for replica in replicas if replica != local_id
        }
        self.alone = self.in_sync <= {local_id}

    def local_append(self, log_end_offset: int) -> bool:
        """The local log has grown; return whether the high watermark moved."""
        self.log_end_offset = log_end_offset
        if self.alone:
            moved = log_end_offset > self.high_watermark
            self.high_watermark = log_end_offset
            return moved
        return self._advance()

    def follower_fetched(self, replica_id: int, fetch_offset: int, now_ms: int) -> bool:
        """A follower asks for ``fetch_offset``, so it has all before; return whether the watermark moved."""
        progress = self.followers.get(replica_id)
        if progress is None:
            return False
        if fetch_offset >= self.log_end_offset:
            progress.last_caught_up_ms = now_ms
        elif fetch_offset >= progress.leader_end_at_last_fetch:
            # It holds everything that existed when it last asked: it was caught up at that time.
            progress.last_caught_up_ms = max(progress.last_caught_up_ms, progress.last_fetch_ms)
        progress.log_end_offset = fetch_offset
        progress.leader_end_at_last_fetch = self.log_end_offset
        progress.last_fetch_ms = now_ms
        return self._advance()

    def change_in_sync(self, in_sync: Iterable[int]) -> bool:
        """The controller has committed a new in-sync set; return whether the watermark moved."""
        self.in_sync = frozenset(in_sync)
        self.alone = self.in_sync <= {self.local_id}
        return self._advance()

    def lagging(self, now_ms: int, lag_ms_max: int) -> frozenset[int]:
        """In-sync followers that have not been caught up for ``lag_ms_max``: to be proposed for removal."""
        return frozenset(
            replica
            for replica, progress in self.followers.items()
            if replica in self.in_sync
            and progress.log_end_offset < self.log_end_offset
            and now_ms - progress.last_caught_up_ms > lag_ms_max
        )

    def caught_up_outsiders(self) -> frozenset[int]:
        """Followers outside the in-sync set that may be proposed for it."""
        return frozenset(
            replica
            for replica, progress in self.followers.items()
            if replica not in self.in_sync
            and progress.log_end_offset >= max(self.high_watermark, self.start_offset)
        )

    def _advance(self) -> bool:
        ends = [self.log_end_offset]
        ends.extend(progress.log_end_offset for id, progress in self.followers.items() if id in self.in_sync)
        candidate = min(ends)
        if candidate > self.high_watermark:
            self.high_watermark = candidate
            return True
        return False
