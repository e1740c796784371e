"""How long producers are not read while too much of what was taken from them waits."""

from typing import Final

CONGESTED_PAUSE_S: Final = 0.05
"""How long a producer is not read when a little too much of what was read waits; then one request goes."""
CONGESTED_PAUSE_MAX_S: Final = 4.0
"""Longest pause, far beyond the bound: five requests in flight are still answered within 30 s."""
PAUSED_BYTES: Final = 1024 * 1024
"""Request size for these pauses; other requests pause in proportion to their size."""


def pause_of(congestion: float, size_bytes: int) -> float:
    """For how many seconds the sender of a request is not read; the more of the heap is too much, the longer.

    At some excess as much comes as leaves: the heap grows no further then, whoever the producers are.
    ``congestion`` is from 0, a little too much, to 1.
    """
    whole_s: float = CONGESTED_PAUSE_S * (CONGESTED_PAUSE_MAX_S / CONGESTED_PAUSE_S) ** congestion
    return min(CONGESTED_PAUSE_MAX_S, max(CONGESTED_PAUSE_S, whole_s * size_bytes / PAUSED_BYTES))
