"""The parts of a broker that a leader of diskless partitions needs, as protocol classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moldau.cluster.image.log_generations import FIRST_GENERATION, LogGenerations
from moldau.coordinators.diskless.calls import (
    DeletedRecords,
    FindBatchesCall,
    FoundPartition,
    OffsetToDelete,
    PruneCall,
    PrunedPartition,
)
from moldau.tiered.consolidation.plan import SegmentRules
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.removal.remote_retention import Retention

__all__ = ["LedPartition", "WalCoordinator"]


class WalCoordinator(Protocol):
    """The coordinators of diskless topics. Calls may raise ``KafkaError`` or ``OSError``, or time out."""

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]: ...

    async def prune(self, call: PruneCall) -> PrunedPartition: ...

    async def delete_records(self, offsets: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]: ...


@dataclass(frozen=True, slots=True)
class LedPartition:
    """A diskless partition that this broker leads, with the configuration of its topic."""

    partition: TopicIdPartition
    epoch: int
    """Leader epoch in the cluster's metadata. The coordinator uses it to refuse the plans of older leaders.
    """
    rules: SegmentRules = field(default_factory=SegmentRules)
    retention: Retention = field(default_factory=Retention)
    index_interval_bytes: int = 4096
    generations: LogGenerations = FIRST_GENERATION
    may_copy: bool = True
    """If this is False, records stay in the WAL (``remote.log.copy.disable``)."""
