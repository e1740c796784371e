"""Metadata of remote segments: the values that the metadata manager stores. Pure.

The names are Kafka's (``RemoteLogSegmentId``, ``RemoteLogSegmentMetadata``, ...). First and last offsets are
inclusive. Times are milliseconds since the epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID

from moldau.tiered.metadata.lifecycle import (
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    check_segment_move,
)

__all__ = [
    "EpochStart",
    "RemoteLogMetadata",
    "RemoteLogSegmentId",
    "RemoteLogSegmentMetadata",
    "RemoteLogSegmentMetadataUpdate",
    "RemotePartitionDeleteMetadata",
    "TopicIdPartition",
]


class TopicIdPartition(NamedTuple):
    """A partition. Its topic id distinguishes the partition from a partition of an earlier or later topic
    with the same name."""

    topic_id: UUID
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class EpochStart(NamedTuple):
    """A leader epoch and its first offset *within a segment*."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """Identifies a copy of a segment. Every attempt to copy the same offsets gets a new ``id``."""

    topic_id: UUID
    topic: str
    partition: int
    id: UUID

    @staticmethod
    def of(partition: TopicIdPartition, id: UUID) -> "RemoteLogSegmentId":
        """Return the identity of a copy: the partition, together with the UUID ``id`` of the copy."""
        return RemoteLogSegmentId(partition.topic_id, partition.topic, partition.partition, id)

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the segment belongs to."""
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:{self.id}"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """A remote segment.

    ``leader_epochs`` lists, in order, each leader epoch with records in the segment, and the epoch's first
    offset within the segment. There is at least one entry, and the first entry starts at ``start_offset``.
    ``segment_size_bytes`` is the size of the log file without its indexes (an int32 on the wire).
    ``custom_metadata`` belong to the storage manager. They are ``None`` until the copy has finished, or when
    the storage manager gave no custom metadata.
    """

    id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_bytes: int
    leader_epochs: Sequence[EpochStart]
    custom_metadata: bytes | None = None
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    txn_index_empty: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.start_offset <= self.end_offset:
            raise ValueError(
                f"{self.id}: offsets {self.start_offset} to {self.end_offset} are those of no segment"
            )
        if not self.leader_epochs:
            raise ValueError(f"{self.id}: a segment has at least one leader epoch")

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the segment belongs to."""
        return self.id.topic_id_partition

    def with_update(self, update: "RemoteLogSegmentMetadataUpdate") -> "RemoteLogSegmentMetadata":
        """This segment after an event. Raises IllegalTransitionError for a change of state that is not
        allowed.

        If the event has no custom metadata, the existing custom metadata are kept. They are needed in order
        to find the objects while the segment is deleted.
        """
        if update.id != self.id:
            raise ValueError(f"the event belongs to segment {update.id}, and not to segment {self.id}")
        check_segment_move(self.state, update.state)
        return replace(
            self,
            state=update.state,
            custom_metadata=self.custom_metadata
            if update.custom_metadata is None
            else update.custom_metadata,
            event_timestamp_ms=update.event_timestamp_ms,
            broker_id=update.broker_id,
        )


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A later event of a segment: the copy has finished, or the deletion has started or finished."""

    id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: bytes | None = None

    def __post_init__(self) -> None:
        if self.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"{self.id}: COPY_SEGMENT_STARTED is a segment's first event, not an update")

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the segment belongs to."""
        return self.id.topic_id_partition


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """An event in the removal of a partition's remote data, after the deletion of its topic."""

    partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition whose remote data are deleted."""
        return self.partition


RemoteLogMetadata: TypeAlias = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
)
"""All kinds of events of the metadata manager."""
