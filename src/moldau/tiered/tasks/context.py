"""The dependencies that the tasks share, and the information about a partition that the tasks need."""

import asyncio
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
from moldau.tiered.removal.pending_deletions import PendingDeletions
from moldau.tiered.storage.storage_manager import RemoteStorageManager

__all__ = ["LATE_WRITE_GRACE_MS", "EarlierPart", "LocalReplica", "RemoteTaskContext", "TaskPartition"]

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


@dataclass(slots=True)
class TaskPartition:
    """A partition that has tasks: its identity and its replica on this broker."""

    partition: TopicIdPartition
    replica: LocalReplica

    @property
    def log(self) -> PartitionLog:
        return self.replica.log


class EarlierPart(Protocol):
    """The part of a partition between the remote tier and this broker's log. Only a partition with inactive
    chunks (KIP-1114) has such a part. The method bodies in this class are for all other partitions."""

    async def copy(self, partition: TaskPartition) -> bool:
        """Copy the part to the remote tier. Returns whether the whole part is in the remote tier. Raises
        ``RemoteStorageError`` and ``KafkaError``."""
        return True

    def start_offset(self, partition: TaskPartition) -> int:
        """The first offset that need not be in the remote tier."""
        return partition.log.local_log_start_offset

    def uncopied_bytes(self, partition: TaskPartition) -> int:
        """Bytes of the part that are not in the remote tier."""
        return 0


class _NoEarlierPart(EarlierPart):
    """The earlier part on a broker without chunks, where every such part is empty."""


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
    pending_deletions: PendingDeletions = field(default_factory=PendingDeletions)
    being_copied: set[UUID] = field(default_factory=set)
    """Segments whose copy this broker has begun, but has neither finished nor abandoned."""

    deletions_are_held: Callable[[], bool] = lambda: False
    """Returns True while no remote segment may be deleted."""

    earlier: EarlierPart = field(default_factory=_NoEarlierPart)

    def now_ms(self) -> int:
        return self.machine.clock.now_ms()

    def deletion_now_ms(self) -> int:
        """The time in ms, from the clock that is used for deletions by age."""
        return self.machine.deletion_clock.now_ms()

    async def keep_copy_quota(self, size_bytes: int) -> None:
        """Wait until this broker may copy these bytes."""
        loop, quota = asyncio.get_running_loop(), self.copy_quota
        while (wait_s := quota.throttle_s(loop.time())) > 0:
            self.meters.copy_throttle_ms.update(wait_s * 1000)
            await asyncio.sleep(min(wait_s, 1.0))
        quota.record(size_bytes, loop.time())
