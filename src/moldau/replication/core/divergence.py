"""Finds where two logs diverge, by their leader epochs (KIP-595). Pure."""

from typing import Protocol

UNDEFINED = -1
"""The value for an unknown epoch or an unknown offset."""


class EpochHistory(Protocol):
    """The epochs of a log, with their start offsets."""

    def epoch_for_offset(self, offset: int, /) -> int | None: ...

    def end_offset_for(self, epoch: int, log_end_offset: int, /) -> tuple[int, int]:
        """Find ``epoch``, or the next lower known epoch. Returns that epoch and its end offset, or (-1, -1)
        when the log has no such epoch."""
        ...


def diverging_epoch(
    history: EpochHistory, log_end_offset: int, offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """Compare a fetcher's log with this log (KIP-595). Returns ``None`` if the two logs agree up to
    ``offset``.

    Otherwise returns an epoch and its end offset in this log. The epoch is the fetcher's epoch, or the next
    lower epoch that this log has. Returns (-1, -1) if there is no such epoch.
    """
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = history.end_offset_for(last_fetched_epoch, log_end_offset)
    if epoch == last_fetched_epoch and end_offset >= offset:
        return None
    return epoch, end_offset
