"""The WAL backlog: its measurement, and the throttling of producers by it.

Where nothing leaves the WAL but by retention, its size is the topics'; then there is no bound.
"""

from typing import Protocol

from moldau.coordinators.diskless.calls import Backlog
from moldau.metrics import Meters
from moldau.runtime import Clock

__all__ = ["WalBacklog"]


class BackloggedCoordinators(Protocol):
    """The coordinators led here."""

    def backlog(self) -> Backlog: ...


class WalBacklog:
    """The backlog of the coordinators that this broker leads, as of the last :meth:`refresh`."""

    def __init__(self, coordinators: BackloggedCoordinators, clock: Clock, meters: Meters) -> None:
        self._coordinators = coordinators
        self._clock = clock
        self.max_bytes = -1
        """From there on producers are slowed down; -1 for never."""
        self._known = Backlog()
        scope = meters.scoped("moldau.diskless", "Wal")
        scope.gauge("BacklogBytes", lambda: self.refresh().size_bytes)
        scope.gauge("BacklogBatches", lambda: self._known.batches)
        scope.gauge("BacklogAgeMs", self._age_ms)

    def refresh(self) -> Backlog:
        """Measure anew: a sum over partitions, for every second and not for every request."""
        self._known = self._coordinators.backlog()
        return self._known

    @property
    def excess(self) -> float | None:
        """How far it is over the bound, as a part of the bound: 0 to 1, and 1 when it is farther.

        None when there is no more than the bound allows.
        """
        over_bytes = self._known.size_bytes - self.max_bytes
        if self.max_bytes < 0 or over_bytes <= 0:
            return None
        return min(1.0, over_bytes / max(1, self.max_bytes))

    def _age_ms(self) -> int:
        """How long ago the oldest object with a batch in use was begun."""
        oldest_ms = self._known.oldest_created_ms
        return 0 if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms)
