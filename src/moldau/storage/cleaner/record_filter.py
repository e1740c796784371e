"""Selects the records of a batch that survive compaction (KIP-98, KIP-534). Pure."""

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from moldau.records.batch import BatchHeader
from moldau.records.control import ControlType, parse_control_type
from moldau.records.record import Record, iter_opened, iter_records, open_batch
from moldau.records.rewriting import empty_batch, rewrite_batch
from moldau.storage.cleaner.offset_map import OffsetMap
from moldau.storage.cleaner.transactions import CleanedTransactions


class LastRecord(NamedTuple):
    """The last data offset of an active producer, and its epoch. The offset is ``None`` when only a marker
    is left."""

    data_offset: int | None
    producer_epoch: int


class BatchFilter:
    """Filters the batches of one round, in order."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        last_records: Mapping[int, LastRecord],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._last_records = last_records
        self._now_ms = now_ms
        self._new_horizon_ms = now_ms + delete_retention_ms
        self._end_offset = offsets.latest_offset + 1

    def filter(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        """The replacement of a batch. It is the batch itself, a smaller batch, or None.

        Two kinds of batches are kept even if none of their records is kept: the last batch of an active
        producer, because its header has the producer's last sequence number, and the last batch of the round,
        because its header has the last offset.
        """
        if header.is_control:
            kept = self._filter_marker(header, batch)
        elif self._transactions.is_aborted(header):
            kept = None
        else:
            kept = self._filter_records(header, batch)
        if kept is None and self._must_stay(header):
            return empty_batch(header)
        return kept

    def _filter_marker(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        records = list(iter_records(batch))
        needless = self._transactions.is_needless(header, _kind_of(records))
        if not records:
            return None
        horizon_ms = header.delete_horizon_ms
        if needless and horizon_ms is None:
            return rewrite_batch(header, records, self._new_horizon_ms)
        if needless and horizon_ms is not None and horizon_ms <= self._now_ms:
            return None
        return batch

    def _filter_records(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        horizon_ms = header.delete_horizon_ms
        tombstones_stay = horizon_ms is None or self._now_ms < horizon_ms
        # The records are read twice, because a batch may contain a million records. Only one byte per record
        # is stored between the two reads.
        _, payload = open_batch(batch)
        verdicts = bytearray()
        needs_horizon = False
        for record in iter_opened(header, payload):
            stays = self._stays(record, tombstones_stay)
            verdicts.append(stays)
            needs_horizon = needs_horizon or (stays and horizon_ms is None and record.value is None)
        if not any(verdicts):
            return None
        if needs_horizon:
            horizon_ms = self._new_horizon_ms
        elif all(verdicts):
            return batch
        kept = (record for record, stays in zip(iter_opened(header, payload), verdicts, strict=True) if stays)
        return rewrite_batch(header, kept, horizon_ms)

    def _stays(self, record: Record, tombstones_stay: bool) -> bool:
        if record.offset > self._offsets.latest_offset:
            return True
        # A record without a key was written before the topic was compacted. No later record can replace it,
        # so it is removed.
        if record.key is None:
            return False
        return record.offset >= self._offsets.get(record.key) and (
            record.value is not None or tombstones_stay
        )

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self._end_offset:
            return True
        last = self._last_records.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        if last.data_offset is not None:
            return header.last_offset == last.data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch


def kind_of_control(batch: memoryview) -> ControlType | None:
    """Return the type of a control batch's first record, or None when the batch has no records any more."""
    return _kind_of(list(islice(iter_records(batch), 1)))


def _kind_of(records: list[Record]) -> ControlType | None:
    return parse_control_type(records[0].key) if records else None
