"""A log of (epoch, payload) pairs for the core: what the bytes are is nothing to it."""

import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.quorum.core.offsets import OffsetAndEpoch


class Entry(NamedTuple):
    epoch: int
    payload: str


@dataclass
class ModelLog:
    """A LogView with the changes that a driver makes; ``flushed`` is where a crash may cut it."""

    start: int = 0
    entries: list[Entry] = field(default_factory=list)
    snapshots: dict[OffsetAndEpoch, tuple[Entry, ...]] = field(default_factory=dict)
    flushed: int = 0

    @property
    def log_start_offset(self) -> int:
        return self.start

    @property
    def log_end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(
            self.start + len(self.entries), self.epoch_before(self.start + len(self.entries))
        )

    def epoch_before(self, offset: int) -> int:
        """Epoch of the record before ``offset``."""
        if offset > self.start:
            return self.entries[offset - self.start - 1].epoch
        snapshot_id = self.latest_snapshot_id
        return snapshot_id.epoch if snapshot_id and offset > 0 else 0

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        position = bisect.bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        offset = self.start + position
        return OffsetAndEpoch(offset, self.epoch_before(offset))

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None:
        return max(self.snapshots, key=lambda key: key.offset, default=None)

    @property
    def earliest_snapshot_id(self) -> OffsetAndEpoch | None:
        return min(self.snapshots, key=lambda key: key.offset, default=None)

    def snapshot_size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        content = self.snapshots.get(snapshot_id)
        return None if content is None else len(content)

    def append(self, entries: list[Entry]) -> None:
        self.entries.extend(entries)

    def read(self, offset: int, count: int) -> tuple[Entry, ...]:
        position = offset - self.start
        assert position >= 0
        return tuple(self.entries[position : position + count])

    def truncate(self, offset: int) -> None:
        assert offset >= self.start
        del self.entries[offset - self.start :]
        self.flushed = min(self.flushed, offset)

    def begin_at(self, snapshot_id: OffsetAndEpoch, content: tuple[Entry, ...]) -> None:
        """Forget the log; it goes on behind this snapshot."""
        self.entries.clear()
        self.snapshots = {snapshot_id: content}
        self.start = self.flushed = snapshot_id.offset

    def snapshot(self, snapshot_id: OffsetAndEpoch, content: tuple[Entry, ...]) -> None:
        """Keep a snapshot of what is below it, and clean the log up to there."""
        self.snapshots = {snapshot_id: content}
        del self.entries[: snapshot_id.offset - self.start]
        self.start = snapshot_id.offset
        self.flushed = max(self.flushed, self.start)
