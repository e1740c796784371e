"""Computes the offset up to which a log is in the remote tier, from the log's own leader epochs."""

from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import TopicIdPartition

__all__ = ["copied_until", "find_highest_copied"]


def find_highest_copied(
    metadata: RemoteLogMetadataManager, partition: TopicIdPartition, log: PartitionLog
) -> int:
    """Return the last offset up to which every record is in the remote tier, or is no longer in the local
    log. The result is -1 if there is no such offset.

    Two kinds of segments are ignored: segments that were deleted later, and segments that an old leader
    copied beyond an epoch's end. Local segments are deleted according to this value, so it must not be too
    high.
    """
    lineage = LogLineage(log.leader_epochs)
    first = max(log.highest_copied_offset + 1, log.local_log_start_offset)
    offset = copied_until(metadata, partition, lineage, first, log.log_end_offset)
    if offset == first and log.local_log_start_offset == log.log_start_offset:
        return log.highest_copied_offset
    return offset - 1


def copied_until(
    metadata: RemoteLogMetadataManager,
    partition: TopicIdPartition,
    lineage: LogLineage,
    offset: int,
    end_offset: int,
) -> int:
    """Return the first offset at or after ``offset`` that is not in the remote tier. The result is at most
    ``end_offset``. But if ``offset`` is above ``end_offset``, the result is ``offset``. Raises
    ``RemoteMetadataNotReadyError``."""
    while offset < end_offset:
        epoch = lineage.epoch_for_offset(offset)
        segment = None if epoch is None else metadata.remote_log_segment_metadata(partition, epoch, offset)
        if epoch is None or segment is None:
            break
        epoch_end = lineage.end_of_epoch(epoch)
        bound = end_offset if epoch_end is None else min(epoch_end, end_offset)
        offset = min(segment.end_offset + 1, bound)
    return offset
