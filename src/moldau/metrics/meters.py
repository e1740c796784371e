"""The meters. They are plain attributes, because frequently executed code updates them. Derived values are
computed when they are read.

A node's event loop is a single thread, so an update is an addition without a lock. Frequently executed code
may keep a meter and add to ``value`` itself. The methods ``mark`` and ``update`` do the same with a call.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

__all__ = ["BYTES_BOUNDS", "TIME_MS_BOUNDS", "Counter", "Gauge", "Histogram"]

TIME_MS_BOUNDS: tuple[float, ...] = (
    *(0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100),
    *(150, 200, 300, 500, 750, 1_000, 2_000, 5_000, 10_000, 30_000),
)
"""Upper limits of buckets for durations in milliseconds. Requests take from a tenth of a millisecond to half
a minute."""

BYTES_BOUNDS: tuple[float, ...] = tuple(float(4**power) for power in range(2, 16))
"""Upper limits of buckets for sizes in bytes, 16 B to 1 GiB."""


class Counter:
    """A number that only grows. (Kafka's meters also have rates. From these counters, the reader of the
    metrics computes the rates.)"""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def mark(self, count: float = 1) -> None:
        self.value += count


class Gauge:
    """A number that is computed when it is read. ``read`` must be fast and must not raise."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read


class Histogram:
    """A distribution in fixed buckets, with count and sum.

    Percentiles are computed from the buckets by interpolation. The error of a percentile is at most the width
    of a bucket. The buckets of several brokers can be added up, which is not possible with Kafka's sampled
    percentiles.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = TIME_MS_BOUNDS) -> None:
        """``bounds`` are in ascending order. A bucket has the values up to and including its bound. A last
        bucket has all larger values."""
        self.bounds = tuple(map(float, bounds))  # comparing floats with ints would cost more
        self.counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0

    def update(self, value: float, count: int = 1) -> None:
        """Add ``count`` updates with the same value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean. It is 0 while there are no updates."""
        return self.total / (self.count or 1)

    def percentile(self, fraction: float) -> float:
        """Return a percentile: the share ``fraction`` (0 to 1) of the updates is below the returned value.
        The result is 0 while there are no updates.

        The result is at most the last bound, because larger values are not distinguished.
        """
        wanted = fraction * self.count
        if not wanted:
            return 0.0
        seen = 0
        for index, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                low = self.bounds[index - 1] if index else 0.0
                high = self.bounds[min(index, len(self.bounds) - 1)]
                return min(high, low + (high - low) * (wanted - seen) / count)
            seen += count
        return self.bounds[-1]
