"""The leader copies closed segments to the remote tier, in order. Only segments before the last stable offset
are copied."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.copied_end import find_highest_copied
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from moldau.tiered.removal.deletion import delete_segment
from moldau.tiered.storage.storage_manager import RemoteStorageError, check_custom_metadata
from moldau.tiered.tasks.context import RemoteTaskContext, TaskPartition
from moldau.tiered.tasks.segment_data import ClosedSegment, epochs_of, read_segment

__all__ = ["CopyTask"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _CopyAttempt:
    """A copy in progress. After a failure the same copy continues. Otherwise a segment that is already stored
    would be stored again under another id."""

    closed: ClosedSegment
    metadata: RemoteLogSegmentMetadata
    is_recorded: bool = False
    is_stored: bool = False


def closed_segments(log: PartitionLog, from_offset: int, stable_offset: int) -> Iterator[ClosedSegment]:
    """Yield closed segments in order, beginning with the segment that contains ``from_offset``. All of them
    end before ``stable_offset``.

    Such segments are below the high watermark and contain no open transactions. The generator also includes
    segments that are closed while it runs, because the caller needs much time for each segment.
    """
    segments = log.segments
    while True:
        index = segments.index_holding(from_offset)
        segment = segments.segments[index]
        next_offset = segments.end_of(index)
        if segment is segments.active or next_offset > stable_offset:
            return
        from_offset = next_offset
        if segment.size_bytes:
            yield ClosedSegment(segment, next_offset)


class CopyTask:
    """Copies a partition's segments while this broker leads the partition. :meth:`run` is one round."""

    def __init__(self, context: RemoteTaskContext, partition: TaskPartition) -> None:
        self._context = context
        self._partition = partition
        self._attempt: _CopyAttempt | None = None
        self._earlier_bytes = 0
        """Bytes of inactive chunks that were not in the tier when the round began."""
        self._gauges = context.meters.gauges(partition.partition.topic, partition.partition.partition)

    async def run(self) -> None:
        """Copy all complete segments. Raises ``RemoteStorageError`` if the remote tier fails. The next round
        then continues."""
        context, log = self._context, self._partition.log
        await context.metadata.wait_ready(self._partition.partition)
        log.highest_copied_offset = max(
            log.highest_copied_offset, find_highest_copied(context.metadata, self._partition.partition, log)
        )
        self._earlier_bytes = context.earlier.uncopied_bytes(self._partition)
        try:
            # The tier has no gaps, so the chunks before the log come first.
            if await context.earlier.copy(self._partition):
                self._earlier_bytes = 0
                await self._copy_all(log)
        except RemoteStorageError:
            context.meters.failed_copy(self._partition.partition.topic)
            raise
        finally:
            self._measure_lag(log)

    async def _copy_all(self, log: PartitionLog) -> None:
        attempt = self._attempt
        first_offset = max(log.highest_copied_offset + 1, log.local_log_start_offset)
        if attempt is not None and attempt.metadata.end_offset < first_offset:
            # The attempt is not needed any more. Either its last event was written and only the response was
            # lost, or the records of its segment were deleted.
            self._give_up()
        for closed in closed_segments(log, first_offset, self._stable_offset(log)):
            self._measure_lag(log)
            await self._context.keep_copy_quota(closed.segment.size_bytes)
            await self._copy(log, closed)

    def _stable_offset(self, log: PartitionLog) -> int:
        return log.last_stable_offset(self._partition.replica.high_watermark)

    def stop(self) -> None:
        """Abandon the copy in progress, because no further round begins. The clean-up task removes unfinished
        copies."""
        self._give_up()
        self._gauges.copy_lag_bytes = self._gauges.copy_lag_segments = 0

    def _give_up(self) -> None:
        if self._attempt is not None:
            self._context.being_copied.discard(self._attempt.metadata.id.id)
            self._attempt = None

    # -- one segment --------------------------------------------------------------------------

    async def _copy(self, log: PartitionLog, closed: ClosedSegment) -> None:
        context = self._context
        if closed.next_offset <= log.log_start_offset:
            return  # the records were deleted in the meantime
        attempt = self._attempt
        if attempt is None or attempt.closed != closed:
            self._give_up()
            attempt = self._attempt = self._new_attempt(log, closed)
        # If copied records were lost on this disk, their offsets would be assigned again. Therefore the log
        # is synced before its records are copied. The log is synced while the start of the copy is recorded,
        # so that other writers wait only once.
        for result in await asyncio.gather(
            log.flush(closed.next_offset), self._record(attempt), return_exceptions=True
        ):
            if isinstance(result, BaseException):
                raise result
        if closed.next_offset <= log.log_start_offset:
            return
        if not attempt.is_stored:
            await self._store(log, attempt)
        metadata = attempt.metadata
        await context.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                metadata.id,
                context.now_ms(),
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                context.broker_id,
                metadata.custom_metadata,
            )
        )
        self._give_up()
        log.highest_copied_offset = max(log.highest_copied_offset, metadata.end_offset)
        context.meters.copied(metadata.id.topic, metadata.segment_size_bytes)
        logger.info(
            "copied a segment",
            extra={"segment": str(metadata.id), "start": metadata.start_offset, "end": metadata.end_offset},
        )

    def _new_attempt(self, log: PartitionLog, closed: ClosedSegment) -> _CopyAttempt:
        context, segment = self._context, closed.segment
        segment_id = RemoteLogSegmentId.of(self._partition.partition, context.machine.entropy.uuid4())
        context.being_copied.add(segment_id.id)
        metadata = RemoteLogSegmentMetadata(
            id=segment_id,
            start_offset=segment.base_offset,
            end_offset=closed.next_offset - 1,
            # A segment without timestamps gets the age of its file. Retention must not treat the segment as
            # older.
            max_timestamp_ms=segment.retention_timestamp_ms,
            broker_id=context.broker_id,
            event_timestamp_ms=context.now_ms(),
            segment_size_bytes=segment.size_bytes,
            leader_epochs=epochs_of(log, closed),
            txn_index_empty=not len(segment.transaction_index),
        )
        return _CopyAttempt(closed, metadata)

    async def _record(self, attempt: _CopyAttempt) -> None:
        if not attempt.is_recorded:
            await self._context.metadata.add_remote_log_segment_metadata(attempt.metadata)
            attempt.is_recorded = True

    async def _store(self, log: PartitionLog, attempt: _CopyAttempt) -> None:
        context, machine = self._context, self._context.machine
        try:
            data = await machine.workers.run(read_segment, machine.disk, log, attempt.closed)
        except OSError as error:
            raise RemoteStorageError(f"{attempt.metadata.id} cannot be read: {error}") from error
        context.meters.copy_request(attempt.metadata.id.topic)
        custom = await context.storage.copy_log_segment_data(attempt.metadata, data)
        attempt.metadata = replace(attempt.metadata, custom_metadata=custom)
        try:
            check_custom_metadata(str(attempt.metadata.id), custom, context.custom_metadata_max_bytes)
        except RemoteStorageError:
            self._give_up()
            await delete_segment(context, attempt.metadata)
            raise
        attempt.is_stored = True

    # -- meters ---------------------------------------------------------------------

    def _measure_lag(self, log: PartitionLog) -> None:
        segments = log.segments
        waiting = [
            segment
            for segment in segments.segments[segments.index_holding(log.highest_copied_offset + 1) :]
            if segment is not segments.active
        ]
        self._gauges.copy_lag_segments = len(waiting)
        waiting_bytes = sum(segment.size_bytes for segment in waiting)
        self._gauges.copy_lag_bytes = waiting_bytes + self._earlier_bytes
