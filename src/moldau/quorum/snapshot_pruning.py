"""The part of a quorum's log that is deleted after a snapshot. The state machine decides when a snapshot
is due."""

from moldau.storage.snapshots.replicated_log import LogPosition, ReplicatedLog


class SnapshotPruning:
    """Keeps the records behind the snapshot before the newest (KIP-630).

    A replica that lags by less than one snapshot still finds its records.
    """

    def __init__(self) -> None:
        self._last: LogPosition | None = None

    def start(self, log: ReplicatedLog) -> None:
        self._last = log.latest_snapshot_id()

    async def created(self, log: ReplicatedLog) -> None:
        """A snapshot is frozen: delete the records older than the one before it."""
        before, self._last = self._last, log.latest_snapshot_id()
        if before is not None and before != self._last:
            await log.delete_before_snapshot(before)
