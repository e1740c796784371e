"""Decides the commit of a file. This module assigns offsets, checks sequences, and builds the result. Pure.

If a batch is refused, its file does not fail. The other batches are committed, and the bytes of the refused
batch stay unused.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, repeat
from operator import add, and_, sub
from typing import Any, Final, NamedTuple
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    FOLLOWS_DROPPED,
    HELD,
    LOG_APPEND_TIME,
    UNGUARDED,
    BatchToCommit,
    CommitFileCall,
    CommitFileResult,
    CommittedBatch,
)
from moldau.coordinators.diskless.codecs.file_codec import Receipt
from moldau.coordinators.diskless.state.gaps import BELIEF_MS, PATIENCE_MS, ProducerGaps
from moldau.coordinators.diskless.state.guards import TransactionGuards
from moldau.coordinators.diskless.state.partitions import PartitionState, PartitionTable
from moldau.coordinators.diskless.state.producers import (
    NO_EPOCH,
    SEQUENCE_MODULUS,
    Verdict,
    Window,
    all_extended,
    check_sequence,
    expected_sequence,
    extended,
    follows,
    last_sequence,
)
from moldau.coordinators.diskless.state.records import (
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
    NO_PRODUCER,
    FileCommitted,
    Moved,
    Rejected,
    Run,
)
from moldau.runtime import ErrorCode

MAX_FILE_BYTES: Final = (1 << 32) - 1
MAX_OFFSET_DELTA: Final = (1 << 31) - 1
_SEQUENCE_MASK: Final = SEQUENCE_MODULUS - 1

MESSAGES: Final = {
    ErrorCode.unknown_topic_or_partition: "This coordinator has no such partition.",
    ErrorCode.invalid_record: "The batch's fields contradict each other.",
    ErrorCode.invalid_txn_state: "The producer's transaction is open, and the batch is not transactional.",
    UNGUARDED: "The batch's guard is not known here (any more): its transaction may have ended.",
    ErrorCode.invalid_producer_epoch: "The producer has a newer epoch.",
    HELD: "A batch of the producer that comes before it is still missing.",
    ErrorCode.out_of_order_sequence_number: "The batch's sequence does not follow the producer's last.",
}

_VERDICTS: Final = {
    Verdict.STALE_EPOCH: ErrorCode.invalid_producer_epoch,
    Verdict.OUT_OF_ORDER: ErrorCode.out_of_order_sequence_number,
    Verdict.AHEAD: HELD,
}


class _Draft:
    """The state of a partition while a file is being decided. It includes the effects of the file's earlier
    batches."""

    __slots__ = ("began", "next", "partition", "windows")

    def __init__(self, partition: PartitionState) -> None:
        self.partition = partition
        self.next = partition.next
        self.windows: dict[int, Window] = {}
        self.began: set[int] = set()
        """Producers with transactional batches in the file."""

    def is_in_transaction(self, producer_id: int) -> bool:
        return producer_id in self.began or self.partition.is_in_transaction(producer_id)

    @property
    def is_plain(self) -> bool:
        """Whether no producer has an open transaction in the partition."""
        return not (self.began or self.partition.has_open_transaction)

    def window(self, producer_id: int) -> Window | None:
        return self.windows.get(producer_id) or self.partition.producers.get(producer_id)


class _Columns(NamedTuple):
    """The fields of :class:`BatchToCommit` as columns, for a file or for adjacent batches of a partition."""

    topic_ids: Sequence[UUID]
    partition_indexes: Sequence[int]
    request_ids: Sequence[int]
    byte_offsets: Sequence[int]
    sizes_bytes: Sequence[int]
    offset_deltas: Sequence[int]
    records_counts: Sequence[int]
    max_timestamps_ms: Sequence[int]
    timestamp_types: Sequence[int]
    producer_ids: Sequence[int]
    producer_epochs: Sequence[int]
    base_sequences: Sequence[int]
    last_sequences: Sequence[int]
    flags: Sequence[int]
    guards: Sequence[int]

    @classmethod
    def of(cls, batches: Sequence[BatchToCommit]) -> "_Columns":
        return cls(*zip(*batches, strict=True))

    def between(self, start: int, end: int) -> "_Columns":
        """Return the columns of the batches from ``start`` up to, not including, ``end``."""
        columns: Iterable[Any] = (column[start:end] for column in self)
        return _Columns(*columns)


class CommitDecision:
    """Decides one file; ``record`` is the result.

    The complete rule is in :meth:`_check_each`, which accepts or refuses one batch after another. Two faster
    methods accept batches by columns when there are no special cases: :meth:`_accept_file` accepts a whole
    file, and :meth:`_accept_stretch` accepts the adjacent batches of one partition (decision 0029). When
    these methods find a special case, they change nothing.
    """

    def __init__(
        self,
        partitions: PartitionTable,
        call: CommitFileCall,
        now_ms: int,
        gaps: ProducerGaps | None = None,
        elapsed_ms: int | None = None,
        guards: TransactionGuards | None = None,
    ) -> None:
        """``gaps`` and ``guards`` belong to the coordinator's producers. ``elapsed_ms`` comes from a clock
        without jumps; it measures waits for missing batches. By default it is ``now_ms``."""
        self._gaps = ProducerGaps() if gaps is None else gaps
        self._guards = TransactionGuards() if guards is None else guards
        self._elapsed_ms = now_ms if elapsed_ms is None else elapsed_ms
        self._partitions = partitions
        self._drafts: dict[int, _Draft] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._moved: list[Moved] = []
        self.record = FileCommitted(
            object_key=call.object_key,
            object_format=call.object_format,
            size_bytes=call.size_bytes,
            uploader_broker_id=call.uploader_broker_id,
            owner_ids=tuple(call.owner_ids),
            created_ms=call.created_ms,
            committed_ms=now_ms,
            runs=[],
            offset_deltas=[],
            flags=[],
            rejected=[],
            byte_offsets=[],
            sizes_bytes=[],
            max_timestamps_ms=[],
            producers=[],
            producer_indexes=[],
            base_sequences=[],
        )
        if call.place is not None:
            self.record.broker_epoch, self.record.commit_number = call.place[:2]
        if call.batches:
            self._decide(call.batches)
        self.record.producers.extend(self._numbers)
        self.record.decided = self._moved

    def _decide(self, batches: Sequence[BatchToCommit]) -> None:
        columns = _Columns.of(batches)
        if _is_plain(columns, self.record.size_bytes):
            if not self._accept_file(columns):
                self._decide_plain(batches, columns, 0)
            return
        for start, end in _stretches(columns):
            mine = columns.between(start, end)
            if _is_plain(mine, self.record.size_bytes):
                self._decide_plain(batches[start:end], mine, start)
            else:
                self._check_each(batches[start:end], start)

    def _accept_file(self, columns: _Columns) -> bool:
        """Accept a plain file at once. Returns False, without a change, if details must be checked.

        In a plain file all batches of a partition are adjacent. A producer has only one batch in a partition.
        This batch is the next batch in sequence, and the coordinator has a full window of the producer in the
        partition. A file without batches of idempotent producers is also plain.
        """
        topic_ids, indexes, counts = columns.topic_ids, columns.partition_indexes, columns.records_counts
        producer_ids, sequences = columns.producer_ids, columns.base_sequences
        idempotent = max(producer_ids) >= 0
        places: list[tuple[PartitionState, int, int, int]] = []
        base_offsets: list[int] = []
        windows: list[Window] = []
        for start, end in _stretches(columns):
            partition = self._partitions.find(topic_ids[start], indexes[start])
            if partition is None or partition.has_open_transaction:
                return False
            base_offsets += accumulate(counts[start:end], initial=partition.next)
            places.append((partition, start, end, base_offsets.pop()))
            if idempotent:
                windows += map(partition.producers.get, producer_ids[start:end], repeat(b""))
        if len({partition.number for partition, *_ in places}) != len(places):
            return False
        after: list[Window] | None = None
        if idempotent:
            last_sequences = list(map(add, sequences, columns.offset_deltas))
            if max(last_sequences) > _SEQUENCE_MASK:
                return False
            now_ms = self.record.committed_ms
            after = all_extended(
                windows, columns.producer_epochs, sequences, last_sequences, base_offsets, now_ms
            )
            if after is None:
                return False
        moved: list[Moved] = []
        for partition, start, end, next_offset in places:
            changed = dict(zip(producer_ids[start:end], after[start:end], strict=True)) if after else {}
            if after and len(changed) != end - start:
                return False
            moved.append(Moved(partition, next_offset, changed))
        self._moved = moved
        self.record.runs.extend(
            Run(*partition.id, partition.next, end - start) for partition, start, end, _ in places
        )
        self._record_accepted(columns, 0, len(counts))
        return True

    def _decide_plain(self, batches: Sequence[BatchToCommit], columns: _Columns, position: int) -> None:
        """Decide plain batches. The first of them is at ``position`` in the file."""
        accepted_from = 0
        for start, end in _stretches(columns):
            if not self._accept_stretch(columns, start, end):
                self._record_accepted(columns, accepted_from, start)
                self._check_each(batches[start:end], position + start)
                accepted_from = end
        self._record_accepted(columns, accepted_from, len(batches))

    def _draft(self, partition: PartitionState) -> _Draft:
        draft = self._drafts.get(partition.number)
        if draft is None:
            draft = self._drafts[partition.number] = _Draft(partition)
        return draft

    def _accept_stretch(self, columns: _Columns, start: int, end: int) -> bool:
        """Assign offsets to adjacent plain batches. Returns False, without a change, if any must be refused.

        :meth:`_record_accepted` adds the result to the record.
        """
        partition = self._partitions.find(columns.topic_ids[start], columns.partition_indexes[start])
        if partition is None:
            return False
        draft = self._draft(partition)
        if not draft.is_plain:
            return False
        deltas = columns.offset_deltas[start:end]
        producer_ids = columns.producer_ids[start:end]
        windows: dict[int, Window] = {}
        if max(producer_ids) >= 0:
            sequences, epochs = columns.base_sequences[start:end], columns.producer_epochs[start:end]
            after = self._windows_after(draft, producer_ids, epochs, sequences, deltas)
            if after is None:
                return False
            windows = after
            draft.windows.update(windows)
        count = end - start
        self.record.runs.append(Run(*partition.id, draft.next, count))
        draft.next += sum(deltas) + count
        self._moved.append(Moved(partition, draft.next, windows))
        return True

    def _windows_after(
        self,
        draft: _Draft,
        producer_ids: Sequence[int],
        epochs: Sequence[int],
        sequences: Sequence[int],
        deltas: Sequence[int],
    ) -> dict[int, Window] | None:
        """The windows after the batches; ``None`` if any batch is not its producer's next batch."""
        windows: dict[int, Window] = {}
        lookup = draft.window if draft.windows else draft.partition.producers.get
        repeated = len(set(producer_ids)) != len(producer_ids)
        now_ms = self.record.committed_ms
        last_sequences = map(and_, map(add, sequences, deltas), repeat(_SEQUENCE_MASK))
        offsets = accumulate(map(add, deltas, repeat(1)), initial=draft.next)
        entries = zip(sequences, last_sequences, offsets, repeat(-1), strict=False)
        for producer_id, epoch, entry in zip(producer_ids, epochs, entries, strict=True):
            window = (repeated and windows.get(producer_id)) or lookup(producer_id)
            if not window or not follows(window, epoch, entry[0]):
                return None
            windows[producer_id] = extended(window, epoch, now_ms, entry)
        return windows

    def _record_accepted(self, columns: _Columns, start: int, end: int) -> None:
        """Add accepted batches to the record's columns."""
        if start == end:
            return
        record, numbers = self.record, self._numbers
        producer_ids = columns.producer_ids[start:end]
        epochs, sequences = columns.producer_epochs[start:end], columns.base_sequences[start:end]
        record.offset_deltas += columns.offset_deltas[start:end]
        record.flags += columns.timestamp_types[start:end]
        record.byte_offsets += columns.byte_offsets[start:end]
        record.sizes_bytes += columns.sizes_bytes[start:end]
        record.max_timestamps_ms += columns.max_timestamps_ms[start:end]
        if max(producer_ids) < 0:
            record.producer_indexes += repeat(NO_PRODUCER, end - start)
            record.base_sequences += repeat(-1, end - start)
            return
        producers = dict.fromkeys(zip(producer_ids, epochs, strict=True))
        by_id: dict[int, int] = {}
        for producer in producers:
            if producer[0] >= 0:
                by_id[producer[0]] = numbers.setdefault(producer, len(numbers) + 1)
        if len(by_id) == len(producers):
            record.producer_indexes += map(by_id.__getitem__, producer_ids)
            record.base_sequences += sequences
        else:
            pairs = zip(producer_ids, epochs, strict=True)
            record.producer_indexes += map(numbers.get, pairs, repeat(NO_PRODUCER))
            # A batch without a producer may have any sequence.
            record.base_sequences += (
                sequence if producer_id >= 0 else -1
                for producer_id, sequence in zip(producer_ids, sequences, strict=True)
            )

    def _check_each(self, batches: Sequence[BatchToCommit], start: int) -> None:
        """Apply the complete rule to adjacent batches of a partition: accept or refuse each batch."""
        record, count = self.record, 0
        partition = self._partitions.find(batches[0].topic_id, batches[0].partition_index)
        if partition is None:
            code = ErrorCode.unknown_topic_or_partition
            record.rejected.extend(Rejected(start + at, code) for at in range(len(batches)))
            return
        draft = self._draft(partition)
        base_offset = draft.next
        windows: dict[int, Window] = {}
        for position, batch in enumerate(batches, start):
            sound = (
                0 <= batch.last_offset_delta <= MAX_OFFSET_DELTA
                and batch.records_count == batch.last_offset_delta + 1
                and batch.size_bytes > 0
                and batch.byte_offset >= 0
                and batch.byte_offset + batch.size_bytes <= record.size_bytes
                and (not batch.is_transactional or batch.producer_id >= 0)
            )
            if not sound:
                record.rejected.append(Rejected(position, ErrorCode.invalid_record))
                continue
            number, sequence = NO_PRODUCER, -1
            if batch.producer_id >= 0:
                refused = self._check_producer(draft, position, batch)
                if refused is not None:
                    record.rejected.append(refused)
                    continue
                producer = (batch.producer_id, batch.producer_epoch)
                number = self._numbers.setdefault(producer, len(self._numbers) + 1)
                sequence = batch.base_sequence
                windows[batch.producer_id] = draft.windows[batch.producer_id]
            append_time = batch.timestamp_type == LOG_APPEND_TIME
            record.offset_deltas.append(batch.last_offset_delta)
            record.flags.append(
                (FLAG_LOG_APPEND_TIME if append_time else 0)
                | (FLAG_TRANSACTIONAL if batch.is_transactional else 0)
            )
            record.byte_offsets.append(batch.byte_offset)
            record.sizes_bytes.append(batch.size_bytes)
            record.max_timestamps_ms.append(record.committed_ms if append_time else batch.max_timestamp_ms)
            record.producer_indexes.append(number)
            record.base_sequences.append(sequence)
            draft.next += batch.last_offset_delta + 1
            count += 1
        if count:
            record.runs.append(Run(*partition.id, base_offset, count))
            self._moved.append(Moved(partition, draft.next, windows))

    def _check_producer(self, draft: _Draft, position: int, batch: BatchToCommit) -> Rejected | None:
        """Check a producer's batch against the window of the producer. If the batch is accepted, the window
        in the draft advances."""
        epoch, sequence, delta = batch.producer_epoch, batch.base_sequence, batch.last_offset_delta
        if sequence < 0 or epoch < NO_EPOCH:
            return Rejected(position, ErrorCode.invalid_record)
        window = draft.window(batch.producer_id)
        verdict = check_sequence(window, epoch, sequence, delta)
        has_predecessor = window is not None and follows(window, epoch, sequence)
        if verdict is None and batch.flags & FOLLOWS_DROPPED and not has_predecessor:
            verdict = Verdict.AHEAD
        if verdict is Verdict.AHEAD:
            verdict = self._check_ahead(draft, window, batch)
        if verdict is None:
            refused = self._transaction_error(draft, batch)
            if refused is not None:
                return Rejected(position, refused)
            now_ms = self.record.committed_ms
            appended_ms = now_ms if batch.timestamp_type == LOG_APPEND_TIME else -1
            entry = (sequence, last_sequence(sequence, delta), draft.next, appended_ms)
            draft.windows[batch.producer_id] = extended(window, epoch, now_ms, entry)
            return None
        if isinstance(verdict, Verdict):
            return Rejected(position, _VERDICTS[verdict])
        return Rejected(position, ErrorCode.none, verdict[2], verdict[3])

    def _transaction_error(self, draft: _Draft, batch: BatchToCommit) -> ErrorCode | None:
        """Return the reason why a batch that is in sequence must not be appended. If a transactional batch is
        accepted, its producer is added to ``draft.began``."""
        producer_id = batch.producer_id
        if not batch.is_transactional:
            return ErrorCode.invalid_txn_state if draft.is_in_transaction(producer_id) else None
        key = (draft.partition.number, producer_id)
        if not self._guards.is_valid(key, batch.producer_epoch, batch.guard):
            return UNGUARDED
        draft.began.add(producer_id)
        return None

    def _check_ahead(self, draft: _Draft, window: Window | None, batch: BatchToCommit) -> Verdict | None:
        """Check a batch whose predecessor is missing. The batch waits, and is refused after a time limit. The
        batch of an unknown producer is accepted after a shorter time (the result is then ``None``)."""
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        key = (draft.partition.number, batch.producer_id, epoch)
        expected = expected_sequence(window, epoch)
        waited_ms = self._gaps.waited_ms(key, expected, sequence, self._elapsed_ms)
        if waited_ms >= PATIENCE_MS:
            return Verdict.OUT_OF_ORDER
        is_stranger = window is None and not batch.flags & FOLLOWS_DROPPED
        if is_stranger and waited_ms >= BELIEF_MS and self._gaps.is_first(key, sequence):
            return None
        return Verdict.AHEAD


