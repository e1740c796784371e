"""Measures the WAL backlog. If the backlog is too large, ``back_pressure.py`` limits the rate of producers.

If records leave the WAL only by retention, the backlog is as large as the topics. In this case the backlog
has no limit.
"""

from typing import Protocol

from moldau.coordinators.diskless.calls import Backlog
from moldau.metrics import Meters
from moldau.runtime import Clock

__all__ = ["WalBacklog"]


class BackloggedCoordinators(Protocol):
    """The coordinators that this broker leads. They report their WAL backlog."""

    def backlog(self) -> Backlog: ...


class WalBacklog:
    """The backlog of the coordinators that this broker leads, as of the last :meth:`refresh`."""

    def __init__(self, coordinators: BackloggedCoordinators, clock: Clock, meters: Meters) -> None:
        self._coordinators = coordinators
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
        scope.gauge("BacklogAgeMs", self._age_ms, "Age of the oldest object in the WAL backlog.")

    def refresh(self) -> Backlog:
        """Measure again. The sum over all partitions is computed once a second and not for every request."""
        self._known = self._coordinators.backlog()
        return self._known

    @property
    def excess(self) -> float | None:
        """The bytes above the limit as a fraction of the limit, from 0 to 1. If the fraction is larger, the
        result is 1.

        ``None`` when the limit is not exceeded.
        """
        over_bytes = self._known.size_bytes - self.max_bytes
        if self.max_bytes < 0 or over_bytes <= 0:
            return None
        return min(1.0, over_bytes / max(1, self.max_bytes))

    def _age_ms(self) -> int:
        """Age of the oldest object in the WAL backlog."""
        oldest_ms = self._known.oldest_created_ms
        return 0 if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms)
