"""The wall clock of a simulated host. It shows a fixed date plus the event loop's time plus a skew. The skew
may jump."""

from moldau.simulation.world.loop import SimulatedLoop

EPOCH_MS = 1_700_000_000_000


class SimulatedClock:
    """The wall clock of a simulated host. Implements :class:`moldau.runtime.Clock`."""

    def __init__(self, loop: SimulatedLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.elapsed_s() * 1_000)

    def jump(self, by_ms: int) -> None:
        """Move the clock forward, or back if ``by_ms`` is negative."""
        self.skew_ms += by_ms
