"""Wall-clock time. Durations and time-outs come from the event loop (``loop.time``), never from here."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may step backwards when the machine's clock is set."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
