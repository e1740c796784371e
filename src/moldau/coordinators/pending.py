"""Collects the records of the next batch: records that were decided and replayed, but not appended to the log
yet. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from moldau.coordinators.effects import PLAIN, BatchKind
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.record import Record

BATCH_OVERHEAD_BYTES: Final = 61
RECORD_OVERHEAD_BYTES: Final = 26
"""``BATCH_OVERHEAD_BYTES`` is the size of a batch's header. ``RECORD_OVERHEAD_BYTES`` is an upper limit for
the bytes of a record without its key and value: its length, attributes, two deltas, key length, value length
and header count."""


class KeyValue(NamedTuple):
    """The encoded key and value of a record."""

    key: bytes | None
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        """An upper limit of the size of the record in a batch."""
        return len(self.key or b"") + len(self.value or b"") + RECORD_OVERHEAD_BYTES


def batch_size_bytes(pairs: Sequence[KeyValue]) -> int:
    """Return an upper limit for the size in bytes of a batch with these records."""
    return BATCH_OVERHEAD_BYTES + sum(pair.size_bytes for pair in pairs)


class PendingBatch:
    """Collects records of one kind until they are appended together."""

    def __init__(self, compression: Compression = Compression.NONE) -> None:
        self._compression = compression
        self._records: list[Record] = []
        self.kind = PLAIN
        self.size_bytes = BATCH_OVERHEAD_BYTES

    def __len__(self) -> int:
        return len(self._records)

    def has_room(self, kind: BatchKind, more_bytes: int, max_bytes: int) -> bool:
        """Whether records of ``kind`` with ``more_bytes`` may be added to this batch."""
        if not self._records:
            return True
        return kind == self.kind and self.size_bytes + more_bytes <= max_bytes

    def add(self, pair: KeyValue, offset: int, timestamp_ms: int, kind: BatchKind) -> None:
        """Add a record that will get ``offset``."""
        self.kind = kind
        self._records.append(Record(offset, timestamp_ms, pair.key, pair.value, ()))
        self.size_bytes += pair.size_bytes

    def build(self) -> bytearray:
        """Build the batch and clear the collected records."""
        records, self._records, self.size_bytes = self._records, [], BATCH_OVERHEAD_BYTES
        return bytearray(
            build_batch(
                records,
                base_offset=records[0].offset,
                compression=self._compression,
                producer_id=self.kind.producer_id,
                producer_epoch=self.kind.producer_epoch,
                transactional=self.kind.transactional,
            )
        )
