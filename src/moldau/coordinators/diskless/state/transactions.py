"""The transactions of a partition. The last stable offset depends on the open transactions, and
read_committed readers skip the aborted transactions. Pure.

The transactions can be computed from the coordinator's log without a read of objects: the record of a file
marks the transactional batches, and other records contain the ends of transactions.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from moldau.coordinators.diskless.calls import AbortedRange

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


class PartitionTransactions:
    """The open transactions of one partition, and the epochs of the coordinators that ended earlier
    transactions."""

    __slots__ = ("coordinator_epochs", "open_from")

    def __init__(self) -> None:
        self.open_from: dict[int, int] = {}
        """First offset of each open transaction, by producer id, in ascending order."""
        self.coordinator_epochs: dict[int, int] = {}
        """Epoch of the transaction coordinator that wrote a producer's last marker."""

    def copy(self) -> "PartitionTransactions":
        """A copy that is independent of this object."""
        copied = PartitionTransactions()
        copied.open_from.update(self.open_from)
        copied.coordinator_epochs.update(self.coordinator_epochs)
        return copied

    def last_stable(self, log_start: int, end_offset: int) -> int:
        """Return the first offset that may belong to an open transaction; ``end_offset`` when no transaction
        is open.

        The result is never before ``log_start``, because DeleteRecords may delete the beginning of an open
        transaction.
        """
        return max(log_start, next(iter(self.open_from.values()), end_offset))

    def begin(self, producer_id: int, offset: int) -> None:
        """Process a transactional batch that was appended."""
        self.open_from.setdefault(producer_id, offset)

    def end(self, producer_id: int, coordinator_epoch: int) -> int:
        """Process an appended marker. Returns the first offset of the transaction, or -1 if no transaction
        was open."""
        self.coordinator_epochs[producer_id] = coordinator_epoch
        return self.open_from.pop(producer_id, NO_OFFSET)

    def row(self, producer_id: int) -> tuple[int, int]:
        """Return two numbers of a producer: the first offset of its open transaction, and the epoch of the
        coordinator that ended its last transaction. A number that does not exist is -1."""
        return (
            self.open_from.get(producer_id, NO_OFFSET),
            self.coordinator_epochs.get(producer_id, NO_COORDINATOR_EPOCH),
        )

    def restore(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Restore the transactions of producers from rows, in any order. A row has the producer id and the
        two numbers of :meth:`row`."""
        for producer_id, first_offset, coordinator_epoch in sorted(rows, key=lambda row: row[1]):
            if first_offset >= 0:
                self.open_from[producer_id] = first_offset
            if coordinator_epoch >= 0:
                self.coordinator_epochs[producer_id] = coordinator_epoch


class AbortedExtent(NamedTuple):
    """An aborted transaction, as in Kafka's transaction index."""

    last_offset: int
    """Offset of the transaction's marker."""
    first_offset: int
    producer_id: int
    last_stable_offset: int
    """The last stable offset of the partition after the marker. Every transaction that ends later has its
    first offset at or after this offset."""


class AbortedExtents:
    """The aborted transactions of a partition, in the order of their markers."""

    def __init__(self) -> None:
        self._extents: list[AbortedExtent] = []

    def __iter__(self) -> Iterator[AbortedExtent]:
        return iter(self._extents)

    def add(self, extent: AbortedExtent) -> None:
        self._extents.append(extent)

    def within(self, start_offset: int, end_offset: int) -> list[AbortedRange]:
        """Aborted transactions with an offset in the range."""
        found: list[AbortedRange] = []
        extents = self._extents
        for at in range(self._first_from(start_offset), len(extents)):
            last_offset, first_offset, producer_id, stable = extents[at]
            if first_offset < end_offset:
                found.append(AbortedRange(producer_id, first_offset, last_offset))
            if stable >= end_offset:
                break
        return found

    def delete_before(self, offset: int) -> None:
        """Remove the transactions whose marker is before ``offset``."""
        del self._extents[: self._first_from(offset)]

    def _first_from(self, offset: int) -> int:
        return bisect_left(self._extents, offset, key=attrgetter("last_offset"))
