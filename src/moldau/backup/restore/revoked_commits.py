"""Revokes commits of transactions that the cut does not contain.

The logs of the diskless coordinators are saved one after another, and later than the logs of the transaction
coordinators. A commit may be decided while the logs are saved. One saved log may then contain the marker of
the commit. Another log may have been saved before the marker, or before the last batch of the transaction.
The transaction cannot be restored as a whole, and the saved log of its coordinator does not have the commit.
Therefore the restore replaces the markers of such commits by markers of aborts. Every marker contains the
position in ``__transaction_state`` at which the commit was decided. The restore compares this position with
the end of the saved log.
"""

from collections.abc import AsyncIterator, Container, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from moldau.backup.cut_format import LogPiece
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records.diskless import (
    RECORDS,
    DisklessTransactionMarker,
    DisklessTransactionsEndedKey,
    DisklessTransactionsEndedRecord,
)
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.records.varint import encode_varint

__all__ = ["Decision", "SavedDecisions"]

_KEY: Final = RECORDS.encode_key(DisklessTransactionsEndedKey())
_ENCODED_KEY: Final = encode_varint(len(_KEY)) + _KEY
"""The bytes of the key in a batch. A batch without these bytes has no markers, so it is not decoded."""


class Decision(NamedTuple):
    """The position in ``__transaction_state`` of the record that decides a transaction."""

    partition: int
    offset: int


class SavedDecisions:
    """The decisions about transactions that a cut contains, and the markers in the logs of its diskless
    coordinators."""

    def __init__(self, ends: Mapping[int, int], pending: Container[Decision]) -> None:
        """``ends`` are the ends of the saved logs of ``__transaction_state``, by partition. ``pending`` are
        the commits that the restored coordinators will complete."""
        self._ends = ends
        self._pending = pending
        self.marked: set[tuple[PartitionKey, Decision]] = set()
        """The diskless partitions that have the marker of a pending commit."""
        self.revoked_from: dict[PartitionKey, int] = {}
        """For each diskless partition, the offset of the marker of the first revoked commit."""
        self.revoked_producers: set[int] = set()

    async def without_later(
        self, pieces: AsyncIterator[tuple[LogPiece, memoryview]]
    ) -> AsyncIterator[tuple[LogPiece, memoryview]]:
        """Yield the pieces of a diskless coordinator's log. In each piece, the markers of commits that the
        cut does not contain are replaced by markers of aborts."""
        async for piece, content in pieces:
            yield piece, content if piece.is_snapshot else self._revised(content)

    def _revised(self, content: memoryview) -> memoryview:
        revised = bytearray()
        for position, header in iter_headers(content):
            batch = bytes(content[position : position + header.size_bytes])
            if _ENCODED_KEY in batch and not header.is_control:
                old = list(iter_records(memoryview(batch)))
                new = [self._record(each) for each in old]
                if new != old:
                    batch = build_batch(
                        new,
                        base_offset=header.base_offset,
                        leader_epoch=header.partition_leader_epoch,
                        keep_offsets=True,
                        last_offset=header.last_offset,
                    )
            revised += batch
        return memoryview(revised)

    def _record(self, record: Record) -> Record:
        if record.key != _KEY or record.value is None:
            return record
        ended = RECORDS.decode_value(_KEY, record.value)
        assert isinstance(ended, DisklessTransactionsEndedRecord)
        markers = list(self._markers(ended.markers))
        if markers == list(ended.markers):
            return record
        return record._replace(value=RECORDS.encode_value(replace(ended, markers=markers)))

    def _markers(self, markers: Iterable[DisklessTransactionMarker]) -> Iterable[DisklessTransactionMarker]:
        for marker in markers:
            place = PartitionKey(marker.topic_id, marker.partition_index)
            decision = Decision(marker.decision_partition, marker.decision_offset)
            if decision in self._pending:
                self.marked.add((place, decision))
            # Markers that earlier versions of Moldau wrote do not contain the position of the decision.
            is_later = decision.offset >= self._ends.get(decision.partition, 0) and decision.offset >= 0
            if marker.committed and is_later:
                self.revoked_from.setdefault(place, marker.base_offset)
                self.revoked_producers.add(marker.producer_id)
                yield replace(marker, committed=False)
            else:
                yield marker
