"""Producer state of a partition: last sequence numbers and ongoing transactions. Pure.

The state gets batches and decides whether the next batch may be appended. The driver's contract:

1. Call ``check`` with a produced batch (or ``check_marker`` with an end marker) before it is appended. The
   call changes nothing.
2. Append the batch. If the append fails, the state is still correct.
3. Call ``apply`` (or ``apply_marker``) with the batch and its new offsets. Followers and recovery, whose
   batches already have offsets, call ``apply_batch``. Do this for *every* batch with a producer id, in log
   order.
4. Report truncations (``reset``), the log start (``advance_log_start``) and the high watermark.

The rules come from KIP-98 and KIP-360. The last five batches of an epoch are stored, and a repetition of one
of these batches is a duplicate. Any other batch must have the next sequence number. A new epoch starts at
number 0, and an unknown (or forgotten) producer may start at any number.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moldau.records import BatchHeader, InvalidRecordError, iter_records
from moldau.records.batch import (
    CONTROL_BIT,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SEQUENCE_MAX,
    TRANSACTIONAL_BIT,
)
from moldau.records.control import EndTransactionMarker, parse_control_record
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.buffers import Buffer

__all__ = [
    "BATCHES_REMEMBERED",
    "BatchMetadata",
    "CompletedTransaction",
    "ProducerEntry",
    "ProducerState",
]

BATCHES_REMEMBERED = 5
"""Kafka's limit on the number of requests in flight of an idempotent producer."""

NO_COORDINATOR_EPOCH = -1


class BatchMetadata(NamedTuple):
    """An appended batch. ``timestamp`` is the batch's max timestamp (for LogAppendTime, it is the append
    time)."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class CompletedTransaction(NamedTuple):
    """A transaction that was just ended by its marker. ``last_offset`` is the offset of the marker.

    ``last_stable_offset`` is the value for the transaction index. It is the start of the oldest open
    transaction. Without an open transaction, it is the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    aborted: bool


class ProducerEntry:
    """One producer's state. Only this module may change it."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = NO_TIMESTAMP,
        current_txn_first_offset: int | None = None,
        batches: Iterable[BatchMetadata] = (),
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset
        self.batches: deque[BatchMetadata] = deque(batches, maxlen=BATCHES_REMEMBERED)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerEntry) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"ProducerEntry({fields})"

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record. It is -1 when no batch of this epoch is stored."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the stored batch of the same epoch that has exactly the same range of sequence numbers."""
        if header.producer_epoch != self.producer_epoch:
            return None
        base_sequence = header.base_sequence
        last_sequence = header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == base_sequence:
                return batch
        return None


