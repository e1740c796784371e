"""Measures the WAL backlog. If the backlog is too large, ``back_pressure.py`` limits the rate of producers.

A broker measures the backlogs of the coordinators that it leads. Other coordinators report their backlogs in
the results of this broker's commits.

Without consolidation, records stay in the WAL until retention deletes them, so the backlog is as large as the
topics. In this case there is no limit for the backlog.
"""

from typing import Protocol

from moldau.coordinators.diskless.calls import Backlog
from moldau.diskless.writing.reported_backlogs import ReportedBacklogs
from moldau.metrics import Meters
from moldau.runtime import Clock

__all__ = ["WalBacklog"]


class BackloggedCoordinators(Protocol):
    """The coordinators that this broker leads. They report their WAL backlog."""

    @property
    def coordinator_ids(self) -> list[int]: ...

    def backlog(self) -> Backlog: ...


class WalBacklog:
    """The part of the cluster's WAL backlog that this broker knows."""

    def __init__(
        self, coordinators: BackloggedCoordinators, reported: ReportedBacklogs, clock: Clock, meters: Meters
    ) -> None:
        self._coordinators = coordinators
        self._reported = reported
        self._clock = clock
        self.max_bytes = -1
        """Limit above which producers are throttled; -1 for no limit."""
        self._known = Backlog()
        scope = meters.scoped("moldau.diskless", "Wal")
        scope.gauge(
            "BacklogBytes",
            lambda: self.refresh().size_bytes,
            "Bytes of the WAL backlog of this broker's coordinators.",
        )
        scope.gauge(
            "BacklogBatches",
            lambda: self._known.batches,
            "Batches of the WAL backlog of this broker's coordinators.",
        )
        scope.gauge(
            "KnownBacklogBytes",
            lambda: self.known_bytes,
            "Bytes of the WAL backlog of all coordinators that this broker leads or commits to. Above"
            " diskless.wal.backlog.max.bytes, producers are slowed down.",
        )
        scope.gauge("BacklogAgeMs", self._age_ms, "Age of the oldest object in the WAL backlog.")

    def refresh(self) -> Backlog:
        """Measure the coordinators that this broker leads. The sum over all partitions is computed once a
        second and not for every request."""
        self._known = self._coordinators.backlog()
        return self._known

    @property
    def known_bytes(self) -> int:
        """The sum of two backlogs. One is the backlog of the coordinators that this broker leads, as of the
        last :meth:`refresh`. The other is the backlog that other coordinators have reported in the last
        seconds."""
        return self._known.size_bytes + self._reported.size_bytes(self._coordinators.coordinator_ids)

    @property
    def excess(self) -> float | None:
        """The number of bytes above the limit, divided by the limit. The result is at most 1.

        ``None`` when the limit is not exceeded.
        """
        if self.max_bytes < 0:
            return None
        over_bytes = self.known_bytes - self.max_bytes
        if over_bytes <= 0:
            return None
        return min(1.0, over_bytes / max(1, self.max_bytes))

    def _age_ms(self) -> int:
        """Age of the oldest object in the WAL backlog."""
        oldest_ms = self._known.oldest_created_ms
        return 0 if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms)
