"""Requests of remote reads, and the protocol classes of their dependencies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moldau.replication.partition_interface import ReadOutcome
from moldau.storage.log.append_info import AbortedEntry
from moldau.tiered.metadata.lineage import Lineage
from moldau.tiered.metadata.manager import NO_POSITION, MetadataPosition, RemoteLogMetadataManager
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError

__all__ = ["RemoteIndexes", "RemoteRange", "RemoteRead", "segment_at"]


class RemoteIndexes(Protocol):
    """The indexes of remote segments. Raises RemoteStorageError when they are not available."""

    async def lookup_offset(self, metadata: RemoteLogSegmentMetadata, offset: int) -> int:
        """A position at or shortly before the batch that contains ``offset``."""
        ...

    async def lookup_timestamp(
        self, metadata: RemoteLogSegmentMetadata, timestamp_ms: int, starting_offset: int
    ) -> int:
        """Return a position. All records from ``starting_offset`` up to this position are earlier than
        ``timestamp_ms``."""
        ...

    async def aborted_transactions(self, metadata: RemoteLogSegmentMetadata) -> Sequence[AbortedEntry]:
        """The transactions whose abort markers are in the segment, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRange:
    """The part of a partition that is only in the remote tier.

    ``end_offset`` is the start of the partition's own data (its local log start, or its WAL start). The
    remote tier is read only before this offset. If an offset is not found, ``log_start`` is called to check
    whether the offset was deleted.
    """

    partition: TopicIdPartition
    lineage: Lineage
    end_offset: int
    log_start: Callable[[], int]
    metadata_position: MetadataPosition = NO_POSITION
    """The read waits until this broker has read the remote metadata up to this position."""

    def bound_at(self, offset: int, segment: RemoteLogSegmentMetadata) -> int:
        """The offset up to which ``segment`` is valid for the partition, if the read begins at ``offset``.

        After the returned offset, the segment may contain records of an old leader that no other replica has.
        """
        bound = min(self.end_offset, segment.end_offset + 1)
        epoch = self.lineage.epoch_for_offset(offset)
        epoch_end = None if epoch is None else self.lineage.end_of_epoch(epoch)
        return bound if epoch_end is None else min(bound, epoch_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRead(RemoteRange):
    """A read from the remote tier, for one partition of a Fetch request."""

    offset: int
    max_bytes: int
    min_one_batch: bool = True
    read_committed: bool = False
    aborted_behind: Callable[[int, int], Sequence[AbortedEntry]] | None = None
    """Returns the aborted transactions that have records in ``[first, end)`` and whose marker is after the
    remote part."""
    read_behind: Callable[[], ReadOutcome] | None = None
    """Reads at or after ``end_offset``, when the remote part has no batch left before ``end_offset``. This
    happens when compaction has removed the batches at the end of the remote part."""


def segment_at(
    metadata: RemoteLogMetadataManager, wanted: RemoteRange, offset: int
) -> RemoteLogSegmentMetadata:
    """The segment that contains ``offset``. Raises :class:`RemoteResourceNotFoundError` if the remote tier
    has no such segment."""
    epoch = wanted.lineage.epoch_for_offset(offset)
    segment = None if epoch is None else metadata.remote_log_segment_metadata(wanted.partition, epoch, offset)
    if segment is None:
        raise RemoteResourceNotFoundError(
            f"{wanted.partition}: offset {offset} of leader epoch {epoch} is not in the remote tier"
        )
    return segment
