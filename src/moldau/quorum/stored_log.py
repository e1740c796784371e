"""The core's view of the log in ``moldau.storage``."""

from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import LoggedVoters
from moldau.quorum.voter_history import VoterHistory
from moldau.storage.snapshots.replicated_log import LogPosition as StoredPosition
from moldau.storage.snapshots.replicated_log import ReplicatedLog


def to_stored(position: OffsetAndEpoch) -> StoredPosition:
    return StoredPosition(position.offset, position.epoch)


def from_stored(position: StoredPosition | None) -> OffsetAndEpoch | None:
    return None if position is None else OffsetAndEpoch(position.offset, position.epoch)


class StoredLogView:
    """Gives the core a ``LogView`` of a ``ReplicatedLog``."""

    def __init__(self, log: ReplicatedLog, history: VoterHistory) -> None:
        self._log = log
        self._history = history

    @property
    def voters(self) -> LoggedVoters | None:
        return self._history.latest

    @property
    def log_start_offset(self) -> int:
        return self._log.start_offset

    @property
    def log_end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self._log.end_offset, self._log.last_epoch)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        offset, known_epoch = self._log.end_offset_for_epoch(epoch)
        return OffsetAndEpoch(offset, known_epoch)

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None:
        return from_stored(self._log.latest_snapshot_id())

    @property
    def earliest_snapshot_id(self) -> OffsetAndEpoch | None:
        return from_stored(self._log.earliest_snapshot_id())

    def snapshot_size_bytes(self, snapshot_id: OffsetAndEpoch) -> int | None:
        reader = self._log.open_snapshot(to_stored(snapshot_id))
        if reader is None:
            return None
        try:
            return reader.size_bytes
        finally:
            reader.close()
