"""The leader's clean-up. It removes segments that retention no longer keeps, segments before the log's start,
and the remains of failed copies and deletions."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final
from uuid import UUID

from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.segment_cache import epoch_ranges
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.metadata.turns import in_turns
from moldau.tiered.removal.deletion import delete_segment
from moldau.tiered.removal.expired_segments import ExpiryPlan, unreferenced
from moldau.tiered.removal.remote_retention import Retention
from moldau.tiered.restoring import restore_start
from moldau.tiered.tasks.context import LATE_WRITE_GRACE_MS, RemoteTaskContext, TaskPartition

__all__ = ["ExpirationTask"]

logger = logging.getLogger(__name__)

LOOKUPS_A_TURN: Final = 1_000
"""Number of segments that are looked up by epoch and offset in one iteration of the event loop. This takes
some milliseconds."""


class ExpirationTask:
    """Cleans up a partition while this broker leads the partition. :meth:`run` is one round."""

    def __init__(self, context: RemoteTaskContext, partition: TaskPartition) -> None:
        self._context = context
        self._partition = partition
        self._has_start = False
        self._gauges = context.meters.gauges(partition.partition.topic, partition.partition.partition)

    async def run(self) -> None:
        """Move the log's start, durably, and then remove the segments before the start. Raises
        ``RemoteStorageError`` if the remote tier fails. The next round then continues."""
        context, log, partition = self._context, self._partition.log, self._partition.partition
        if context.deletions_are_held():
            return
        await context.metadata.wait_ready(partition)
        if not self._has_start or self._lacks_start():
            await restore_start(context, partition, log, self._remote_end())
            self._has_start = True
        await self._remove(await self._leftovers())
        started_s = asyncio.get_running_loop().time()
        plan = ExpiryPlan(
            LogLineage(log.leader_epochs),
            self._retention(log),
            log_start_offset=log.log_start_offset,
            local_only_bytes=self._local_only_bytes(log) + context.earlier.uncopied_bytes(self._partition),
            now_ms=context.deletion_now_ms(),
        )
        count = size_bytes = 0
        async for segments in self._some_at_a_time():
            plan.add(segments)
            count += len(segments)
            size_bytes += sum(
                segment.segment_size_bytes
                for segment in segments
                if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            )
        expiry = plan.decide()
        self._measure(count, size_bytes, (asyncio.get_running_loop().time() - started_s) * 1000)
        if expiry.log_start_offset is not None:
            log.update_log_start_offset(min(expiry.log_start_offset, self._partition.replica.high_watermark))
            await log.persist_start()
        # The log's start never moves above the high watermark. Therefore some of these segments may end after
        # the start. Such segments are still read and must stay.
        await self._remove([each for each in expiry.segments if each.end_offset < log.log_start_offset])

    def stop(self) -> None:
        """Set the gauges to 0, because no further round begins."""
        self._gauges.delete_lag_bytes = self._gauges.delete_lag_segments = 0

    def _remote_end(self) -> int:
        """The offset before which the remote tier must have all records."""
        return self._context.earlier.start_offset(self._partition)

    def _lacks_start(self) -> bool:
        """Whether no segment contains the log's first offset. This happens when an earlier leader has just
        deleted that segment."""
        log, partition = self._partition.log, self._partition.partition
        start = log.log_start_offset
        if start >= self._remote_end():
            return False
        epoch = log.epoch_for_offset(start)
        return self._context.metadata.remote_log_segment_metadata(partition, epoch, start) is None

    def _some_at_a_time(self) -> AsyncIterator[Sequence[RemoteLogSegmentMetadata]]:
        """The partition's current segments, in groups. Other work of the event loop runs between two
        groups."""
        return in_turns(self._context.metadata.list_remote_log_segments(self._partition.partition))

    async def _leftovers(self) -> list[RemoteLogSegmentMetadata]:
        context = self._context
        found: list[RemoteLogSegmentMetadata] = []
        # The set of segments that are being copied is read before the segments are listed. If a copy ends
        # during the listing, its segment does not count as abandoned.
        being_copied = frozenset(context.being_copied)
        async for segments in self._some_at_a_time():
            found += unreferenced(
                segments,
                await self._referenced(segments),
                being_copied,
                now_ms=context.deletion_now_ms(),
                grace_ms=LATE_WRITE_GRACE_MS,
            )
        return found

    async def _referenced(self, segments: Sequence[RemoteLogSegmentMetadata]) -> set[UUID]:
        """Return the ids of the segments that a reader would find for the offsets of ``segments``."""
        metadata, partition = self._context.metadata, self._partition.partition
        found: set[UUID] = set()
        ranges = (each for segment in segments for each in epoch_ranges(segment))
        for number, (epoch, first_offset, _) in enumerate(ranges, 1):
            if number % LOOKUPS_A_TURN == 0:
                await asyncio.sleep(0)
            if read := metadata.remote_log_segment_metadata(partition, epoch, first_offset):
                found.add(read.id.id)
        return found

    @staticmethod
    def _retention(log: PartitionLog) -> Retention:
        config = log.config
        return (
            Retention(config.retention_ms, config.retention_bytes)
            if config.cleanup_delete
            else Retention(-1, -1)
        )

    @staticmethod
    def _local_only_bytes(log: PartitionLog) -> int:
        segments = log.segments
        first = segments.index_holding(max(log.highest_copied_offset + 1, log.local_log_start_offset))
        return sum(segment.size_bytes for segment in segments.segments[first:])

    async def _remove(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        gauges = self._gauges
        gauges.delete_lag_segments = len(segments)
        gauges.delete_lag_bytes = sum(segment.segment_size_bytes for segment in segments)
        for segment in segments:
            if not await delete_segment(self._context, segment):
                continue
            gauges.delete_lag_segments -= 1
            gauges.delete_lag_bytes -= segment.segment_size_bytes
            logger.info("deleted a remote segment", extra={"segment": str(segment.id)})

    def _measure(self, count: int, size_bytes: int, took_ms: float) -> None:
        gauges = self._gauges
        gauges.metadata_count = count
        gauges.size_computation_ms = took_ms
        gauges.size_bytes = size_bytes
