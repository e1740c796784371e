"""Tracks transactions for compaction. It knows which records were aborted, and which markers are still
needed."""

import heapq
from collections.abc import Iterable

from moldau.records.batch import BatchHeader
from moldau.records.control import ControlType
from moldau.storage.log.append_info import AbortedEntry


class CleanedTransactions:
    """Follows the transactions while a log is read batch by batch, in order.

    After the last batch of a transaction is removed, its marker stays for one more round, and then until the
    delete horizon. A reader in the middle of the transaction can then still read the transaction's end.
    """

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        """``aborted`` has every aborted transaction with a batch in the range that will be read."""
        self._coming = [(found.first_offset, found) for found in aborted]
        heapq.heapify(self._coming)
        self._aborted: dict[int, AbortedEntry] = {}
        self._aborted_with_batches: set[int] = set()
        self._committed_with_batches: set[int] = set()
        self.still_indexed: list[AbortedEntry] = []
        """Aborted transactions that still had batches, since this list was last cleared. Their markers are
        kept, and the index of the cleaned segment must contain them."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        if producer_id in self._aborted:
            self._aborted_with_batches.add(producer_id)
            return True
        self._committed_with_batches.add(producer_id)
        return False

    def is_needless(self, header: BatchHeader, kind: ControlType | None) -> bool:
        """Whether the marker's transaction has no records any more. ``kind`` is ``None`` for a marker batch
        without records."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        match kind:
            case None:
                return True
            case ControlType.ABORT:
                aborted = self._aborted.pop(producer_id, None)
                if aborted is None or producer_id not in self._aborted_with_batches:
                    return True
                self._aborted_with_batches.discard(producer_id)
                self.still_indexed.append(aborted)
                return False
            case ControlType.COMMIT:
                had_batches = producer_id in self._committed_with_batches
                self._committed_with_batches.discard(producer_id)
                return not had_batches
            case _:
                return False

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            _, aborted = heapq.heappop(self._coming)
            self._aborted.setdefault(aborted.producer_id, aborted)
