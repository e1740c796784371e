"""Back-pressure on producers. While the backlog is too large, the broker makes a pause before it reads the
next request from a producer's connection. This module computes the pauses."""

from typing import Final

from moldau.diskless.writing.writer import DisklessWriter
from moldau.metrics import Meters
from moldau.network.context import RequestContext
from moldau.runtime import Clock
from moldau.server.subsystems.diskless.wal_backlog import BackloggedCoordinators, WalBacklog

CONGESTED_PAUSE_S: Final = 0.05
"""Pause in seconds after each request of a producer, when the backlog is slightly above its limit."""
CONGESTED_PAUSE_MAX_S: Final = 4.0
"""Longest pause in seconds, for a backlog far above its limit. A producer with five requests in flight still
gets its responses within 30 s."""
PAUSED_BYTES: Final = 1024 * 1024
"""Size of the requests, in bytes, to which the two pauses above apply. For a larger or a smaller request, the
pause is longer or shorter in proportion, but stays between the two pauses."""


def pause_of(congestion: float, size_bytes: int) -> float:
    """Return the number of seconds for which the sender's connection is not read. The time grows with the
    excess of the backlog over its limit.

    The longer the pauses are, the slower the backlog grows. At some excess it stops growing, for any number
    of producers. ``congestion`` is a number from 0 (a slight excess) to 1.
    """
    whole_s: float = CONGESTED_PAUSE_S * (CONGESTED_PAUSE_MAX_S / CONGESTED_PAUSE_S) ** congestion
    return min(CONGESTED_PAUSE_MAX_S, max(CONGESTED_PAUSE_S, whole_s * size_bytes / PAUSED_BYTES))


class BackPressure:
    """Slows producers down while the upload backlog of this broker or the WAL backlog of the cluster is too
    large."""

    def __init__(
        self, coordinators: BackloggedCoordinators, clock: Clock, meters: Meters, writer: DisklessWriter
    ) -> None:
        self.backlog = WalBacklog(coordinators, writer.reported_backlogs, clock, meters)
        self._writer = writer

    @property
    def congestion(self) -> float | None:
        """The degree to which producers must be slowed down, from 0 (slightly) to 1. None means that there is
        no back-pressure.

        The value grows with the excess of the WAL backlog over its limit. It is 0 if only the upload backlog
        exceeds its limit; longer pauses are not needed in this case, because the writer refuses appends at
        twice the limit of the upload backlog.
        """
        excess = self.backlog.excess
        return 0.0 if excess is None and self._writer.is_full else excess

    def throttle_s(self, context: RequestContext, waits: bool) -> float:
        """Return the number of seconds for which the connection of a produce request is not read; 0 means
        that there is no back-pressure.

        The pause applies only to producers whose records wait for an upload (``waits``). An append to a
        classic topic is already complete.
        """
        congestion = self.congestion if waits else None
        return 0.0 if congestion is None else pause_of(congestion, context.size_bytes)
