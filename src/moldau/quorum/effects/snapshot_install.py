"""Installs a snapshot of the leader in the log (KIP-630)."""

from typing import assert_never

from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.effects.event_queue import EventQueue
from moldau.quorum.effects.log_writer import LogWriter
from moldau.quorum.stored_log import to_stored
from moldau.quorum.voter_history import VoterHistory
from moldau.storage.snapshots.replicated_log import RawSnapshotWriter, ReplicatedLog


class SnapshotInstall:
    """Owns the file of the snapshot that is being downloaded. When the snapshot is complete, the snapshot
    replaces the log."""

    def __init__(
        self, log: ReplicatedLog, writer: LogWriter, history: VoterHistory, events: EventQueue
    ) -> None:
        self._log = log
        self._writer = writer
        self._history = history
        self._events = events
        self._download: RawSnapshotWriter | None = None

    def download(self, effect: fx.WriteSnapshotChunk | fx.AbandonSnapshot) -> None:
        """Write a part of the snapshot, or abandon the download."""
        match effect:
            case fx.WriteSnapshotChunk(snapshot_id, position, data):
                if position == 0:
                    self.abandon()
                    self._download = self._log.store_snapshot(to_stored(snapshot_id))
                if self._download is not None:
                    self._download.append(data)
            case fx.AbandonSnapshot():
                self.abandon()
            case _:
                assert_never(effect)

    def abandon(self) -> None:
        """Remove the downloaded part of a snapshot."""
        download, self._download = self._download, None
        if download is not None:
            download.abandon()

    async def install(self, snapshot_id: OffsetAndEpoch) -> None:
        """Make the downloaded snapshot durable, and drop all records of the log. The log then begins at the
        end of the snapshot."""
        log = self._log
        download, self._download = self._download, None
        if download is not None:
            await download.freeze()
        self._writer.note_truncation()
        if log.end_offset >= snapshot_id.offset:
            # Records of this log above the high watermark may differ from the leader's records.
            await log.truncate_to(max(log.high_watermark, log.start_offset))
        await log.truncate_to_latest_snapshot()
        log.update_high_watermark(snapshot_id.offset)
        self._history.load(log)
        self._events.submit_first(ev.SnapshotInstalled(snapshot_id))