def _stretches(columns: _Columns) -> Iterator[tuple[int, int]]:
    """The start and the end of each run. A run consists of adjacent batches of one partition."""
    start = 0
    for _, run in groupby(zip(columns.topic_ids, columns.partition_indexes, strict=True)):
        end = start + len(list(run))
        yield start, end
        start = end


def _is_plain(columns: _Columns, file_bytes: int) -> bool:
    """Whether all numbers are valid, and no batch has a flag or LogAppendTime. Producers are not checked."""
    byte_offsets, sizes, deltas = columns.byte_offsets, columns.sizes_bytes, columns.offset_deltas
    return not (
        not 0 <= min(deltas) <= max(deltas) <= MAX_OFFSET_DELTA
        or min(sizes) <= 0
        or min(byte_offsets) < 0
        or any(columns.flags)
        or any(columns.timestamp_types)
        or max(map(add, byte_offsets, sizes)) > file_bytes
        or list(map(sub, columns.records_counts, deltas)).count(1) != len(sizes)
    )


def result_of(
    receipt: Receipt | FileCommitted, committed_ms: int, partitions: PartitionTable
) -> CommitFileResult:
    """Return the result that the receipt describes, with the current log starts."""
    flags = receipt.flags
    spans = list(map(add, receipt.offset_deltas, repeat(1)))
    offsets: list[int] = []
    log_starts: list[int] = []
    position = 0
    for topic_id, index, offset, count in receipt.runs:
        partition = partitions.find(topic_id, index)
        log_starts += repeat(-1 if partition is None else partition.log_start, count)
        # The last span of a run is left out, because each run has its own base offset.
        offsets += accumulate(spans[position : position + count - 1], initial=offset)
        position += count
    times = [committed_ms if flag & FLAG_LOG_APPEND_TIME else -1 for flag in flags] if any(flags) else None
    rows = zip(
        repeat(ErrorCode.none),
        offsets,
        times or repeat(-1),
        log_starts,
        repeat(None),
        repeat(False),
        strict=False,
    )
    found: list[CommittedBatch] = list(map(tuple.__new__, repeat(CommittedBatch), rows))
    # The positions are indexes of the complete list, in ascending order, so each insertion is correct.
    for rejected in receipt.rejected:
        found.insert(rejected.position, _rejected(rejected))
    return CommitFileResult(found)


def _rejected(rejected: Rejected) -> CommittedBatch:
    if rejected.error is ErrorCode.none:
        return CommittedBatch(
            ErrorCode.none, rejected.base_offset, rejected.log_append_time_ms, is_duplicate=True
        )
    return CommittedBatch(rejected.error, message=MESSAGES.get(rejected.error))
