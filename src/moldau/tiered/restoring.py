"""Restores state from the remote tier: the start and epochs of a new leader's log, and the state of a
follower's log."""

import logging
from collections.abc import Sequence

from moldau.storage.folders.checkpoint import CheckpointError, parse_checkpoint, parse_number
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.producers.producer_snapshot import CorruptSnapshotError, decode_producer_snapshot
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.segment_cache import epoch_ranges
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.metadata.turns import in_turns
from moldau.tiered.storage.storage_manager import IndexType, RemoteStorageError, RemoteStorageManager
from moldau.tiered.tasks.context import RemoteTaskContext

__all__ = ["fetch_auxiliary_state", "restore_start"]

logger = logging.getLogger(__name__)


async def restore_start(
    context: RemoteTaskContext, partition: TopicIdPartition, log: PartitionLog, end_offset: int
) -> None:
    """Restore the start and the epochs of a new leader's log. Called when the partition's metadata are
    loaded. Raises ``RemoteStorageError`` if the remote tier fails.

    All records before ``end_offset`` must be in the remote tier. The local log, or the first inactive chunk,
    begins at ``end_offset``.

    If epochs were lost, they are restored from the newest remote segment, which has the epochs of all earlier
    offsets. The previous leader may have deleted segments without the knowledge of this replica. The log's
    start then moves past these segments.
    """
    if log.log_start_offset >= end_offset:
        log.restore_epochs(())
        return
    finished = [
        segment
        for segment in context.metadata.list_remote_log_segments(partition)
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and segment.start_offset < end_offset
    ]
    if log.leader_epochs.epoch_for_offset(log.log_start_offset) is None and finished:
        newest = max(finished, key=lambda segment: (segment.leader_epochs[-1].epoch, segment.end_offset))
        log.restore_epochs(await _epochs_of(context.storage, newest))
        logger.warning("the leader epochs of %s were restored from %s", partition, newest.id)
    else:
        log.restore_epochs(())
    first_offset = await _first_remote_offset(finished, log, end_offset)
    if first_offset > log.log_start_offset:
        logger.warning("%s begins at offset %d: nothing is before it", partition, first_offset)
        log.update_log_start_offset(first_offset)
        await log.persist_start()


async def _first_remote_offset(
    finished: Sequence[RemoteLogSegmentMetadata], log: PartitionLog, end_offset: int
) -> int:
    lineage, log_start = LogLineage(log.leader_epochs), log.log_start_offset
    first_offset: int | None = None
    async for segments in in_turns(finished):
        # A segment may end with records of a leader that was replaced by an unclean election. The segment is
        # valid only up to these records.
        starts = [
            max(first, log_start)
            for segment in segments
            for epoch, first, last in epoch_ranges(segment)
            if last >= log_start and lineage.epoch_for_offset(max(first, log_start)) == epoch
        ]
        if starts:
            first_offset = min(starts) if first_offset is None else min(first_offset, *starts)
    return end_offset if first_offset is None else first_offset


async def fetch_auxiliary_state(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, log_start_offset: int
) -> AuxiliaryState:
    """Fetch the state of a log at the end of a segment: its leader epochs and its producers. Raises
    ``RemoteStorageError`` if the remote tier fails."""
    epochs = await _epochs_of(storage, segment)
    name = f"producers of {segment.id}"
    try:
        content = bytes(await storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT))
        producers = decode_producer_snapshot(content, name)
    except CorruptSnapshotError as error:
        raise RemoteStorageError(str(error), transient=False) from error
    return AuxiliaryState(segment.end_offset + 1, log_start_offset, epochs, producers)


async def _epochs_of(storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> list[EpochEntry]:
    content = bytes(await storage.fetch_index(segment, IndexType.LEADER_EPOCH))
    name = f"leader epochs of {segment.id}"
    try:
        rows = parse_checkpoint(content, name, 2)
        return [
            EpochEntry(parse_number(epoch, name, line), parse_number(offset, name, line))
            for line, (epoch, offset) in enumerate(rows, start=3)
        ]
    except CheckpointError as error:
        raise RemoteStorageError(str(error), transient=False) from error