class ProducerState:
    """The producers of one partition, their open transactions and the first unstable offset."""

    def __init__(self, *, expiration_ms: int, offset: int = 0) -> None:
        """``expiration_ms`` is producer.id.expiration.ms. ``offset`` is the first end offset of the
        state: records below it are not in the state."""
        self._expiration_ms = expiration_ms
        self._end_offset = offset
        self._producers: dict[int, ProducerEntry] = {}
        # The producer id of each open transaction, by the transaction's first offset. The order is ascending,
        # because transactions begin in log order.
        self._ongoing: dict[int, int] = {}
        # The offset of the marker of each ended transaction, by the transaction's first offset. Only
        # transactions whose marker is at or above the high watermark are included.
        self._unreplicated: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerEntry]:
        """The producers. They are used for snapshots and DescribeProducers."""
        return iter(self._producers.values())

    @property
    def end_offset(self) -> int:
        """The state covers the log up to this offset (exclusive)."""
        return self._end_offset

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader, *, from_client: bool = True) -> BatchMetadata | None:
        """Check a data batch before it is appended. Returns the remembered batch if it is a duplicate, which
        must not be appended.

        Sequence numbers are checked only for clients, because a coordinator's batches have no sequence
        numbers. Raises
        :class:`KafkaError`: INVALID_PRODUCER_EPOCH for an old epoch, OUT_OF_ORDER_SEQUENCE_NUMBER,
        INVALID_TXN_STATE for a batch outside the producer's open transaction.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            return None
        epoch = header.producer_epoch
        if from_client:
            batches = entry.batches
            in_order = (
                batches
                and entry.producer_epoch == epoch
                and (batches[-1].last_sequence + 1) & SEQUENCE_MAX == header.base_sequence
            )
            if not in_order:
                duplicate = entry.duplicate_of(header)
                if duplicate is not None:
                    return duplicate
                _check_epoch(entry, epoch)
                _check_sequence(entry, header)
        else:
            _check_epoch(entry, epoch)
        if entry.current_txn_first_offset is not None and not header.attributes & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {entry.producer_id} has an open transaction and sent a batch outside of it",
            )
        return None

    def check_marker(self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker) -> None:
        """Check an end marker before it is appended.

        Raises :class:`KafkaError` with INVALID_PRODUCER_EPOCH for an old producer epoch, and with
        TRANSACTION_COORDINATOR_FENCED if the marker's coordinator epoch is older than the last known
        coordinator epoch.
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        _check_epoch(entry, producer_epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"coordinator epoch {marker.coordinator_epoch} of a marker for producer {producer_id}"
                f" is older than {entry.coordinator_epoch}",
            )

    def apply(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Record a data batch that was appended at ``base_offset`` with ``max_timestamp`` (milliseconds)."""
        producer_id = header.producer_id
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id)
        epoch = header.producer_epoch
        if entry.producer_epoch != epoch:
            entry.batches.clear()
            entry.producer_epoch = epoch
        delta = header.last_offset_delta
        entry.batches.append(BatchMetadata(header.last_sequence, base_offset + delta, delta, max_timestamp))
        entry.last_timestamp = max_timestamp
        if header.attributes & TRANSACTIONAL_BIT and entry.current_txn_first_offset is None:
            entry.current_txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id
        self._end_offset = base_offset + delta + 1

    def apply_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        offset: int,
        timestamp: int,
    ) -> CompletedTransaction | None:
        """Record an end marker that was appended at ``offset``. Returns None when the marker ended no
        transaction in this partition."""
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id)
        if entry.producer_epoch != producer_epoch:
            entry.batches.clear()
            entry.producer_epoch = producer_epoch
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset = entry.current_txn_first_offset
        entry.current_txn_first_offset = None
        self._end_offset = offset + 1
        if first_offset is None:
            return None
        self._ongoing.pop(first_offset, None)
        self._unreplicated[first_offset] = offset
        stable = next(iter(self._ongoing), offset + 1)
        return CompletedTransaction(producer_id, first_offset, offset, stable, not marker.committed)

    def apply_batch(self, batch: Buffer, header: BatchHeader) -> CompletedTransaction | None:
        """Record a batch of the log. Call this on a follower, or while the state is rebuilt.

        ``batch`` starts at the header. It is opened only when it is a control batch. The batch is not checked
        here, because the leader has checked it. Batches without a producer id only move ``end_offset``.
        """
        if header.producer_id < 0:
            self._end_offset = header.next_offset
            return None
        if not header.attributes & CONTROL_BIT:
            self.apply(header, header.base_offset, header.max_timestamp)
            return None
        completed = None
        for record in iter_records(batch):
            marker = parse_control_record(record)
            if not isinstance(marker, EndTransactionMarker):
                raise InvalidRecordError("a control batch with a producer id holds no transaction marker")
            completed = self.apply_marker(
                header.producer_id, header.producer_epoch, marker, header.base_offset, record.timestamp
            )
            break
        # The cleaner may have removed the records of the batch, but the batch still covers their offsets.
        self._end_offset = header.next_offset
        return completed

    def advance_end(self, offset: int) -> None:
        """Move the end of the log to ``offset``, because batches without a producer id were appended."""
        self._end_offset = offset

    # Transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is not decided yet; None when there is no such transaction.

        A transaction is not decided until the high watermark has passed its marker.
        """
        undecided = next(iter(self._ongoing), None)
        if not self._unreplicated:
            return undecided
        unreplicated = min(self._unreplicated)
        return unreplicated if undecided is None else min(undecided, unreplicated)

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Forget ended transactions whose marker is below the high watermark."""
        if self._unreplicated:
            self._unreplicated = {
                first: last for first, last in self._unreplicated.items() if last >= high_watermark
            }

    # Life cycle of the state

    def advance_log_start(self, log_start_offset: int) -> None:
        """Move the log start up. Producers stay known until they expire (KIP-360)."""
        self.advance_high_watermark(log_start_offset)
        self._end_offset = max(self._end_offset, log_start_offset)

    def remove_expired(self, now_ms: int) -> int:
        """Forget producers that have no open transaction and have sent no batch for the expiration time.
        Returns the number of forgotten producers."""
        expired = [entry.producer_id for entry in self._producers.values() if self._is_expired(entry, now_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def _is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        if entry.last_timestamp < 0:
            # The records of this producer have no timestamp, so its expiration time begins now. Otherwise a
            # restart would remove a producer that is retrying.
            entry.last_timestamp = now_ms
        return entry.current_txn_first_offset is None and now_ms - entry.last_timestamp >= self._expiration_ms

    def reset(self, offset: int, entries: Iterable[ProducerEntry] = (), now_ms: int | None = None) -> None:
        """Begin again at ``offset`` with the ``entries`` of a snapshot. Without entries the state is empty.

        After a truncation, the driver then calls ``apply_batch`` for the batches from ``offset`` to the log's
        end. With ``now_ms``, expired entries are left out.
        """
        self._producers = {
            entry.producer_id: entry
            for entry in entries
            if now_ms is None or not self._is_expired(entry, now_ms)
        }
        self._ongoing = dict(
            sorted(
                (entry.current_txn_first_offset, entry.producer_id)
                for entry in self._producers.values()
                if entry.current_txn_first_offset is not None
            )
        )
        self._unreplicated = {}
        self._end_offset = offset


def _check_epoch(entry: ProducerEntry, epoch: int) -> None:
    if epoch < entry.producer_epoch:
        raise KafkaError(
            ErrorCode.invalid_producer_epoch,
            f"epoch {epoch} of producer {entry.producer_id} is older than {entry.producer_epoch}",
        )


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
    known_epoch = entry.producer_epoch
    if known_epoch == NO_PRODUCER_EPOCH:
        return
    sequence = header.base_sequence
    if header.producer_epoch != known_epoch:
        if sequence != 0:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {entry.producer_id} began epoch {header.producer_epoch} with sequence number"
                f" {sequence}; epoch {known_epoch} was the last",
            )
        return
    last = entry.last_sequence
    expected = 0 if last == NO_SEQUENCE else (last + 1) & SEQUENCE_MAX
    if sequence != expected:
        raise KafkaError(
            ErrorCode.out_of_order_sequence_number,
            f"producer {entry.producer_id} sent sequence number {sequence} after {last}",
        )
