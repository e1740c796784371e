"""The generations of a diskless partition's log. Pure.

A cluster that is restored from its object store may give other records the offsets of records that it has
lost. Each restore therefore begins a new *generation* of the logs. The generation is the leader epoch of
diskless batches: 0 in a cluster that was never restored. Consumers that hold an offset of an earlier
generation find out by OffsetForLeaderEpoch (KIP-320) that the log was truncated, and do not read other
records in its place.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

__all__ = ["FIRST_GENERATION", "LogGenerations"]


@dataclass(frozen=True, slots=True)
class LogGenerations:
    """The generations of a partition; implements ``Lineage`` of remote segments."""

    starts: tuple[int, ...] = ()
    """The first offset of each generation after generation 0, in order."""

    @property
    def latest(self) -> int:
        return len(self.starts)

    def epoch_for_offset(self, offset: int) -> int:
        """The generation, and leader epoch, of the record at an offset."""
        return bisect_right(self.starts, offset)

    def end_of_epoch(self, epoch: int) -> int | None:
        """The offset after the last record of a generation; None for the latest generation."""
        return self.starts[epoch] if epoch < len(self.starts) else None

    def within(self, base_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """The generations of the records from ``base_offset`` to ``end_offset`` (inclusive), each with its
        first offset there.
        """
        first = self.epoch_for_offset(base_offset)
        later = (
            (epoch, start) for epoch, start in enumerate(self.starts, 1) if base_offset < start <= end_offset
        )
        # When generations begin at the same offset, only the last one has records.
        return tuple({start: (epoch, start) for epoch, start in ((first, base_offset), *later)}.values())


FIRST_GENERATION: Final = LogGenerations()
"""The generations of a partition in a cluster that was never restored."""
