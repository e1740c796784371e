"""The remote log metadata manager (KIP-405's ``RemoteLogMetadataManager``), which stores the set of remote
segments.

Writes are asynchronous and strongly consistent. When a write has returned, it is durable, and later reads
through the same manager include it (read-your-writes). Reads return at once. They use the manager's state of
the partitions that this broker leads or follows. The default of ``remote.log.metadata.manager.class.name`` is
the topic-based manager.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from moldau.metrics import Meters
from moldau.runtime import Machine
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.storage.storage_manager import RemoteStorageError

__all__ = [
    "NO_POSITION",
    "MetadataManagerMaker",
    "MetadataPosition",
    "RemoteLogMetadataManager",
    "RemoteMetadataNotReadyError",
    "RemoteMetadataUnknownOutcomeError",
]


class RemoteMetadataNotReadyError(RemoteStorageError):
    """The partition's metadata are still loading, or the partition was not assigned to this broker. The
    caller must retry.

    This error corresponds to Kafka's ``ReplicaNotAvailableException``.
    """


class RemoteMetadataUnknownOutcomeError(RemoteStorageError):
    """It is unknown whether an event was written.

    The writer may write the same event again, because a repeated event for the current state changes nothing.
    The second write shows whether the event is accepted.
    """


class MetadataPosition(NamedTuple):
    """The position of an event in ``__remote_log_metadata``. If a reader has applied this position, it has
    also applied the event."""

    partition: int
    offset: int


NO_POSITION: Final = MetadataPosition(-1, -1)
"""Position for a manager that has no positions. The writes of such a manager are visible to every reader at
once."""


class RemoteLogMetadataManager(Protocol):
    """KIP-405's metadata manager.

    Reads raise :class:`RemoteMetadataNotReadyError` for a partition that is not loaded. Reads by offset
    return only segments in COPY_SEGMENT_FINISHED. Illegal changes of state raise ``IllegalTransitionError``.
    """

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> MetadataPosition:
        """Record a new segment, whose state must be COPY_SEGMENT_STARTED (otherwise ValueError)."""
        ...

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> MetadataPosition:
        """Record an event of a segment.

        Raises ``RemoteResourceNotFoundError`` when the segment is unknown (or deleted).
        """
        ...

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> MetadataPosition:
        """Record the progress of removing a partition's remote data.

        DELETE_PARTITION_FINISHED removes the partition. Between DELETE_PARTITION_MARKED and
        DELETE_PARTITION_FINISHED, the segments of the partition stay listed on this broker, also after a
        restart.
        """
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The segment with the record at ``offset``, if that record was written in leader epoch ``epoch``."""
        ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first segment of the epoch that has a transaction index; the search begins at the segment
        with ``offset``.
        """
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The highest offset of a leader epoch that has been copied. Only segments whose copy has finished
        count (COPY_SEGMENT_FINISHED or later)."""
        ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """All segments that are not DELETE_SEGMENT_FINISHED, or only the segments of one epoch, by start
        offset.

        Without an epoch, the result also includes segments to which no epoch refers any more, because a later
        copy covers them. The sequence is a snapshot, so later events do not change it.
        """
        ...

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Bytes of the COPY_SEGMENT_FINISHED segments of an epoch. Each segment counts with its whole
        size.
        """
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's metadata are loaded, up to the end offset at the time of the assignment."""
        ...

    async def wait_ready(self, partition: TopicIdPartition) -> None:
        """Wait until :meth:`is_ready` is true. Raises :class:`RemoteMetadataNotReadyError` if the partition
        was unassigned.
        """
        ...

    async def wait_applied(self, position: MetadataPosition) -> None:
        """Wait until reads on this broker include the event at ``position``. For :data:`NO_POSITION`, return
        at once.

        A replica that did not write the event makes this call, so that the replica does not answer from an
        older state.
        """
        ...

    def remote_partition_deletions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        """Return the unfinished removals of remote data. They are recorded in the metadata partitions that
        this broker follows.

        After a restart, a partition remover resumes these removals. A partition stays in this list until it
        has the event DELETE_PARTITION_FINISHED.
        """
        ...

    async def remote_log_partitions(self) -> Sequence[TopicIdPartition]:
        """Return the partitions that have remote data and whose removal has not begun. Their events are in
        the metadata partitions that this broker follows.

        The remover of deleted topics' data compares these partitions with the existing topics.
        """
        ...

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Load and follow the metadata of partitions that this broker now leads or follows."""
        ...

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Release the metadata of partitions that this broker no longer leads or follows."""
        ...

    async def close(self) -> None:
        """Stop following. Waiting writers get :class:`RemoteMetadataUnknownOutcomeError`."""
        ...


MetadataManagerMaker: TypeAlias = Callable[[Mapping[str, str], Machine, Meters], RemoteLogMetadataManager]
"""The function that ``remote.log.metadata.manager.class.name`` names as a dotted path.

It is called with the broker's keys under ``remote.log.metadata.manager.impl.prefix`` (without that prefix)
and ``broker.id``, ``cluster.id`` and ``log.dir``, as Kafka passes them to ``configure``. It also gets the
machine's ports and meters. For an invalid key it raises :class:`RemoteStorageError`, which names the key.
"""
