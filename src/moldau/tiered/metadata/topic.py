"""The topic ``__remote_log_metadata``, as the metadata manager uses it. This module also determines the
partition of each event."""

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
    """An existing topic, with its id and its partition count."""

    topic_id: UUID
    partition_count: int


class TopicOffsets(NamedTuple):
    """Offsets of a partition: its first offset, the end of the committed part, and the end of the log."""

    start_offset: int
    end_offset: int
    log_end_offset: int
    """All events that were acknowledged before these offsets were read are before this offset."""
    epoch_end_offset: int = -1
    """End of the requested leader epoch; -1 when the log does not have the epoch."""


class TopicRecords(NamedTuple):
    """Committed records in order. Reading continues at ``next_offset``, which is after any offsets without a
    record."""

    records: Sequence[tuple[int, bytes]]
    next_offset: int
    epoch: int = -1
    """The leader epoch of the offset before ``next_offset``; -1 without records."""
    unreadable: int = 0
    """Batches that were skipped because their records could not be read."""


class EventWriter(NamedTuple):
    """A leader that writes an event about its partition.

    The log refuses events of a leader with an older epoch. An event of a leader therefore fences all earlier
    leaders.
    """

    partition: TopicIdPartition
    leader_epoch: int


class MetadataTopic(Protocol):
    """The topic. Any brokers may lead its partitions.

    Every call may raise ``moldau.tiered.storage.storage_manager.RemoteStorageError``. The caller retries
    after a transient error (no leader, not loaded).
    """

    async def ensure(self) -> TopicDescription:
        """Create the topic when it does not exist, and wait until the topic is usable.

        Raises a permanent error when its partition count differs from the configuration.
        """
        ...

    async def append(self, partition: int, value: bytes, writer: EventWriter | None = None) -> int:
        """Append a record. Returns its offset once it is durable and committed.

        ``writer`` is None for events about deleted partitions, which the leader of the metadata partition
        writes itself.

        Raises ``RemoteMetadataUnknownOutcomeError`` when the record may have been appended, or may still be
        appended.
        """
        ...

    async def read(self, partition: int, offset: int, max_bytes: int) -> TopicRecords:
        """Return committed records, beginning at ``offset``. If ``offset`` is the end of the committed part,
        there are no records, and the next offset is ``offset``."""
        ...

    async def wait_beyond(self, partition: int, offset: int) -> None:
        """Wait until a record at or after ``offset`` is committed. The method may also return earlier. The
        caller then checks again, which costs little."""
        ...

    async def offsets(self, partition: int, epoch: int = -1) -> TopicOffsets:
        """Current start and end of the partition, and the end of a leader epoch in it."""
        ...


@lru_cache(maxsize=REMEMBERED_PARTITIONS_MAX)
def metadata_partition_of(partition: TopicIdPartition, partition_count: int) -> int:
    """The metadata partition for a partition's events. The mapping is the same as in Kafka's
    ``RemoteLogMetadataTopicPartitioner``.

    The result is cached, because every read and every round of a task needs it.
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
