"""The dependencies that the tasks share, and the information about a partition that the tasks need."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from moldau.runtime import Machine
from moldau.runtime.byte_quota import ByteRateQuota
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.meters import TieredMeters
from moldau.tiered.removal.gate import DeletionGate
from moldau.tiered.storage.storage_manager import RemoteStorageManager

__all__ = ["LATE_WRITE_GRACE_MS", "LocalReplica", "RemoteTaskContext"]

LATE_WRITE_GRACE_MS = 60_000
"""A write may still take effect for this time, in milliseconds, after it was abandoned or its sender has
ended. The data of a failed copy are removed after this time. If they were removed earlier, they are removed
once more. Object stores abandon such writes much earlier."""


class LocalReplica(Protocol):
    """A partition's replica on this broker."""

    @property
    def log(self) -> PartitionLog: ...

    @property
    def high_watermark(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTaskContext:
    """The context of a broker's tasks. All copies share ``copy_quota``."""

    machine: Machine
    broker_id: int
    metadata: RemoteLogMetadataManager
    storage: RemoteStorageManager
    meters: TieredMeters
    copy_quota: ByteRateQuota
    custom_metadata_max_bytes: int
    on_segment_deleted: Callable[[UUID], None] = lambda _id: None
    """Called for each deleted remote segment. Caches then drop the segment."""
    gate: DeletionGate = field(default_factory=DeletionGate)
    being_copied: set[UUID] = field(default_factory=set)
    """Segments whose copy this broker has begun but has not abandoned."""

    deletions_are_held: Callable[[], bool] = lambda: False
    """Returns True while no remote segment may be deleted."""

    def now_ms(self) -> int:
        return self.machine.clock.now_ms()

    def deletion_now_ms(self) -> int:
        """The time in ms, from the clock that is used for deletions by age."""
        return self.machine.deletion_clock.now_ms()


@dataclass(slots=True)
class TaskPartition:
    """A partition that has tasks: its identity and its replica on this broker."""

    partition: TopicIdPartition
    replica: LocalReplica

    @property
    def log(self) -> PartitionLog:
        return self.replica.log
