"""The remote log metadata manager (KIP-405's ``RemoteLogMetadataManager``): the set of remote segments.

Writes are asynchronous and strongly consistent: when one has returned, reads through the same manager see it
(read-your-writes), and it is durable. Reads are answered at once, from the manager's state of the partitions
that this broker leads or follows. The default of ``remote.log.metadata.manager.class.name`` is the
topic-based one.
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
    """The partition's metadata is still loading, or was not assigned to this broker; retry.

    Corresponds to Kafka's ``ReplicaNotAvailableException``.
    """


class RemoteMetadataUnknownOutcomeError(RemoteStorageError):
    """It is unknown whether an event was written.

    Writing the same event again is harmless (a state may follow itself), and determines the outcome.
    """


class MetadataPosition(NamedTuple):
    """The position of an event in ``__remote_log_metadata``: a reader that has applied it has seen the
    event.
    """

    partition: int
    offset: int


NO_POSITION: Final = MetadataPosition(-1, -1)
"""Position of a manager without positions: its writes are visible to every reader at once."""


class RemoteLogMetadataManager(Protocol):
    """KIP-405's metadata manager.

    Reads raise :class:`RemoteMetadataNotReadyError` for a partition that is not loaded; only segments in
    COPY_SEGMENT_FINISHED answer reads by offset. Illegal moves raise ``IllegalTransitionError``.
    """

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> MetadataPosition:
        """Record a new segment; its state is COPY_SEGMENT_STARTED (else ValueError)."""
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

        DELETE_PARTITION_FINISHED removes the partition. From DELETE_PARTITION_MARKED until then its segments
        stay listed, on this broker and after a restart.
        """
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The segment with the record at ``offset`` that was written in leader epoch ``epoch``."""
        ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first segment of the epoch, from the one with ``offset`` on, that has a transaction index."""
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The highest offset of a leader epoch that has been copied, COPY_SEGMENT_FINISHED or later."""
        ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """All segments that are not DELETE_SEGMENT_FINISHED, or those of one epoch, by start offset.

        Without an epoch it includes segments that no epoch refers to any more (a later copy covers them). The
        sequence is a snapshot: later events do not change it.
        """
        ...

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Bytes of the COPY_SEGMENT_FINISHED segments of an epoch (each with its whole size)."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's metadata is loaded up to the end as of its assignment."""
        ...

    async def wait_ready(self, partition: TopicIdPartition) -> None:
        """Return once :meth:`is_ready`; raises :class:`RemoteMetadataNotReadyError` if it was unassigned."""
        ...

    async def wait_applied(self, position: MetadataPosition) -> None:
        """Return when reads here see the event at ``position`` (at once for :data:`NO_POSITION`).

        With it, a replica that did not write an event avoids answering from an older state.
        """
        ...

    def remote_partition_deletions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        """Removals that are not finished, of the metadata partitions which this broker follows.

        The deletions that a partition remover resumes after a restart; the partitions stay listed until
        FINISHED.
        """
        ...

    async def remote_log_partitions(self) -> Sequence[TopicIdPartition]:
        """Partitions with remote data whose removal has not begun, as far as this broker follows them.

        The remover of deleted topics' data compares them with the existing topics.
        """
        ...

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Load and follow the metadata of partitions that this broker now leads, or follows."""
        ...

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Partitions that this broker holds no more: release their metadata."""
        ...

    async def close(self) -> None:
        """Stop following; waiting writers get :class:`RemoteMetadataUnknownOutcomeError`."""
        ...


MetadataManagerMaker: TypeAlias = Callable[[Mapping[str, str], Machine, Meters], RemoteLogMetadataManager]
"""Function named by ``remote.log.metadata.manager.class.name``, as a dotted path.

Called with the broker's keys under ``remote.log.metadata.manager.impl.prefix`` (without that prefix) and
``broker.id``, ``cluster.id`` and ``log.dir``, as Kafka passes them to ``configure``; and with the machine's
ports and meters. It raises :class:`RemoteStorageError` that names an invalid key.
"""
