"""A rate of bytes that background work and remote reads have to keep (Kafka's RLMQuotaManager). Pure."""

from collections import deque
from dataclasses import dataclass

__all__ = ["ByteRateQuota", "QuotaSettings"]


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """``...max.bytes.per.second``, ``...quota.window.num``, ``...quota.window.size.seconds``."""

    bytes_per_second: int = 2**63 - 1
    window_count: int = 11
    window_s: int = 1


class ByteRateQuota:
    """The average over the last windows; times are the loop's seconds.

    What is recorded may exceed the quota (a segment is copied whole): the next one then waits longer.
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
        """The rate now."""
        self._forget(now_s)
        if not self._windows:
            return 0.0
        # As if the windows had been there before the first byte: a short burst is no high rate.
        at_least_s = (self.settings.window_count - 1) * self.settings.window_s
        elapsed_s = max(at_least_s, now_s - self._windows[0][0], self.settings.window_s)
        return sum(total for _, total in self._windows) / elapsed_s

    def throttle_s(self, now_s: float) -> float:
        """For how long nothing should be added; 0 within the quota."""
        rate, bound = self.bytes_per_second(now_s), self.settings.bytes_per_second
        if rate <= bound:
            return 0.0
        covered_s = self.settings.window_count * self.settings.window_s
        return min((rate - bound) / bound * covered_s, float(covered_s))

    def _forget(self, now_s: float) -> None:
        covered_s = self.settings.window_count * self.settings.window_s
        while self._windows and self._windows[0][0] + covered_s <= now_s:
            self._windows.popleft()
