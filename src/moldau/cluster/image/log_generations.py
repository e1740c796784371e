"""The generations of a diskless partition's log. Pure.

A cluster that is restored from its object store may reuse the offsets of lost records for other records. Each
restore therefore begins a new *generation* of the logs. The generation is the leader epoch of diskless
batches. It is 0 in a cluster that was never restored. A consumer may still have an offset of an earlier
generation, and after the restore another record may be at this offset. The consumer sends
OffsetForLeaderEpoch (KIP-320), and the response shows that the log was truncated. Therefore the consumer does
not continue at this offset.
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
        """Return the generation of the record at an offset, which is also the record's leader epoch."""
        return bisect_right(self.starts, offset)

    def end_of_epoch(self, epoch: int) -> int | None:
        """Return the offset after the last record of a generation; ``None`` for the latest generation."""
        return self.starts[epoch] if epoch < len(self.starts) else None

    def within(self, base_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Return the generations of the records from ``base_offset`` to ``end_offset`` (inclusive). Each
        generation comes with its first offset in this range."""
        first = self.epoch_for_offset(base_offset)
        later = (
            (epoch, start) for epoch, start in enumerate(self.starts, 1) if base_offset < start <= end_offset
        )
        # When several generations begin at the same offset, only the last of them has records.
        return tuple({start: (epoch, start) for epoch, start in ((first, base_offset), *later)}.values())


FIRST_GENERATION: Final = LogGenerations()
"""The generations of a partition in a cluster that was never restored."""
