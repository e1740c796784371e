"""The times of snapshots, and the part of the log that is deleted after each."""

from moldau.storage.snapshots.replicated_log import LogPosition, ReplicatedLog


class SnapshotSchedule:
    """By bytes of records since the last snapshot, or by its age when records were written since."""

    def __init__(self, max_new_bytes: int, max_interval_ms: int) -> None:
        self._max_new_bytes = max_new_bytes
        self._max_interval_ms = max_interval_ms
        self._new_bytes = 0
        self._last_ms = 0
        self._last: LogPosition | None = None

    def start(self, now_ms: int, log: ReplicatedLog) -> None:
        self._last_ms = now_ms
        self._last = log.latest_snapshot_id()

    def wrote(self, size_bytes: int) -> None:
        self._new_bytes += size_bytes

    def is_due(self, now_ms: int) -> bool:
        if self._new_bytes >= self._max_new_bytes:
            return True
        age_ms = now_ms - self._last_ms
        return 0 < self._max_interval_ms <= age_ms and self._new_bytes > 0

    async def created(self, now_ms: int, log: ReplicatedLog) -> None:
        """A snapshot is frozen: keep the log from the previous snapshot on, delete older records."""
        before, self._last = self._last, log.latest_snapshot_id()
        self._new_bytes = 0
        self._last_ms = now_ms
        if before is not None and before != self._last:
            await log.delete_before_snapshot(before)
