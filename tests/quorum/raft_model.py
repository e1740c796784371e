"""A log of (epoch, payload) pairs. This is sufficient for the core, because the core does not read the bytes
of records."""

import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import LoggedVoters, VoterSet


class Entry(NamedTuple):
    epoch: int
    payload: str
    voters: VoterSet | None = None


@dataclass
class ModelLog:
    """A LogView, with the methods by which a driver changes the log. A crash may remove the record at
    ``flushed`` and all later records."""

    start: int = 0
    entries: list[Entry] = field(default_factory=list)
    snapshots: dict[OffsetAndEpoch, tuple[Entry, ...]] = field(default_factory=dict)
    flushed: int = 0
    formatted_with: VoterSet | None = None
    """Voters of the snapshot before the first offset, as in a formatted folder."""
    _voters: LoggedVoters | None = None

    def __post_init__(self) -> None:
        self.follow_voters()

    @property
    def voters(self) -> LoggedVoters | None:
        return self._voters

    def follow_voters(self) -> None:
        """Find the last voters in the log. It is called after each change of the log."""
        self._voters = None if self.formatted_with is None else LoggedVoters(self.formatted_with, -1)
        snapshot_id = self.latest_snapshot_id
        kept = () if snapshot_id is None else self.snapshots[snapshot_id]
        for entry in reversed(kept):
            if entry.voters is not None and snapshot_id is not None:
                self._voters = LoggedVoters(entry.voters, snapshot_id.offset - 1)
                break
        for offset, entry in enumerate(self.entries, self.start):
            self._follow(offset, entry)

    def _follow(self, offset: int, entry: Entry) -> None:
        if entry.voters is not None:
            previous = self._voters.voters if self._voters is not None else None
            self._voters = LoggedVoters(entry.voters, offset, previous=previous)

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
        for offset, entry in enumerate(entries, self.log_end.offset):
            self._follow(offset, entry)
        self.entries.extend(entries)

    def read(self, offset: int, count: int) -> tuple[Entry, ...]:
        position = offset - self.start
        assert position >= 0
        return tuple(self.entries[position : position + count])

    def truncate(self, offset: int) -> None:
        assert offset >= self.start
        del self.entries[offset - self.start :]
        self.flushed = min(self.flushed, offset)
        self.follow_voters()

    def begin_at(self, snapshot_id: OffsetAndEpoch, content: tuple[Entry, ...]) -> None:
        """Drop the log. The new log continues after this snapshot."""
        self.entries.clear()
        self.snapshots = {snapshot_id: content}
        self.start = self.flushed = snapshot_id.offset
        self.follow_voters()

    def snapshot(self, snapshot_id: OffsetAndEpoch, content: tuple[Entry, ...]) -> None:
        """Store a snapshot of the records before a position, and remove these records from the log."""
        self.snapshots = {snapshot_id: content}
        del self.entries[: snapshot_id.offset - self.start]
        self.start = snapshot_id.offset
        self.flushed = max(self.flushed, self.start)
