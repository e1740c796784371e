"""Limits on the byte rates of background work, remote reads and throttled replication. Pure."""

from collections import deque
from dataclasses import dataclass
from typing import Final

__all__ = ["BytePacer", "ByteRateQuota", "QuotaSettings"]

PACER_SLACK_S: Final = 0.02
"""If a reader has read less than its rate allows, it may read the rest later. The rest is at most the bytes
of this time, in seconds. A reader needs this reserve, because timers fire late and repeated requests arrive
late.
"""


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The settings of a quota. The names of their configs end with ``max.bytes.per.second``,
    ``quota.window.num`` and ``quota.window.size.seconds``."""

    bytes_per_second: int = 2**63 - 1
    window_count: int = 11
    window_s: int = 1
    window_count_min: int | None = None
    """Minimum number of windows in an average, even after a pause. None means all windows except the current
    window."""


class ByteRateQuota:
    """The average rate over the last windows. Times are in seconds of the event loop's clock.

    A recorded number of bytes may exceed the quota, because a segment is copied as a whole. The next bytes
    must then wait longer.
    """

    def __init__(self, settings: QuotaSettings) -> None:
        self.settings = settings
        self._windows: deque[tuple[float, int]] = deque()

    def record(self, size_bytes: int, now_s: float) -> None:
        windows = self._windows
        if windows and now_s < windows[-1][0] + self.settings.window_s:
            start, total = windows[-1]
            windows[-1] = (start, total + size_bytes)
        else:
            windows.append((now_s, size_bytes))
        self._forget(now_s)

    def bytes_per_second(self, now_s: float) -> float:
        """Return the average rate now, in bytes per second."""
        self._forget(now_s)
        if not self._windows:
            return 0.0
        settings = self.settings
        # The average always covers at least ``least`` windows, even if bytes were not yet counted in all of
        # these windows. Otherwise a short burst at the beginning would look like a high rate.
        least = settings.window_count - 1 if settings.window_count_min is None else settings.window_count_min
        elapsed_s = max(least * settings.window_s, now_s - self._windows[0][0], settings.window_s)
        return sum(total for _, total in self._windows) / elapsed_s

    def throttle_s(self, now_s: float) -> float:
        """Time in seconds during which no bytes should be added. It is 0 when the rate is within the
        quota."""
        rate, bound = self.bytes_per_second(now_s), self.settings.bytes_per_second
        if rate <= bound:
            return 0.0
        covered_s = self.settings.window_count * self.settings.window_s
        return min((rate - bound) / bound * covered_s, float(covered_s))

    def _forget(self, now_s: float) -> None:
        covered_s = self.settings.window_count * self.settings.window_s
        while self._windows and self._windows[0][0] + covered_s <= now_s:
            self._windows.popleft()


class BytePacer:
    """A limit on a byte rate without bursts. Each read is scheduled at its own time.

    If the rate were an average over windows, a reader could read the bytes for a whole second at full speed,
    and then pause. The reads at full speed would disturb other clients each time. Times are in seconds of the
    event loop's clock.
    """

    def __init__(self, settings: QuotaSettings) -> None:
        self.settings = settings
        self._free_s = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next read may begin."""
        return max(0.0, self._free_s - now_s)

    def reserve(self, size_bytes: int, now_s: float) -> None:
        """Schedule a read of at most ``size_bytes`` after the earlier reads."""
        self._free_s = max(self._free_s, now_s - PACER_SLACK_S) + self._duration_s(size_bytes)

    def settle(self, taken_bytes: int, size_bytes: int) -> None:
        """Correct the size of a scheduled read. :meth:`reserve` was called with ``taken_bytes``, and the real
        size is ``size_bytes``."""
        self._free_s += self._duration_s(size_bytes - taken_bytes)

    def _duration_s(self, size_bytes: int) -> float:
        return size_bytes / self.settings.bytes_per_second
