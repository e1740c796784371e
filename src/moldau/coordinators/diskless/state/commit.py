"""Decides the commit of a file. This module assigns offsets, checks sequences, and builds the result. Pure.

If a batch is refused, its file does not fail. The other batches are committed, and the bytes of the refused
batch stay unused.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, repeat
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

from moldau.coordinators.diskless.calls import (
    FOLLOWS_DROPPED,
    HELD,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
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
from moldau.coordinators.diskless.state.plain_files import (
    MAX_OFFSET_DELTA,
    BatchColumns,
    DecidedBatches,
    accept_plain_file,
)
from moldau.coordinators.diskless.state.producers import (
    NO_EPOCH,
    Verdict,
    Window,
    check_sequence,
    expected_sequence,
    extended,
    follows,
    is_before,
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

_PARTITION: Final = attrgetter("topic_id", "partition_index")

MESSAGES: Final = {
    ErrorCode.unknown_topic_or_partition: "This coordinator has no such partition.",
    ErrorCode.invalid_record: "The batch's fields contradict each other.",
    ErrorCode.invalid_txn_state: "The producer's transaction is open, and the batch is not transactional.",
    UNGUARDED: "The batch's guard is not known here (any more): its transaction may have ended.",
    ErrorCode.invalid_producer_epoch: "The producer has a newer epoch.",
    HELD: "A batch of the producer that comes before it is still missing.",
    ErrorCode.duplicate_sequence_number: "The batch was committed before the producer's last batches.",
    ErrorCode.out_of_order_sequence_number: "The batch's sequence does not follow the producer's last.",
}

_VERDICTS: Final = {
    Verdict.STALE_EPOCH: ErrorCode.invalid_producer_epoch,
    Verdict.COMMITTED_BEFORE: ErrorCode.duplicate_sequence_number,
    Verdict.OUT_OF_ORDER: ErrorCode.out_of_order_sequence_number,
    Verdict.AHEAD: HELD,
}


class DecidedFile(NamedTuple):
    """A decision about a file: the record, and the changes that the record makes."""

    record: FileCommitted
    changes: Sequence[Moved]
    """The change of each run of the record. If the record is replayed in this process, the replay does not
    have to compute the changes again."""


def decide_file(
    partitions: PartitionTable,
    call: CommitFileCall,
    now_ms: int,
    gaps: ProducerGaps | None = None,
    elapsed_ms: int | None = None,
    guards: TransactionGuards | None = None,
) -> DecidedFile:
    """Decide the commit of a file.

    ``gaps`` and ``guards`` belong to the coordinator's producers. ``elapsed_ms`` comes from a clock without
    jumps; it measures waits for missing batches. By default it is ``now_ms``.
    """
    batches = call.batches
    columns = BatchColumns(batches)
    valid = bool(batches) and columns.are_ordinary and columns.are_valid(call.size_bytes)
    decided = accept_plain_file(partitions, columns, now_ms) if valid else None
    if decided is None:
        rule = _CommitRule(
            partitions,
            ProducerGaps() if gaps is None else gaps,
            TransactionGuards() if guards is None else guards,
            now_ms,
            now_ms if elapsed_ms is None else elapsed_ms,
        )
        decided = rule.decide(batches, None if valid else call.size_bytes)
        if decided.rejected:
            rejected = {found.position for found in decided.rejected}
            columns = BatchColumns([batch for at, batch in enumerate(batches) if at not in rejected])
    return DecidedFile(_record(call, now_ms, decided, columns), decided.changes)


def _record(
    call: CommitFileCall, now_ms: int, decided: DecidedBatches, accepted: BatchColumns
) -> FileCommitted:
    """The record of the accepted batches."""
    flags, max_timestamps_ms = list(accepted.timestamp_types), list(accepted.max_timestamps_ms)
    if not accepted.are_ordinary:
        append_times = [kind == LOG_APPEND_TIME for kind in accepted.timestamp_types]
        flags = [
            (FLAG_LOG_APPEND_TIME if append_time else 0) | (FLAG_TRANSACTIONAL if flag & TRANSACTIONAL else 0)
            for append_time, flag in zip(append_times, accepted.flags, strict=True)
        ]
        max_timestamps_ms = [
            now_ms if append_time else time_ms
            for append_time, time_ms in zip(append_times, max_timestamps_ms, strict=True)
        ]
    producers, producer_indexes, base_sequences = _producers_of(accepted)
    place = call.place
    return FileCommitted(
        object_key=call.object_key,
        object_format=call.object_format,
        size_bytes=call.size_bytes,
        uploader_broker_id=call.uploader_broker_id,
        owner_ids=tuple(call.owner_ids),
        created_ms=call.created_ms,
        committed_ms=now_ms,
        runs=decided.runs,
        offset_deltas=list(accepted.offset_deltas),
        flags=flags,
        rejected=decided.rejected,
        byte_offsets=list(accepted.byte_offsets),
        sizes_bytes=list(accepted.sizes_bytes),
        max_timestamps_ms=max_timestamps_ms,
        producers=producers,
        producer_indexes=producer_indexes,
        base_sequences=base_sequences,
        broker_epoch=-1 if place is None else place.broker_epoch,
        commit_number=-1 if place is None else place.number,
    )


def _producers_of(accepted: BatchColumns) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """The producers of the batches, the number of each batch's producer, and the base sequences. A batch
    without a producer has the sequence -1."""
    ids, epochs, sequences = accepted.producer_ids, accepted.producer_epochs, accepted.base_sequences
    if max(ids, default=-1) < 0:
        return [], [NO_PRODUCER] * len(ids), [-1] * len(ids)
    pairs = dict.fromkeys(zip(ids, epochs, strict=True))
    producers = [pair for pair in pairs if pair[0] >= 0]
    numbers: dict[int, int] = {pair[0]: number for number, pair in enumerate(producers, 1)}
    if len(numbers) == len(pairs):
        return producers, list(map(numbers.__getitem__, ids)), list(sequences)
    # A producer has several epochs, or a batch has no producer.
    found = {pair: number for number, pair in enumerate(producers, 1)}
    indexes = list(map(found.get, zip(ids, epochs, strict=True), repeat(NO_PRODUCER)))
    of_producers = [
        sequence if producer_id >= 0 else -1 for producer_id, sequence in zip(ids, sequences, strict=True)
    ]
    return producers, indexes, of_producers


class _Draft:
    """The state of a partition while a file is being decided. It includes the effects of the file's earlier
    batches."""

    __slots__ = ("began", "has_transaction", "next", "partition", "windows")

    def __init__(self, partition: PartitionState) -> None:
        self.partition = partition
        self.next = partition.next
        self.windows: dict[int, Window] = {}
        self.began: set[int] = set()
        """Producers with transactional batches in the file."""
        self.has_transaction = partition.has_open_transaction
        """Whether any producer has an open transaction in the partition."""

    def begin_transaction(self, producer_id: int) -> None:
        self.began.add(producer_id)
        self.has_transaction = True

    def is_in_transaction(self, producer_id: int) -> bool:
        return producer_id in self.began or self.partition.is_in_transaction(producer_id)

    def window(self, producer_id: int) -> Window | None:
        return self.windows.get(producer_id) or self.partition.producers.get(producer_id)


class _CommitRule:
    """Decides one file: accepts or refuses one batch after another. The faster form in ``plain_files.py`` has
    the same result for plain files (decision 0029)."""

    def __init__(
        self,
        partitions: PartitionTable,
        gaps: ProducerGaps,
        guards: TransactionGuards,
        now_ms: int,
        elapsed_ms: int,
    ) -> None:
        self._partitions = partitions
        self._gaps = gaps
        self._guards = guards
        self._now_ms = now_ms
        self._elapsed_ms = elapsed_ms
        self._drafts: dict[int, _Draft] = {}
        self._decided = DecidedBatches([], [], [])

    def decide(self, batches: Sequence[BatchToCommit], file_bytes: int | None) -> DecidedBatches:
        """Decide all batches. ``file_bytes`` is the size of the file; it is ``None`` if the numbers of the
        batches were checked before."""
        start = 0
        for (topic_id, index), stretch in groupby(batches, _PARTITION):
            adjacent = list(stretch)
            partition = self._partitions.find(topic_id, index)
            if partition is None:
                code = ErrorCode.unknown_topic_or_partition
                refused = (Rejected(start + at, code) for at in range(len(adjacent)))
                self._decided.rejected.extend(refused)
            else:
                self._decide_stretch(self._draft(partition), adjacent, start, file_bytes)
            start += len(adjacent)
        return self._decided

    def _draft(self, partition: PartitionState) -> _Draft:
        draft = self._drafts.get(partition.number)
        if draft is None:
            draft = self._drafts[partition.number] = _Draft(partition)
        return draft

    def _decide_stretch(
        self, draft: _Draft, batches: Sequence[BatchToCommit], start: int, file_bytes: int | None
    ) -> None:
        """Decide adjacent batches of one partition. The first of them is at position ``start``."""
        base_offset, count = draft.next, 0
        windows: dict[int, Window] = {}
        for position, batch in enumerate(batches, start):
            producer_id = batch.producer_id
            if file_bytes is not None and not _is_valid(batch, file_bytes):
                self._decided.rejected.append(Rejected(position, ErrorCode.invalid_record))
                continue
            if producer_id >= 0:
                window = self._extended_window(draft, position, batch)
                if isinstance(window, Rejected):
                    self._decided.rejected.append(window)
                    continue
                windows[producer_id] = draft.windows[producer_id] = window
            draft.next += batch.last_offset_delta + 1
            count += 1
        if count:
            self._decided.runs.append(Run(*draft.partition.id, base_offset, count))
            self._decided.changes.append(Moved(draft.partition, draft.next, windows))

    def _extended_window(self, draft: _Draft, position: int, batch: BatchToCommit) -> Window | Rejected:
        """Check a producer's batch against the window of the producer. Returns the window after the batch if
        the batch is accepted."""
        epoch, sequence, delta = batch.producer_epoch, batch.base_sequence, batch.last_offset_delta
        window = draft.window(batch.producer_id)
        if window is None or not follows(window, epoch, sequence):
            refused = self._sequence_error(draft, position, window, batch)
            if refused is not None:
                return refused
        if batch.flags or draft.has_transaction:
            error = self._transaction_error(draft, batch)
            if error is not None:
                return Rejected(position, error)
        if not sequence or window is None:
            self._gaps.ended((draft.partition.number, batch.producer_id, epoch))
            draft.partition.note_beginning(batch.producer_id, epoch, sequence)
        appended_ms = self._now_ms if batch.timestamp_type == LOG_APPEND_TIME else -1
        entry = (sequence, last_sequence(sequence, delta), draft.next, appended_ms)
        return extended(window, epoch, self._now_ms, entry)

    def _sequence_error(
        self, draft: _Draft, position: int, window: Window | None, batch: BatchToCommit
    ) -> Rejected | None:
        """Check a batch that does not directly follow the producer's last batch. Returns ``None`` if it must
        be appended nevertheless."""
        epoch, sequence, delta = batch.producer_epoch, batch.base_sequence, batch.last_offset_delta
        if sequence < 0 or epoch < NO_EPOCH:
            return Rejected(position, ErrorCode.invalid_record)
        verdict = check_sequence(window, epoch, sequence, delta)
        if verdict is None and batch.flags & FOLLOWS_DROPPED:
            verdict = Verdict.AHEAD
        if verdict is Verdict.AHEAD:
            verdict = self._check_ahead(draft, window, batch)
        if (
            verdict is Verdict.OUT_OF_ORDER
            and window is not None
            and is_before(window, sequence, delta)
            and draft.partition.has_all_before(batch.producer_id, window)
        ):
            verdict = Verdict.COMMITTED_BEFORE
        if verdict is None:
            return None
        if isinstance(verdict, Verdict):
            return Rejected(position, _VERDICTS[verdict])
        return Rejected(position, ErrorCode.none, verdict[2], verdict[3])

    def _transaction_error(self, draft: _Draft, batch: BatchToCommit) -> ErrorCode | None:
        """Return the reason why a batch that is in sequence must not be appended. If a transactional batch is
        accepted, the transaction of its producer begins in the draft."""
        producer_id = batch.producer_id
        if not batch.is_transactional:
            return ErrorCode.invalid_txn_state if draft.is_in_transaction(producer_id) else None
        key = (draft.partition.number, producer_id)
        if not self._guards.is_valid(key, batch.producer_epoch, batch.guard):
            return UNGUARDED
        draft.begin_transaction(producer_id)
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


def _is_valid(batch: BatchToCommit, file_bytes: int) -> bool:
    """Whether the numbers of a batch are valid, except the producer's epoch and sequence."""
    return (
        0 <= batch.last_offset_delta <= MAX_OFFSET_DELTA
        and batch.records_count == batch.last_offset_delta + 1
        and batch.size_bytes > 0
        and batch.byte_offset >= 0
        and batch.byte_offset + batch.size_bytes <= file_bytes
        and (not batch.is_transactional or batch.producer_id >= 0)
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
    columns: dict[str, Iterable[Any]] = {
        "error": repeat(ErrorCode.none),
        "base_offset": offsets,
        "log_append_time_ms": times or repeat(-1),
        "log_start_offset": log_starts,
        "message": repeat(None),
        "is_duplicate": repeat(False),
    }
    rows = zip(*(columns[name] for name in CommittedBatch._fields), strict=False)
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
