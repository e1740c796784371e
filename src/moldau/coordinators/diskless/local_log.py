"""The coordinator's log where this node is its only replica: a snapshot log, always synced.

The high watermark follows what is durable: appends that meet share one sync (group commit).
"""

import asyncio
import logging
from collections.abc import Callable

from moldau.coordinators.diskless.calls import METADATA_MAX_MESSAGE_BYTES
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.replicated_log import OffsetAndEpoch, SnapshotReader, SnapshotWriter
from moldau.storage.snapshot_log import SnapshotLog

logger = logging.getLogger(__name__)


class LocalMetadataLog:
    """Implements ``CoordinatorLog`` and ``SnapshottedLog`` for one term of leadership.

    Opening it makes all that the log holds durable and committed: with one replica, it is.
    """

    def __init__(
        self,
        log: SnapshotLog,
        epoch: int,
        check_in_sync: Callable[[], object] = lambda: None,
        *,
        max_batch_bytes: int = METADATA_MAX_MESSAGE_BYTES,
    ) -> None:
        """``check_in_sync`` raises ``KafkaError`` when too few replicas are in sync for an append."""
        self.max_batch_bytes = max_batch_bytes
        self._log = log
        self._epoch = epoch
        self._check_in_sync = check_in_sync
        self._listener: Callable[[int], None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None
        log.initialize_epoch(epoch)
        if log.high_watermark < log.end_offset:
            self._plan_flush()

    @property
    def log_start_offset(self) -> int:
        return self._log.start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.end_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def append(self, batch: bytearray) -> int:
        if self._failure is not None:
            raise KafkaError(self._failure.code, self._failure.message)
        self._check_in_sync()
        base_offset = self._log.end_offset
        self._log.append_as_leader(batch, self._epoch)
        self._plan_flush()
        return base_offset

    async def read(self, offset: int, max_bytes: int) -> bytes | memoryview:
        result = self._log.read(offset, max_bytes)
        return b"".join(result.views)

    def on_high_watermark(self, listener: Callable[[int], None] | None) -> None:
        self._listener = listener

    def _plan_flush(self) -> None:
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name="sync metadata log")

    async def _flush(self) -> None:
        log = self._log
        try:
            while log.high_watermark < log.end_offset:
                log.update_high_watermark(await log.flush())
                if self._listener is not None:
                    self._listener(log.high_watermark)
        except Exception as error:
            # What could not be synced may be lost: nothing more is taken in this term.
            logger.exception("The diskless coordinator's log could not be synced.")
            self._failure = KafkaError(ErrorCode.kafka_storage_error, f"The log could not be synced: {error}")

    async def until_committed(self) -> None:
        """Wait until all that was appended is durable, or can never be."""
        while self._flushing is not None and not self._flushing.done():
            await asyncio.wait([self._flushing])

    # -- what the store asks ---------------------------------------------------------------------

    @property
    def identity(self) -> str:
        log = self._log.log
        return f"{log.topic_partition} {log.topic_id}"

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        return self._log.log.epoch_for_offset(offset)

    def latest_snapshot_id(self) -> OffsetAndEpoch | None:
        return self._log.latest_snapshot_id()

    def open_snapshot(self, snapshot_id: OffsetAndEpoch) -> SnapshotReader | None:
        return self._log.open_snapshot(snapshot_id)

    def create_snapshot(
        self, snapshot_id: OffsetAndEpoch, last_log_timestamp_ms: int
    ) -> SnapshotWriter | None:
        return self._log.create_snapshot(snapshot_id, last_log_timestamp_ms)

    def delete_before_snapshot(self, snapshot_id: OffsetAndEpoch) -> bool:
        return self._log.delete_before_snapshot(snapshot_id)
