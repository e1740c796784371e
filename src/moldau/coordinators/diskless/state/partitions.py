"""The user partitions of one coordinator: offsets and producers. Pure."""

from collections.abc import Iterator
from uuid import UUID

from moldau.coordinators.diskless.calls import ProducerOfPartition
from moldau.coordinators.diskless.state.producers import (
    Window,
    epoch_of,
    expired_ids,
    has_beginning,
    opened,
    time_of,
)
from moldau.coordinators.diskless.state.transactions import PartitionTransactions
from moldau.protocol.partitions import PartitionKey


class PartitionState:
    """One partition in the state of the coordinator. The state includes decisions that are not committed
    yet."""

    __slots__ = (
        "_began",
        "id",
        "last_prune",
        "log_start",
        "name",
        "next",
        "number",
        "producers",
        "prune_epoch",
        "remote_position",
        "transactions",
        "wal_start",
    )

    def __init__(self, number: int, partition_id: PartitionKey, name: str) -> None:
        self.number = number
        """Offset of the record that created the partition; it identifies the partition in the store."""
        self.id = partition_id
        self.name = name
        self.log_start = 0
        self.wal_start = 0
        """Records below this offset are in remote storage. The offset is never below ``log_start``."""
        self.next = 0
        self.producers: dict[int, Window] = {}
        self._began: dict[int, int] = {}
        """The epochs of producers that began with sequence 0. Windows do not have this, so it is known only
        of batches that were replayed or decided since the state was loaded."""
        self.prune_epoch = -1
        self.last_prune = (-1, -1)
        """``from_offset`` and ``to_offset`` of the last prune, so that a repeated prune with these offsets
        succeeds."""
        self.remote_position = -1
        self.transactions: PartitionTransactions | None = None
        """``None`` until the partition has its first transaction."""

    @property
    def last_stable(self) -> int:
        """The last stable offset."""
        if self.transactions is None:
            return self.next
        return self.transactions.last_stable(self.log_start, self.next)

    def begin_transaction(self, producer_id: int, offset: int) -> None:
        """Process a transactional batch that was appended at ``offset``."""
        if self.transactions is None:
            self.transactions = PartitionTransactions()
        self.transactions.begin(producer_id, offset)

    def end_transaction(self, producer_id: int, coordinator_epoch: int) -> int:
        """Process an appended marker. Returns the first offset of the transaction, or -1 if no transaction
        was open."""
        if self.transactions is None:
            self.transactions = PartitionTransactions()
        return self.transactions.end(producer_id, coordinator_epoch)

    @property
    def has_open_transaction(self) -> bool:
        return self.transactions is not None and bool(self.transactions.open_from)

    def is_in_transaction(self, producer_id: int) -> bool:
        """Whether the producer has an open transaction in this partition."""
        return self.transactions is not None and producer_id in self.transactions.open_from

    def note_beginning(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Called for the first batch that the partition accepts from an unknown producer, and for each batch
        with sequence 0."""
        if base_sequence:
            self._began.pop(producer_id, None)
        else:
            self._began[producer_id] = epoch

    def has_all_before(self, producer_id: int, window: Window) -> bool:
        """Whether all batches before the producer's last batch are certainly committed, because the producer
        began with sequence 0."""
        return has_beginning(window) or self._began.get(producer_id) == epoch_of(window)

    def expired_producers(self, cutoff_ms: int) -> Iterator[int]:
        """Return the ids of producers that have expired in this partition. ``producers.py`` decides which
        producers expire."""
        in_transaction = () if self.transactions is None else self.transactions.open_from
        return expired_ids(self.producers, cutoff_ms, in_transaction)

    def expire_producers(self, cutoff_ms: int) -> list[int]:
        """Remove expired producers. Returns their ids."""
        expired = list(self.expired_producers(cutoff_ms))
        for producer_id in expired:
            del self.producers[producer_id]
            self._began.pop(producer_id, None)
            if self.transactions is not None:
                self.transactions.coordinator_epochs.pop(producer_id, None)
        return expired

    def described_producers(self) -> list[ProducerOfPartition]:
        """The producers whose last batches the partition stores, as DescribeProducers shows them."""
        return [self._described(producer_id) for producer_id in self.producers]

    def _described(self, producer_id: int) -> ProducerOfPartition:
        window = opened(self.producers[producer_id])
        first_offset, coordinator_epoch = (
            (-1, -1) if self.transactions is None else self.transactions.row(producer_id)
        )
        last_sequence = window.entries[-1][1]
        return ProducerOfPartition(
            producer_id, window.epoch, last_sequence, window.time_ms, coordinator_epoch, first_offset
        )

    def copy_offsets(self, other: "PartitionState") -> None:
        """Copy everything except the producers from ``other``. The object with the transactions is copied,
        too, so later changes of ``other`` do not change this partition."""
        self.log_start, self.wal_start, self.next = other.log_start, other.wal_start, other.next
        self.prune_epoch, self.last_prune = other.prune_epoch, other.last_prune
        self.remote_position = other.remote_position
        self.transactions = None if other.transactions is None else other.transactions.copy()

    def delete_before(self, offset: int) -> None:
        """Move the log start forward; it never moves back."""
        self.log_start = max(self.log_start, offset)
        self.wal_start = max(self.wal_start, self.log_start)

    def prune(self, from_offset: int, to_offset: int, epoch: int, remote_position: int) -> None:
        """Move the WAL's start forward, and store the values of the prune."""
        self.wal_start = max(self.wal_start, to_offset)
        self.prune_epoch = max(self.prune_epoch, epoch)
        self.last_prune = (from_offset, to_offset)
        self.remote_position = remote_position


class PartitionTable:
    """Partitions by id."""

    def __init__(self) -> None:
        self._by_topic: dict[UUID, dict[int, PartitionState]] = {}

    def __iter__(self) -> Iterator[PartitionState]:
        for partitions in self._by_topic.values():
            yield from partitions.values()

    def find(self, topic_id: UUID, partition_index: int) -> PartitionState | None:
        partitions = self._by_topic.get(topic_id)
        return None if partitions is None else partitions.get(partition_index)

    def add(self, partition: PartitionState) -> None:
        self._by_topic.setdefault(partition.id.topic_id, {})[partition.id.partition] = partition

    def topic(self, topic_id: UUID) -> dict[int, PartitionState]:
        """The topic's partitions in this coordinator, by index."""
        return self._by_topic.get(topic_id, {})

    @property
    def topic_ids(self) -> list[UUID]:
        return list(self._by_topic)

    def producer_times(self) -> Iterator[int]:
        """The times of the last batches of all producers in all partitions, in ms."""
        return (time_of(window) for found in self for window in found.producers.values())

    def has_expired_producer(self, cutoff_ms: int) -> bool:
        """Whether a producer of any partition has expired."""
        return any(True for found in self for _ in found.expired_producers(cutoff_ms))

    def expire_producers(self, cutoff_ms: int) -> list[tuple[int, int]]:
        """Remove expired producers. Returns them as (partition number, producer id)."""
        return [
            (partition.number, producer_id)
            for partition in self
            for producer_id in partition.expire_producers(cutoff_ms)
        ]

    def delete_topic(self, topic_id: UUID) -> None:
        self._by_topic.pop(topic_id, None)
