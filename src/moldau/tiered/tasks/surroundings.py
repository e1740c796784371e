"""Shared dependencies of the tasks, and the partition as they see it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from moldau.metrics.byte_rate import ByteRateQuota
from moldau.runtime import Machine
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.meters import TieredMeters
from moldau.tiered.storage.storage_manager import RemoteStorageManager

__all__ = ["LATE_WRITE_GRACE_MS", "LocalReplica", "Surroundings"]

LATE_WRITE_GRACE_MS = 60_000
"""A write that its sender has given up, or whose sender is gone, may still take effect for so long: what a
failed copy has left is removed after that, or once more after that. Object stores give up much earlier."""


class LocalReplica(Protocol):
    """A partition's replica on this broker."""

    @property
    def log(self) -> PartitionLog: ...

    @property
    def high_watermark(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """One for each broker. ``copy_quota`` belongs to all copies together."""

    machine: Machine
    broker_id: int
    metadata: RemoteLogMetadataManager
    storage: RemoteStorageManager
    meters: TieredMeters
    copy_quota: ByteRateQuota
    custom_metadata_max_bytes: int
    on_segment_deleted: Callable[[UUID], None] = lambda _id: None
    """Told of each remote segment that is no more, so that caches forget it."""
    being_copied: set[UUID] = field(default_factory=set)
    """Segments that this broker has begun to copy and has not given up."""

    deletions_are_held: Callable[[], bool] = lambda: False
    """While so, no remote segment is deleted."""

    def now_ms(self) -> int:
        return self.machine.clock.now_ms()

    def deletion_now_ms(self) -> int:
        """For what is deleted when it is old enough."""
        return self.machine.deletion_clock.now_ms()


@dataclass(slots=True)
class TaskPartition:
    """A partition that has tasks: its identity and its replica here."""

    partition: TopicIdPartition
    replica: LocalReplica

    @property
    def log(self) -> PartitionLog:
        return self.replica.log
