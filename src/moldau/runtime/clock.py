"""Wall-clock time. Durations and time-outs come from the event loop (``loop.time``), never from here."""

import asyncio
import time
from typing import Final, Protocol


class Clock(Protocol):
    """Returns the time of day."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. The value may become lower when the machine's clock is set."""
        ...


class SystemClock:
    """The system clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


CATCH_UP_RATE: Final = 2.0
JUMP_MS: Final = 100
"""Minimum difference, in ms, that counts as a jump of the clock. Smaller differences result from rounding and
from small adjustments."""


class DeletionClock:
    """A clock that decides whether data are old enough to be deleted or forgotten.

    This clock follows another clock, and is never ahead of the other clock. When the other clock jumps ahead,
    this clock runs at twice the normal speed until it shows the same time as the other clock. Therefore
    almost nothing is deleted too early if a wrong clock is corrected within minutes. When the other clock
    jumps back, this clock jumps back at once. Deletions then happen later.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_ms: float | None = None
        self._told_at_s = 0.0

    def now_ms(self) -> int:
        """Call this on the event loop."""
        wall_ms, loop_s = self._clock.now_ms(), asyncio.get_running_loop().time()
        if self._told_ms is None:
            told_ms = float(wall_ms)
        else:
            passed_ms = (loop_s - self._told_at_s) * 1000
            caught_up_ms = self._told_ms + CATCH_UP_RATE * passed_ms
            told_ms = float(wall_ms) if wall_ms - caught_up_ms < JUMP_MS else caught_up_ms
        self._told_ms, self._told_at_s = told_ms, loop_s
        return int(told_ms)
