"""The WAL backlogs that coordinators report in the results of this broker's commits."""

from collections.abc import Callable, Container
from typing import Final

LIFETIME_S: Final = 10.0
"""Time in seconds after which a reported backlog is ignored. A broker with active producers gets newer values
much earlier, because the longest pause of its producers is 4 s.
"""


class ReportedBacklogs:
    """The last reported backlog of each coordinator."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """``now_s`` returns a time in seconds that never jumps."""
        self._now_s = now_s
        self._reports: dict[int, tuple[int, float]] = {}
        """The size in bytes and the time of the last report, by coordinator."""

    def report(self, coordinator_id: int, size_bytes: int) -> None:
        """Store the backlog of a coordinator. Nothing is stored for -1, because the coordinator has not
        measured its backlog."""
        if size_bytes >= 0:
            self._reports[coordinator_id] = (size_bytes, self._now_s())

    def size_bytes(self, without: Container[int]) -> int:
        """The sum of the backlogs that were reported in the last 10 s. The coordinators in ``without`` are
        left out."""
        since_s = self._now_s() - LIFETIME_S
        reports = self._reports.items()
        return sum(size for id, (size, time_s) in reports if id not in without and time_s >= since_s)
