"""The leader epochs of a log's offsets (KIP-101). Pure.

An entry is the start of an epoch. The epoch ends where the next epoch starts. Followers and consumers compare
their last epoch with the entries, to find the offset from which two logs differ.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from moldau.storage.log.append_info import EpochEndOffset

__all__ = ["UNDEFINED_EPOCH", "UNDEFINED_OFFSET", "EpochEntry", "LeaderEpochs"]

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
_UNDEFINED = EpochEndOffset(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


class EpochEntry(NamedTuple):
    """An epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The epochs of one log. Epochs and start offsets are in ascending order.

    Methods that may change entries return whether they changed one. If so, the caller saves the file. A new
    epoch must be in the file before its first batch is durable. A truncation may be saved later, because
    recovery repeats it.
    """

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        return self._entries[-1].epoch if self._entries else None

    @property
    def latest(self) -> EpochEntry | None:
        return self._entries[-1] if self._entries else None

    @property
    def earliest(self) -> EpochEntry | None:
        return self._entries[0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that ``epoch`` begins at ``start_offset``. A repeated call for the latest epoch changes
        nothing.

        Entries that contradict the new entry are removed. Such an entry has a later or equal epoch, or begins
        at or after the offset. Raises ``ValueError`` for a negative epoch or offset.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {start_offset}")
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Find ``epoch``, or the next lower epoch if the log does not have it. Returns that epoch, and the
        offset after its last record.

        For the latest epoch that offset is the end of the log. There are two exceptions. If ``epoch`` is
        older than all known epochs, the result is ``epoch`` and the start of the first known epoch. If
        ``epoch`` is newer than all known epochs, the result is ``(-1, -1)``.
        """
        entries = self._entries
        if epoch == UNDEFINED_EPOCH or not entries or epoch > entries[-1].epoch:
            return _UNDEFINED
        if epoch == entries[-1].epoch:
            return EpochEndOffset(epoch, log_end_offset)
        above = bisect_right(entries, epoch, key=_epoch_of)
        end_offset = entries[above].start_offset
        return EpochEndOffset(entries[above - 1].epoch if above else epoch, end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in which ``offset`` was written; ``None`` below the first entry."""
        above = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[above - 1].epoch if above else None

    def following(self, epoch: int) -> EpochEntry | None:
        """Return the entry of the lowest known epoch that is higher than ``epoch``."""
        above = bisect_right(self._entries, epoch, key=_epoch_of)
        return self._entries[above] if above < len(self._entries) else None

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop the epochs that begin at or after ``end_offset``, the log's new end."""
        kept = len(self._entries)
        while kept and self._entries[kept - 1].start_offset >= end_offset >= 0:
            kept -= 1
        changed = kept < len(self._entries)
        del self._entries[kept:]
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Make the log begin at ``start_offset``. The epoch that contains this offset now begins there, and
        older epochs are removed."""
        above = bisect_right(self._entries, start_offset, key=_start_of)
        if not above:
            return False
        first = self._entries[above - 1]
        if above == 1 and first.start_offset == start_offset:
            return False
        self._entries[:above] = [EpochEntry(first.epoch, start_offset)]
        return True

    def extend_back(self, entries: Iterable[EpochEntry]) -> None:
        """Insert entries of earlier offsets before the first entry."""
        known = self._entries
        earlier = [entry for entry in entries if not known or entry.start_offset < known[0].start_offset]
        self._entries = []
        for entry in (*earlier, *known):
            self.assign(entry.epoch, entry.start_offset)

    def in_range(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """The epochs of the offsets in ``[start, end)``. The first epoch in the result begins at ``start``. A
        remote segment's metadata contain the epochs in this form (KIP-405).
        """
        part = LeaderEpochs(self._entries)
        if start_offset >= 0:
            part.truncate_from_start(start_offset)
        part.truncate_from_end(end_offset)
        return part.entries

    def clear(self) -> None:
        self._entries.clear()


def _epoch_of(entry: EpochEntry) -> int:
    return entry.epoch


def _start_of(entry: EpochEntry) -> int:
    return entry.start_offset
