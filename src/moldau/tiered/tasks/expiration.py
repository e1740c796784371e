"""The leader's clean-up: what is past the topic's whole retention, below the log's start, or left over."""

import asyncio
import logging
from collections.abc import Sequence

from moldau.storage.log import PartitionLog
from moldau.tiered.deletion import delete_segment
from moldau.tiered.expiry import Retention, plan_expiry, unreferenced
from moldau.tiered.lifecycle import RemoteLogSegmentState
from moldau.tiered.lineage import LogLineage
from moldau.tiered.restoring import restore_start
from moldau.tiered.segment_cache import epoch_ranges
from moldau.tiered.segments import RemoteLogSegmentMetadata
from moldau.tiered.tasks.surroundings import LATE_WRITE_GRACE_MS, Surroundings, TaskPartition

__all__ = ["ExpirationTask"]

logger = logging.getLogger(__name__)


class ExpirationTask:
    """One partition's, while this broker leads it. :meth:`run` is one round."""

    def __init__(self, around: Surroundings, partition: TaskPartition) -> None:
        self._around = around
        self._partition = partition
        self._has_start = False
        self._gauges = around.meters.gauges(partition.partition.topic, partition.partition.partition)

    async def run(self) -> None:
        """Move the log's start, durably, and then remove what lies before it. Raises
        ``RemoteStorageError``; the next round goes on from there."""
        around, log, partition = self._around, self._partition.log, self._partition.partition
        await around.metadata.wait_ready(partition)
        if not self._has_start:
            await restore_start(around, partition, log)
            self._has_start = True
        await self._remove(self._leftovers())
        started_s = asyncio.get_running_loop().time()
        segments = around.metadata.list_remote_log_segments(partition)
        expiry = plan_expiry(
            segments,
            LogLineage(log.leader_epochs),
            self._retention(log),
            log_start_offset=log.log_start_offset,
            local_only_bytes=self._local_only_bytes(log),
            now_ms=around.now_ms(),
        )
        self._measure(segments, (asyncio.get_running_loop().time() - started_s) * 1000)
        if expiry.log_start_offset is not None:
            log.update_log_start_offset(min(expiry.log_start_offset, self._partition.replica.high_watermark))
        # Where the start could not pass all of them, the others are still read.
        await self._remove([each for each in expiry.segments if each.end_offset < log.log_start_offset])

    def stop(self) -> None:
        """No further round."""
        self._gauges.delete_lag_bytes = self._gauges.delete_lag_segments = 0

    def _leftovers(self) -> list[RemoteLogSegmentMetadata]:
        around, partition = self._around, self._partition.partition
        segments = around.metadata.list_remote_log_segments(partition)
        referenced = {
            found.id.id
            for segment in segments
            for epoch, first_offset, _ in epoch_ranges(segment)
            if (found := around.metadata.remote_log_segment_metadata(partition, epoch, first_offset))
        }
        return unreferenced(
            segments,
            referenced,
            around.being_copied,
            now_ms=around.now_ms(),
            grace_ms=LATE_WRITE_GRACE_MS,
        )

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
            await delete_segment(self._around, segment)
            gauges.delete_lag_segments -= 1
            gauges.delete_lag_bytes -= segment.segment_size_bytes
            logger.info("deleted a remote segment", extra={"segment": str(segment.id)})

    def _measure(self, segments: Sequence[RemoteLogSegmentMetadata], took_ms: float) -> None:
        gauges = self._gauges
        gauges.metadata_count = len(segments)
        gauges.size_computation_ms = took_ms
        gauges.size_bytes = sum(
            segment.segment_size_bytes
            for segment in segments
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        )
