"""Open and aborted transactions of a partition: they bound read_committed reads. Pure.

No record creates any yet: coordinators refuse transactional batches. Copies of a partition include them; the
tables of SQLite and snapshots do not (``store/schema.py``).
"""

from collections.abc import Mapping, Sequence

from moldau.coordinators.diskless.calls import AbortedRange


class PartitionTransactions:
    """The transactions of one partition."""

    __slots__ = ("aborted", "open_from")

    def __init__(
        self, open_from: Mapping[int, int] | None = None, aborted: Sequence[AbortedRange] = ()
    ) -> None:
        self.open_from = dict(open_from or {})
        """First offset of each open transaction, by producer id."""
        self.aborted = list(aborted)
        """In the order of their markers."""

    def copy(self) -> "PartitionTransactions":
        """A copy that is independent of this one."""
        return PartitionTransactions(self.open_from, self.aborted)

    def last_stable(self, end_offset: int) -> int:
        """The first offset that may belong to an open transaction; ``end_offset`` when there is none."""
        return min(self.open_from.values(), default=end_offset)

    def aborted_within(self, start_offset: int, end_offset: int) -> list[AbortedRange]:
        """Aborted transactions with an offset in the range."""
        return [
            each
            for each in self.aborted
            if each.last_offset >= start_offset and each.first_offset < end_offset
        ]
