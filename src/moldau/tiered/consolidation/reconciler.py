"""Reconciles the recorded segments of a diskless partition with the coordinator's state, and completes
interrupted work."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.coordinators.diskless.calls import FENCE_ONLY, OffsetToDelete, PruneCall, PrunedPartition
from moldau.metrics import Meters
from moldau.runtime import Clock, ErrorCode, KafkaError
from moldau.tiered.consolidation.consolidated_retention import expired_before, readable_chain
from moldau.tiered.consolidation.ports import LedPartition, WalCoordinator
from moldau.tiered.consolidation.steps import decide, of_lineage
from moldau.tiered.metadata.lifecycle import IllegalTransitionError, RemoteLogSegmentState
from moldau.tiered.metadata.manager import (
    MetadataPosition,
    RemoteLogMetadataManager,
    RemoteMetadataNotReadyError,
)
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from moldau.tiered.meters import TieredMeters
from moldau.tiered.removal.pending_deletions import PendingDeletions
from moldau.tiered.storage.storage_manager import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageManager,
)

__all__ = ["ConsolidationStatus", "SegmentEvents", "SegmentReconciler"]

logger = logging.getLogger(__name__)

_State: Final = RemoteLogSegmentState
_STEPS_MAX: Final = 1_000
NO_EPOCH: Final = -1
"""An epoch that is lower than every leader's epoch, so it fences no leader."""

_APPLIED_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ConsolidationStatus:
    """The state of a partition after its leader has reconciled the partition."""

    log_start: int
    wal_start: int
    wal_size_bytes: int
    wal_batches: int
    is_fenced: bool = True
    """Whether older leaders are fenced. It is False if there was nothing to reconcile, because then the
    leader only reads the coordinator's state."""
    needless: Sequence[RemoteLogSegmentMetadata] = ()
    """Segments that must be deleted. The next round may find more segments."""

    @staticmethod
    def of(
        here: PrunedPartition,
        needless: Sequence[RemoteLogSegmentMetadata] = (),
        *,
        is_fenced: bool = True,
    ) -> "ConsolidationStatus":
        """Return the status of a partition. ``here`` is the response of its coordinator."""
        return ConsolidationStatus(
            here.log_start_offset,
            here.wal_start_offset,
            here.wal_size_bytes,
            here.wal_batches,
            is_fenced,
            needless,
        )


@dataclass(frozen=True, slots=True)
class SegmentEvents:
    """Events of segments, with this broker's id and the time of its clock."""

    broker_id: int
    clock: Clock

    def of(
        self,
        segment: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
        custom_metadata: bytes | None = None,
    ) -> RemoteLogSegmentMetadataUpdate:
        """An event that changes a segment's state now."""
        return RemoteLogSegmentMetadataUpdate(
            segment.id, self.clock.now_ms(), state, self.broker_id, custom_metadata
        )


