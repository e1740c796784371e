"""Back-pressure: pauses during which producers are not read, while the backlog is too large."""

from typing import Final

CONGESTED_PAUSE_S: Final = 0.05
"""Pause of a producer when the backlog slightly exceeds its limit. A single request is processed after each
pause."""
CONGESTED_PAUSE_MAX_S: Final = 4.0
"""Longest pause, for a much larger backlog. Five requests in flight are still answered within 30 s."""
PAUSED_BYTES: Final = 1024 * 1024
"""Request size for which these pauses are. For other sizes they are longer or shorter in proportion."""


def pause_of(congestion: float, size_bytes: int) -> float:
    """Seconds for which the sender's connection is not read. The time grows with the excess of the backlog.

    At a certain excess, input and output are equal. The backlog then stops growing, for any number of
    producers. ``congestion`` is a number from 0 (a slight excess) to 1.
    """
    whole_s: float = CONGESTED_PAUSE_S * (CONGESTED_PAUSE_MAX_S / CONGESTED_PAUSE_S) ** congestion
    return min(CONGESTED_PAUSE_MAX_S, max(CONGESTED_PAUSE_S, whole_s * size_bytes / PAUSED_BYTES))
