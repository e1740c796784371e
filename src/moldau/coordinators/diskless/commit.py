"""Committing a file: offsets are given, sequences checked, and the answer made. Pure.

One batch's refusal does not fail its file: the others commit, and its bytes are dead.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    LOG_APPEND_TIME,
    BatchToCommit,
    CommitFileCall,
    CommitFileResult,
    CommittedBatch,
)
from moldau.coordinators.diskless.file_codec import Receipt
from moldau.coordinators.diskless.partitions import PartitionState, PartitionTable
from moldau.coordinators.diskless.producers import (
    SEQUENCE_MODULUS,
    WINDOW_BATCHES,
    Verdict,
    Window,
    extended,
    judge,
    last_sequence,
)
from moldau.coordinators.diskless.records import (
    FLAG_LOG_APPEND_TIME,
    NO_PRODUCER,
    FileCommitted,
    Rejected,
    Run,
)
from moldau.runtime import ErrorCode

MAX_FILE_BYTES: Final = (1 << 32) - 1
MAX_OFFSET_DELTA: Final = (1 << 31) - 1

MESSAGES: Final = {
    ErrorCode.unknown_topic_or_partition: "This coordinator has no such partition.",
    ErrorCode.invalid_record: "The batch's fields contradict each other.",
    ErrorCode.invalid_txn_state: "Transactions on diskless topics are not supported yet.",
    ErrorCode.invalid_producer_epoch: "The producer has a newer epoch.",
    ErrorCode.out_of_order_sequence_number: "The batch's sequence does not follow the producer's last.",
}

_VERDICTS: Final = {
    Verdict.STALE_EPOCH: ErrorCode.invalid_producer_epoch,
    Verdict.OUT_OF_ORDER: ErrorCode.out_of_order_sequence_number,
}


class _Draft:
    """A partition within the file being decided: what its earlier batches in the file have done."""

    __slots__ = ("next", "partition", "windows")

    def __init__(self, partition: PartitionState) -> None:
        self.partition = partition
        self.next = partition.next
        self.windows: dict[int, Window] = {}

    def window(self, producer_id: int) -> Window | None:
        return self.windows.get(producer_id) or self.partition.producers.get(producer_id)


_Decided: TypeAlias = tuple[list[int], list[int]]
"""Producer numbers and base sequences of batches that are all accepted."""


class CommitDecision:
    """Decides over one file; ``record`` is what came out.

    The batches are taken in stretches of one partition. A stretch without anything unusual is decided
    column by column, five times as fast as batch by batch, which is how the others are.
    """

    def __init__(self, partitions: PartitionTable, call: CommitFileCall, now_ms: int) -> None:
        self._partitions = partitions
        self._drafts: dict[int, _Draft] = {}
        self._numbers: dict[tuple[int, int], int] = {}
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
        self._decide(call.batches)
        self.record.producers.extend(self._numbers)
        self.record.decided = [(draft.partition, draft.windows) for draft in self._drafts.values()]

    def _decide(self, batches: Sequence[BatchToCommit]) -> None:
        start = 0
        topic_id: UUID | None = None
        index = -1
        topic: Mapping[int, PartitionState] = {}
        for position, batch in enumerate(batches):
            same_topic = batch[0] is topic_id or batch[0] == topic_id
            if same_topic and batch[1] == index:
                continue
            if position:
                self._stretch(topic.get(index), batches[start:position], start)
            if not same_topic:
                topic_id = batch[0]
                topic = self._partitions.topic(topic_id)
            index, start = batch[1], position
        self._stretch(topic.get(index), batches[start:], start)

    def _stretch(
        self, partition: PartitionState | None, batches: Sequence[BatchToCommit], start: int
    ) -> None:
        record = self.record
        if partition is None:
            code = ErrorCode.unknown_topic_or_partition
            record.rejected.extend(Rejected(start + at, code) for at in range(len(batches)))
            return
        draft = self._drafts.get(partition.number)
        if draft is None:
            draft = self._drafts[partition.number] = _Draft(partition)
        base_offset = draft.next
        count = self._whole(draft, batches)
        if count is None:
            count = self._one_by_one(draft, batches, start)
        if count:
            record.runs.append(Run(*partition.id, base_offset, count))

    def _whole(self, draft: _Draft, batches: Sequence[BatchToCommit]) -> int | None:
        """Accept all batches of the stretch; ``None``, and nothing has changed, when one is unusual."""
        (_, _, _, byte_offsets, sizes, deltas, counts, timestamps, types, producer_ids, epochs, sequences, _,
         transactional) = zip(*batches, strict=True)  # fmt: skip
        record = self.record
        if (
            min(deltas) < 0
            or min(sizes) <= 0
            or min(byte_offsets) < 0
            or any(transactional)
            or any(types)
            or max(map(operator.add, byte_offsets, sizes)) > record.size_bytes
            or list(map(operator.sub, counts, deltas)).count(1) != len(batches)
        ):
            return None
        if max(producer_ids) < 0:
            numbers, sequences = [NO_PRODUCER] * len(batches), (-1,) * len(batches)
        else:
            found = self._numbers_of(draft, producer_ids, epochs, sequences, deltas)
            if found is None:
                return None
            numbers = found
        record.offset_deltas.extend(deltas)
        record.flags.extend(types)
        record.byte_offsets.extend(byte_offsets)
        record.sizes_bytes.extend(sizes)
        record.max_timestamps_ms.extend(timestamps)
        record.producer_indexes.extend(numbers)
        record.base_sequences.extend(sequences)
        draft.next += sum(counts)
        return len(batches)

    def _numbers_of(
        self,
        draft: _Draft,
        producer_ids: Sequence[int],
        epochs: Sequence[int],
        sequences: Sequence[int],
        deltas: Sequence[int],
    ) -> list[int] | None:
        """Producers' numbers of batches that all follow their producer's last; ``None`` if one does not."""
        windows: dict[int, Window] = {}
        found: list[int] = []
        numbers, offset, now_ms = self._numbers, draft.next, self.record.committed_ms
        drafted, known = draft.windows, draft.partition.producers
        for producer_id, epoch, sequence, delta in zip(producer_ids, epochs, sequences, deltas, strict=True):
            window = windows.get(producer_id) or drafted.get(producer_id) or known.get(producer_id)
            if producer_id < 0 or window is None:
                return None
            known_epoch, _, entries = window
            if known_epoch != epoch or sequence != (entries[-1][1] + 1) % SEQUENCE_MODULUS:
                return None
            entry = (sequence, (sequence + delta) % SEQUENCE_MODULUS, offset, -1)
            kept = (*entries[1:], entry) if len(entries) == WINDOW_BATCHES else (*entries, entry)
            windows[producer_id] = (epoch, now_ms, kept)
            key = (producer_id, epoch)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(numbers) + 1
            found.append(number)
            offset += delta + 1
        drafted.update(windows)
        return found

    def _one_by_one(self, draft: _Draft, batches: Sequence[BatchToCommit], start: int) -> int:
        """Accept or refuse each batch; how many were accepted."""
        record, count = self.record, 0
        for position, batch in enumerate(batches, start):
            sound = (
                0 <= batch.last_offset_delta <= MAX_OFFSET_DELTA
                and batch.records_count == batch.last_offset_delta + 1
                and batch.size_bytes > 0
                and batch.byte_offset >= 0
                and batch.byte_offset + batch.size_bytes <= record.size_bytes
            )
            if not sound:
                record.rejected.append(Rejected(position, ErrorCode.invalid_record))
                continue
            if batch.is_transactional:
                record.rejected.append(Rejected(position, ErrorCode.invalid_txn_state))
                continue
            number, sequence = NO_PRODUCER, -1
            if batch.producer_id >= 0:
                refused = self._judge(draft, position, batch)
                if refused is not None:
                    record.rejected.append(refused)
                    continue
                producer = (batch.producer_id, batch.producer_epoch)
                number = self._numbers.setdefault(producer, len(self._numbers) + 1)
                sequence = batch.base_sequence
            append_time = batch.timestamp_type == LOG_APPEND_TIME
            record.offset_deltas.append(batch.last_offset_delta)
            record.flags.append(FLAG_LOG_APPEND_TIME if append_time else 0)
            record.byte_offsets.append(batch.byte_offset)
            record.sizes_bytes.append(batch.size_bytes)
            record.max_timestamps_ms.append(record.committed_ms if append_time else batch.max_timestamp_ms)
            record.producer_indexes.append(number)
            record.base_sequences.append(sequence)
            draft.next += batch.last_offset_delta + 1
            count += 1
        return count

    def _judge(self, draft: _Draft, position: int, batch: BatchToCommit) -> Rejected | None:
        """Check a producer's batch against its window; when accepted, move the draft's window on."""
        epoch, sequence, delta = batch.producer_epoch, batch.base_sequence, batch.last_offset_delta
        if sequence < 0 or epoch < 0:
            return Rejected(position, ErrorCode.invalid_record)
        window = draft.window(batch.producer_id)
        verdict = judge(window, epoch, sequence, delta)
        if verdict is None:
            now_ms = self.record.committed_ms
            appended_ms = now_ms if batch.timestamp_type == LOG_APPEND_TIME else -1
            entry = (sequence, last_sequence(sequence, delta), draft.next, appended_ms)
            draft.windows[batch.producer_id] = extended(window, epoch, now_ms, entry)
            return None
        if isinstance(verdict, Verdict):
            return Rejected(position, _VERDICTS[verdict])
        return Rejected(position, ErrorCode.none, verdict[2], verdict[3])


def result_of(
    receipt: Receipt | FileCommitted, committed_ms: int, partitions: PartitionTable
) -> CommitFileResult:
    """The answer that the receipt stands for, with the log starts of now."""
    found: list[CommittedBatch] = []
    deltas, flags = receipt.offset_deltas, receipt.flags
    none, position = ErrorCode.none, 0
    new, kind = tuple.__new__, CommittedBatch
    for topic_id, index, offset, count in receipt.runs:
        partition = partitions.find(topic_id, index)
        log_start = -1 if partition is None else partition.log_start
        for at in range(position, position + count):
            append_ms = committed_ms if flags[at] & FLAG_LOG_APPEND_TIME else -1
            found.append(new(kind, (none, offset, append_ms, log_start, None, False)))
            offset += deltas[at] + 1
        position += count
    # In ascending order of position, so that each insertion finds its place.
    for rejected in receipt.rejected:
        found.insert(rejected.position, _rejected(rejected))
    return CommitFileResult(found)


def _rejected(rejected: Rejected) -> CommittedBatch:
    if rejected.error is ErrorCode.none:
        return CommittedBatch(
            ErrorCode.none, rejected.base_offset, rejected.log_append_time_ms, is_duplicate=True
        )
    return CommittedBatch(rejected.error, message=MESSAGES.get(rejected.error))


WindowChanges: TypeAlias = list[tuple[int, dict[int, Window]]]
"""(partition number, its changed windows by producer id), a partition once or more."""


def replay_file(partitions: PartitionTable, record: FileCommitted) -> WindowChanges:
    """Move the partitions and their producers to after the file.

    A decision of just now brings the windows that it computed; for a record of the log they are computed
    here, by the same rules.
    """
    decided, record.decided = record.decided, None
    changes: WindowChanges = []
    deltas = record.offset_deltas
    start = 0
    for topic_id, index, offset, count in record.runs:
        end = start + count
        partition = partitions.find(topic_id, index)
        if partition is None:
            raise ValueError(f"a file has batches of {topic_id}-{index}, which was not created")
        if offset != partition.next:
            raise ValueError(f"{topic_id}-{index} goes on at {partition.next}, not at {offset}")
        if decided is None and record.producers:
            changes.append((partition.number, _windows_after(partition, record, offset, start, end)))
        partition.next = offset + sum(deltas[start:end]) + count
        start = end
    for partition, windows in decided or ():
        if windows:
            partition.producers.update(windows)
            changes.append((partition.number, windows))
    return changes


def _windows_after(
    partition: PartitionState, record: FileCommitted, offset: int, start: int, end: int
) -> dict[int, Window]:
    windows = partition.producers
    changed: dict[int, Window] = {}
    now_ms = record.committed_ms
    for at in range(start, end):
        delta = record.offset_deltas[at]
        number = record.producer_indexes[at]
        if number:
            producer_id, epoch = record.producers[number - 1]
            sequence = record.base_sequences[at]
            appended_ms = now_ms if record.flags[at] & FLAG_LOG_APPEND_TIME else -1
            entry = (sequence, (sequence + delta) % SEQUENCE_MODULUS, offset, appended_ms)
            window = extended(windows.get(producer_id), epoch, now_ms, entry)
            changed[producer_id] = windows[producer_id] = window
        offset += delta + 1
    return changed
