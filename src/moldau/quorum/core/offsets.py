"""Positions in the replicated log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetAndEpoch:
    """An (exclusive) end offset with the epoch of the last record before it. The pair also identifies a
    snapshot (KIP-630)."""

    offset: int
    epoch: int

    def is_at_least(self, other: "OffsetAndEpoch") -> bool:
        """Whether a log with this end is at least as up to date as a log with the end ``other`` (Raft
        §5.4.1)."""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)

    def __str__(self) -> str:
        return f"{self.offset}/{self.epoch}"