class SegmentReconciler:
    """Carries out the decisions of :mod:`steps`. Any broker may safely repeat a call at any time."""

    def __init__(
        self,
        wal: WalCoordinator,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        events: SegmentEvents,
        metadata_partition: Callable[[TopicIdPartition], int],
        *,
        pending_deletions: PendingDeletions | None = None,
        meters: TieredMeters | None = None,
    ) -> None:
        """``metadata_partition`` returns the partition of the metadata topic for a user partition.

        ``pending_deletions`` delays the deletion of objects.
        """
        self.metadata = metadata
        self._wal = wal
        self._storage = storage
        self.events = events
        self._metadata_partition = metadata_partition
        self._pending_deletions = PendingDeletions() if pending_deletions is None else pending_deletions
        self._meters = meters or TieredMeters(Meters())

    async def reconcile(self, led: LedPartition, own: Collection[UUID]) -> ConsolidationStatus:
        """Fence older leaders, complete their interrupted work, and move the log start past expired segments.

        Raises FENCED_LEADER_EPOCH when there is a newer leader. Raises ``KafkaError`` or
        ``RemoteStorageError`` when a call fails. Completed steps remain completed. The next round does the
        other steps.
        """
        partition = led.partition
        if not self.metadata.is_ready(partition):
            # Do not wait here, because other partitions may be ready and the next round comes soon.
            raise RemoteMetadataNotReadyError(f"the metadata of {partition} are being loaded")
        before = {one.id.id for one in self.metadata.list_remote_log_segments(partition)}
        if not before:
            self._measure(led, (), ())
            return ConsolidationStatus.of(await self._read_wal_state(led), is_fenced=False)
        here = await self.fence(led)
        for _ in range(_STEPS_MAX):
            segments = self.metadata.list_remote_log_segments(partition)
            steps = decide(
                segments,
                log_start=here.log_start_offset,
                wal_start=here.wal_start_offset,
                lineage=led.generations,
                seen_before_fence=before,
                own=own,
            )
            if steps.adopt is not None:
                here = await self._adopt(led, steps.adopt, here.wal_start_offset)
            elif await self._apply_retention(led, here):
                here = await self.fence(led)
            else:
                break
        self._measure(led, segments, steps.discard)
        return ConsolidationStatus.of(here, steps.discard)

    def _measure(
        self,
        led: LedPartition,
        segments: Sequence[RemoteLogSegmentMetadata],
        needless: Sequence[RemoteLogSegmentMetadata],
    ) -> None:
        gauges = self._meters.gauges(led.partition.topic, led.partition.partition)
        finished = (one for one in segments if one.state is _State.COPY_SEGMENT_FINISHED)
        gauges.metadata_count = len(segments)
        gauges.size_bytes = sum(one.segment_size_bytes for one in finished)
        gauges.delete_lag_segments = len(needless)
        gauges.delete_lag_bytes = sum(one.segment_size_bytes for one in needless)

    def measure_backlog(self, led: LedPartition, wal_size_bytes: int) -> None:
        """Set the copy lag to the number of whole segments that the records in the WAL would fill. The
        remaining bytes correspond to Kafka's active segment."""
        gauges = self._meters.gauges(led.partition.topic, led.partition.partition)
        gauges.copy_lag_segments = max(0, wal_size_bytes) // led.rules.segment_bytes
        gauges.copy_lag_bytes = gauges.copy_lag_segments * led.rules.segment_bytes

    async def _read_wal_state(self, led: LedPartition) -> PrunedPartition:
        """Return the partition's state without changing it."""
        topic_id, _, index = led.partition
        here = await self._wal.prune(PruneCall(topic_id, index, FENCE_ONLY, FENCE_ONLY, NO_EPOCH))
        if here.error is not ErrorCode.fenced_leader_epoch:
            _check(here)
        return here

    async def fence(self, led: LedPartition) -> PrunedPartition:
        """Fence, so that no older leader can change the partition's state. Returns the state. Before that,
        this broker reads the metadata up to the position of the fence.

        Raises ``TimeoutError`` when the metadata do not arrive.
        """
        here = await self._wal.prune(_prune_call(led, FENCE_ONLY, FENCE_ONLY, -1))
        _check(here)
        if here.remote_metadata_position >= 0:
            number = self._metadata_partition(led.partition)
            async with asyncio.timeout(_APPLIED_TIMEOUT_S):
                await self.metadata.wait_applied(MetadataPosition(number, here.remote_metadata_position))
        return here

    async def _adopt(
        self, led: LedPartition, segment: RemoteLogSegmentMetadata, wal_start: int
    ) -> PrunedPartition:
        """Prune the WAL up to the end of a segment that another leader has finished, because that leader has
        perhaps not pruned.

        The segment's event is written again. The prune can then name a position that includes the event.
        """
        position = await self.metadata.update_remote_log_segment_metadata(
            self.events.of(segment, _State.COPY_SEGMENT_FINISHED)
        )
        return await self.prune(led, segment, wal_start, position.offset)

    async def prune(
        self, led: LedPartition, segment: RemoteLogSegmentMetadata, wal_start: int, position: int
    ) -> PrunedPartition:
        """Advance the WAL's start to the end of a finished segment that contains the current ``wal_start``.

        ``position`` is the position in the metadata of the segment's last event, if that position is known.
        """
        for _ in range(_STEPS_MAX):
            here = await self._wal.prune(_prune_call(led, wal_start, segment.end_offset + 1, position))
            moved = here.error is ErrorCode.invalid_update_version and here.wal_start_offset > wal_start
            if not moved:
                break
            # The start of the WAL has already moved, because records were deleted or because an earlier call
            # did this step. It must be moved further, to the end of the segment.
            wal_start = here.wal_start_offset
            if wal_start > segment.end_offset:
                return here._replace(error=ErrorCode.none, message=None)
        _check(here)
        return here

    async def delete_unneeded(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Delete segments. A segment that cannot be deleted now is left for the next round."""
        for segment in segments:
            self._meters.delete_request(segment.id.topic)
            try:
                if not await self.discard(segment):
                    continue
            except RemoteStorageError as error:
                self._meters.failed_delete(segment.id.topic)
                logger.warning("%s cannot be deleted now: %s", segment.id, error)
                continue
            gauges = self._meters.gauges(segment.id.topic, segment.id.partition)
            gauges.metadata_count -= 1
            gauges.delete_lag_segments -= 1
            gauges.delete_lag_bytes -= segment.segment_size_bytes
            if segment.state is _State.COPY_SEGMENT_FINISHED:
                gauges.size_bytes -= segment.segment_size_bytes

    async def discard(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Delete a segment in any state. Raises ``RemoteStorageError`` if the remote tier fails.

        Returns False while the record that made the segment unneeded is not saved in the object store yet.
        The next round then continues.
        """
        # No saved state of the cluster can read a copy that was never finished. Therefore its deletion does
        # not wait.
        is_unread = segment.state is _State.COPY_SEGMENT_STARTED
        try:
            if segment.state is not _State.DELETE_SEGMENT_STARTED:
                await self.metadata.update_remote_log_segment_metadata(
                    self.events.of(segment, _State.DELETE_SEGMENT_STARTED)
                )
            if not is_unread and not self._pending_deletions.may_delete(segment.id.id):
                return False
            await self._storage.delete_log_segment_data(segment)
            self._pending_deletions.deleted(segment.id.id)
            await self.metadata.update_remote_log_segment_metadata(
                self.events.of(segment, _State.DELETE_SEGMENT_FINISHED)
            )
        except (IllegalTransitionError, RemoteResourceNotFoundError) as error:
            # Another broker has changed the segment's state in the meantime.
            logger.info("this broker does not delete %s: %s", segment.id, error)
        return True

    async def _apply_retention(self, led: LedPartition, here: PrunedPartition) -> bool:
        """Move the log start past expired remote segments. Returns whether it was moved."""
        segments = of_lineage(self.metadata.list_remote_log_segments(led.partition), led.generations)
        start = expired_before(
            readable_chain(segments, here.log_start_offset, here.wal_start_offset),
            led.retention,
            wal_start=here.wal_start_offset,
            wal_size_bytes=max(0, here.wal_size_bytes),
            now_ms=self.events.clock.now_ms(),
        )
        if start is None or start <= here.log_start_offset:
            return False
        partition = led.partition
        (deleted,) = await self._wal.delete_records(
            [OffsetToDelete(partition.topic_id, partition.partition, start)]
        )
        if deleted.error is not ErrorCode.none:
            raise KafkaError(deleted.error, deleted.message)
        return True


def _prune_call(led: LedPartition, from_offset: int, to_offset: int, position: int) -> PruneCall:
    topic_id, _, index = led.partition
    return PruneCall(topic_id, index, from_offset, to_offset, led.epoch, position)


def _check(here: PrunedPartition) -> None:
    if here.error is not ErrorCode.none:
        raise KafkaError(here.error, here.message)
