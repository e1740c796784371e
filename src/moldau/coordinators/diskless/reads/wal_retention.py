"""Decides where a diskless partition must begin because of its retention by time and size."""

from typing import Final

from moldau.coordinators.diskless.calls import RetentionPolicy
from moldau.coordinators.diskless.reads.store_reader import StoreReader
from moldau.coordinators.diskless.store.extents import unpack

__all__ = ["retained_from"]

RETENTION_EXTENTS: Final = 1000
"""Maximum number of extents that one retention pass reads in one partition."""


def retained_from(reader: StoreReader, policy: RetentionPolicy, now_ms: int) -> int | None:
    """Return the log start that the policy requires; ``None`` when nothing must be deleted.

    One call reads at most ``RETENTION_EXTENTS`` extents. If more extents must be deleted, the next call finds
    them.
    """
    partition = reader.partition(policy.topic_id, policy.partition_index)
    if partition is None or partition.log_start < partition.wal_start:
        return None  # older records are in remote storage, and are deleted first
    size_bytes = reader.settled_size_bytes(partition) if policy.retention_bytes >= 0 else None
    excess = 0 if size_bytes is None else size_bytes - policy.retention_bytes
    before_ms = now_ms - policy.retention_ms if policy.retention_ms >= 0 else None
    start, looked_at = partition.wal_start, 0
    for extent, _ in reader.extents(partition, start):
        looked_at += 1
        if looked_at > RETENTION_EXTENTS:
            break
        for batch in unpack(extent.first_offset, extent.packed):
            if batch.last_offset < start:
                continue
            # If a record has no timestamp, the time of its commit is used. In this case Kafka uses the time
            # at which the segment's file was last modified.
            age_from_ms = batch.max_timestamp_ms if batch.max_timestamp_ms >= 0 else extent.committed_ms
            expired = before_ms is not None and age_from_ms < before_ms
            if not expired and excess < batch.size_bytes:
                return start if start > partition.wal_start else None
            excess -= batch.size_bytes
            start = batch.last_offset + 1
    return start if start > partition.wal_start else None
