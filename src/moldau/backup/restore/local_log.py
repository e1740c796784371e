"""The log of a diskless coordinator in a folder that is being restored, without a running node."""

from collections.abc import Callable

from moldau.coordinators.diskless.calls import METADATA_MAX_MESSAGE_BYTES
from moldau.replication.appending.transactions import TransactionGuard
from moldau.storage.snapshots.replicated_log import LogPosition, SnapshotReader, SnapshotWriter
from moldau.storage.snapshots.snapshot_log import SnapshotLog

__all__ = ["LocalCoordinatorLog"]


class LocalCoordinatorLog:
    """Implements ``DisklessMetadataLog`` on files. Every append is committed at once.

    ``flush`` of the :class:`SnapshotLog` makes the log durable. It must be called before the restored node
    starts.
    """

    def __init__(self, log: SnapshotLog, epoch: int) -> None:
        self._log = log
        self._epoch = epoch
        self._listeners: list[Callable[[int], None]] = []
        log.initialize_epoch(epoch)
        log.update_high_watermark(log.end_offset)

    @property
    def log_start_offset(self) -> int:
        return self._log.start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.end_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return METADATA_MAX_MESSAGE_BYTES

    def append(self, batch: bytearray) -> int:
        info = self._log.append_as_leader(batch, self._epoch)
        self._log.update_high_watermark(self._log.end_offset)
        for listener in tuple(self._listeners):
            listener(self._log.high_watermark)
        return info.first_offset

    async def read(self, offset: int, max_bytes: int) -> bytes:
        return b"".join(self._log.read(offset, max_bytes).views)

    def follow_watermark(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def check_writable(self) -> None:
        pass

    # -- transactions: a restore writes no transactional records ----------------------------------

    def guard(self, producer_id: int, producer_epoch: int) -> TransactionGuard | None:
        return None

    def withdraw(self, producer_id: int, guard: TransactionGuard) -> None:
        pass

    def check_transaction(
        self, producer_id: int, producer_epoch: int, guard: TransactionGuard | None
    ) -> None:
        pass

    def check_marker(self, producer_id: int, producer_epoch: int, version: int) -> None:
        pass

    # -- snapshots ----------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return f"{self._log.log.topic_partition} {self._log.log.topic_id}"

    @property
    def directory(self) -> str:
        return self._log.log.directory

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        return self._log.log.epoch_for_offset(offset)

    def latest_snapshot_id(self) -> LogPosition | None:
        return self._log.latest_snapshot_id()

    def open_snapshot(self, snapshot_id: LogPosition) -> SnapshotReader | None:
        return self._log.open_snapshot(snapshot_id)

    def create_snapshot(self, snapshot_id: LogPosition, last_log_timestamp_ms: int) -> SnapshotWriter | None:
        return self._log.create_snapshot(snapshot_id, last_log_timestamp_ms)

    async def delete_before_snapshot(self, snapshot_id: LogPosition) -> bool:
        return await self._log.delete_before_snapshot(snapshot_id)
