"""Requests of remote reads, and the ports that they use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moldau.replication.partition import ReadOutcome
from moldau.storage.log.append_info import AbortedEntry
from moldau.tiered.metadata.lineage import Lineage
from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError

__all__ = ["RemoteIndexes", "RemoteRange", "RemoteRead", "segment_at"]


class RemoteIndexes(Protocol):
    """The indexes of remote segments; raises RemoteStorageError when they cannot be had."""

    async def lookup_offset(self, metadata: RemoteLogSegmentMetadata, offset: int) -> int:
        """A position at or before the batch that holds ``offset``, never far before."""
        ...

    async def lookup_timestamp(
        self, metadata: RemoteLogSegmentMetadata, timestamp_ms: int, starting_offset: int
    ) -> int:
        """A position with no record of ``timestamp_ms`` or later, from ``starting_offset`` on, before it."""
        ...

    async def aborted_transactions(self, metadata: RemoteLogSegmentMetadata) -> Sequence[AbortedEntry]:
        """The transactions whose abort markers lie in the segment, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRange:
    """The part of a partition that is in the remote tier only.

    ``end_offset`` is where the partition's own data begin (its local log start, or where its WAL begins);
    nothing at or behind it is read. ``log_start`` is asked when an offset is not there: was it deleted?
    """

    partition: TopicIdPartition
    lineage: Lineage
    end_offset: int
    log_start: Callable[[], int]

    def bound_at(self, offset: int, segment: RemoteLogSegmentMetadata) -> int:
        """Up to where ``segment`` speaks for the partition, from ``offset`` on.

        It may hold more: what an old leader had written and nobody else has.
        """
        bound = min(self.end_offset, segment.end_offset + 1)
        epoch = self.lineage.epoch_for_offset(offset)
        epoch_end = None if epoch is None else self.lineage.end_of_epoch(epoch)
        return bound if epoch_end is None else min(bound, epoch_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRead(RemoteRange):
    """One partition's part of a Fetch request, for the remote tier."""

    offset: int
    max_bytes: int
    min_one_batch: bool = True
    read_committed: bool = False
    aborted_behind: Callable[[int, int], Sequence[AbortedEntry]] | None = None
    """Aborted transactions with records in ``[first, end)`` whose markers lie behind the remote tier."""
    read_behind: Callable[[], ReadOutcome] | None = None
    """Read from ``end_offset`` on, when no batch is left before it (compaction leaves holes)."""


def segment_at(
    metadata: RemoteLogMetadataManager, wanted: RemoteRange, offset: int
) -> RemoteLogSegmentMetadata:
    """The segment that holds ``offset``. Raises :class:`RemoteResourceNotFoundError`."""
    epoch = wanted.lineage.epoch_for_offset(offset)
    segment = None if epoch is None else metadata.remote_log_segment_metadata(wanted.partition, epoch, offset)
    if segment is None:
        raise RemoteResourceNotFoundError(
            f"{wanted.partition}: offset {offset} of leader epoch {epoch} is not in the remote tier"
        )
    return segment
