"""Compares this node's clock with the clock of the active controller, and logs a large difference.

The active controller writes its time into each batch of the metadata log, and appends a no-op record at
``metadata.max.idle.interval.ms``. For each batch, the difference is this node's time minus the time in the
batch. When a node starts, it replays old batches, and their differences are too large. Therefore only the
smallest difference of a period is used.

Each node also estimates the active controller's time from these batches. This estimate does not depend on the
node's own wall clock. A batch arrives some time after it was written, so an estimate can only be too low. A
higher estimate is used at once. A lower estimate is used only when all batches of some seconds agree with it.
In that case the controller's clock was set back, or another controller has become active.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from moldau.cluster.metadata_log import MetadataBatch, Value

logger = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
LOWERED_AFTER_S: Final = 5.0
"""Time in seconds before a lower estimate of the controller's time is used. During this time, all batches
must give a lower estimate than the estimate in use."""
DIFFERENCE_MS_MAX: Final = 60_000
"""Differences up to this value, in ms, are not reported. Timestamps of records and retention do not need more
exact clocks."""


class ClockComparison:
    """A :class:`moldau.cluster.metadata_log.MetadataLogListener`. It logs a line when the difference becomes
    large, and another line when the difference is small again."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        difference_ms_max: int = DIFFERENCE_MS_MAX,
    ) -> None:
        """``now_ms`` is this node's wall clock. ``monotonic_s`` measures periods. Differences above
        ``difference_ms_max`` are reported."""
        self._max_ms = difference_ms_max
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._leader_id = -1
        self._period_end_s = float("inf")
        self._smallest_ms: int | None = None
        self._is_large = False
        self.difference_ms = 0
        """The time in ms by which this node's clock was ahead of the active controller's clock at the last
        measurement."""
        self._controller_zero_ms: int | None = None
        """The controller's time at the moment when the monotonic clock showed 0; ``None`` before the first
        batch."""
        self._lower_zero_ms: int | None = None
        """While the batches give lower estimates than the estimate in use, the highest of these lower
        estimates; otherwise ``None``.
        """
        self._lower_since_s = 0.0

    @property
    def is_large(self) -> bool:
        """Whether the difference between the two clocks was too large at the last measurement."""
        return self._is_large

    def controller_now_ms(self) -> int:
        """The time of the active controller's clock, in ms since the epoch. The local wall clock is used only
        before the first batch of the metadata log."""
        if self._controller_zero_ms is None:
            return self._now_ms()
        return self._controller_zero_ms + int(self._monotonic_s() * 1000)

    def on_snapshot(
        self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]
    ) -> Iterator[None] | None:
        return None

    def on_commit(self, batches: Sequence[MetadataBatch]) -> Iterator[None] | None:
        self._estimate(batches[-1].timestamp_ms)
        difference_ms = self._now_ms() - batches[-1].timestamp_ms
        if self._smallest_ms is None:
            self._period_end_s = self._monotonic_s() + PERIOD_S
            self._smallest_ms = difference_ms
        self._smallest_ms = min(self._smallest_ms, difference_ms, key=abs)
        if self._monotonic_s() >= self._period_end_s:
            self._report(self._smallest_ms)
            self._smallest_ms = None
        return None

    def _estimate(self, written_ms: int) -> None:
        """Update the estimate of the controller's time with a batch that has just arrived."""
        now_s = self._monotonic_s()
        zero_ms = written_ms - int(now_s * 1000)
        if self._controller_zero_ms is None or zero_ms >= self._controller_zero_ms:
            self._controller_zero_ms, self._lower_zero_ms = zero_ms, None
            return
        if self._lower_zero_ms is None:
            self._lower_zero_ms, self._lower_since_s = zero_ms, now_s
        self._lower_zero_ms = max(self._lower_zero_ms, zero_ms)
        if now_s - self._lower_since_s >= LOWERED_AFTER_S:
            self._controller_zero_ms, self._lower_zero_ms = self._lower_zero_ms, None

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """Begin a new period, because from now on this node's clock is compared with the clock of another
        controller."""
        self._leader_id = leader_id
        self._smallest_ms = None

    def _report(self, difference_ms: int) -> None:
        self.difference_ms = difference_ms
        is_large = abs(difference_ms) > self._max_ms
        if is_large == self._is_large:
            return
        self._is_large = is_large
        if is_large:
            logger.warning(
                "the clock of this node is %d s %s that of the active controller %d: records get wrong time"
                " stamps, and time-based retention deletes too early or too late",
                abs(difference_ms) // 1000,
                "ahead of" if difference_ms > 0 else "behind",
                self._leader_id,
            )
        else:
            logger.info("the clock of this node agrees with that of the active controller again")
