"""The progress of a replica, as its leader knows it."""

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicaProgress:
    """The fetches of one replica, as its leader knows them. Records below ``end_offset`` are durable on the
    replica; -1 means that the end is unknown. Times are in milliseconds of the core's clock."""

    end_offset: int = -1
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    _leader_end_at_last_fetch: int = -1

    def fetched(self, end_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch at ``end_offset``, when the leader's log ends at ``leader_end_offset``.

        A replica is caught up when it fetches from the end of the leader's log. If it fetches from the offset
        that was the end at its previous fetch, then it was caught up at the time of the previous fetch
        (KIP-836).
        """
        if end_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif end_offset >= self._leader_end_at_last_fetch > 0 and self.last_fetch_ms is not None:
            self.last_caught_up_ms = max(self.last_caught_up_ms or 0, self.last_fetch_ms)
        self.end_offset = end_offset
        self.last_fetch_ms = now_ms
        self._leader_end_at_last_fetch = leader_end_offset
