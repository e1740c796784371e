"""The topic ``__remote_log_metadata`` for the metadata manager, and the partition of each event."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from moldau.records.hashing import murmur2
from moldau.tiered.metadata.segments import TopicIdPartition

__all__ = [
    "EventWriter",
    "MetadataTopic",
    "TopicDescription",
    "TopicOffsets",
    "TopicRecords",
    "metadata_partition_of",
]

REMEMBERED_PARTITIONS_MAX: Final = 16_384


class TopicDescription(NamedTuple):
    """The topic as it is."""

    topic_id: UUID
    partition_count: int


class TopicOffsets(NamedTuple):
    """Offsets of one partition: its first offset, the end of the committed part, and the end of the log."""

    start_offset: int
    end_offset: int
    log_end_offset: int
    """All events that were acknowledged before are below it."""
    epoch_end_offset: int = -1
    """End of the requested leader epoch; -1 where the log does not have it."""


class TopicRecords(NamedTuple):
    """Committed records in order, and the offset to continue at (past offsets that hold no record)."""

    records: Sequence[tuple[int, bytes]]
    next_offset: int
    epoch: int = -1
    """The leader epoch in which the offset before ``next_offset`` was written; -1 without records."""
    unreadable: int = 0
    """Batches that were skipped because their records could not be read."""


class EventWriter(NamedTuple):
    """A leader that writes an event about its partition.

    The log refuses events of a leader with an older epoch: an event of one leader fences all earlier leaders.
    """

    partition: TopicIdPartition
    leader_epoch: int


class MetadataTopic(Protocol):
    """The topic, wherever its partitions are led.

    Every call may raise ``moldau.tiered.storage.storage_manager.RemoteStorageError``; a transient one (no
    leader, not loaded) is retried.
    """

    async def ensure(self) -> TopicDescription:
        """Create the topic when it does not exist; return when it is usable.

        Raises a permanent error when its partition count differs from the configuration.
        """
        ...

    async def append(self, partition: int, value: bytes, writer: EventWriter | None = None) -> int:
        """Append a record; return its offset once it is durable and committed.

        ``writer`` is None for events about deleted partitions, which the leader of the metadata partition
        writes itself.

        Raises ``RemoteMetadataUnknownOutcomeError`` when it may have been appended, or may yet be.
        """
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> TopicRecords:
        """Committed records from ``offset`` on; none, and the same offset, at the end."""
        ...

    async def wait_beyond(self, partition: int, offset: int) -> None:
        """Return when a record at or after ``offset`` is committed, or may be, because a check is cheap."""
        ...

    async def offsets(self, partition: int, epoch: int = -1) -> TopicOffsets:
        """Current start and end of the partition, and the end of a leader epoch in it."""
        ...


@lru_cache(maxsize=REMEMBERED_PARTITIONS_MAX)
def metadata_partition_of(partition: TopicIdPartition, partition_count: int) -> int:
    """The metadata partition for a partition's events: the mapping of Kafka's
    ``RemoteLogMetadataTopicPartitioner``.

    Cached, because every read and every round of a task needs it.
    """
    number = partition.topic_id.int
    combined = 1
    for part in (_long_hash(number & _LONG), _long_hash(number >> 64), partition.partition):
        combined = (31 * combined + part) & 0xFFFFFFFF
    return (murmur2(combined.to_bytes(4, "big")) & 0x7FFFFFFF) % partition_count


_LONG = (1 << 64) - 1


def _long_hash(value: int) -> int:
    """Java's ``Long.hashCode``."""
    return (value ^ value >> 32) & 0xFFFFFFFF
