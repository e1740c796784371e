"""Tracks, by the outcome of requests, whether the object store works. Pure.

======================= ========== =========== ======
state                   success    failure     failing for ``down_after_ms``
======================= ========== =========== ======
working                 (stays)    struggling  -
struggling              working    (stays)     down
down                    working    (stays)     (stays)
======================= ========== =========== ======
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["HealthState", "StorageHealth", "StorageHealthReport"]


class HealthState(Enum):
    WORKING = "working"
    STRUGGLING = "struggling"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class StorageHealthReport:
    """The state, and the error that has caused this state. In the state working there is no error."""

    state: HealthState
    last_error: str = ""


class StorageHealth:
    """Tracks successes and failures of single requests. Times are in milliseconds of the event loop's
    clock."""

    def __init__(
        self,
        down_after_ms: float = 5_000,
        on_change: Callable[[StorageHealthReport], None] = lambda report: None,
    ) -> None:
        self._down_after_ms = down_after_ms
        self._on_change = on_change
        self._failing_since_ms = 0.0
        self.report = StorageHealthReport(HealthState.WORKING)

    @property
    def state(self) -> HealthState:
        return self.report.state

    def succeeded(self) -> None:
        if self.report.state is not HealthState.WORKING:
            self._change(StorageHealthReport(HealthState.WORKING))

    def failed(self, error: str, now_ms: float) -> None:
        state = self.report.state
        if state is HealthState.WORKING:
            self._failing_since_ms = now_ms
            self._change(StorageHealthReport(HealthState.STRUGGLING, error))
        elif state is HealthState.STRUGGLING and now_ms - self._failing_since_ms >= self._down_after_ms:
            self._change(StorageHealthReport(HealthState.DOWN, error))
        else:
            self.report = StorageHealthReport(state, error)

    def _change(self, report: StorageHealthReport) -> None:
        self.report = report
        self._on_change(report)
