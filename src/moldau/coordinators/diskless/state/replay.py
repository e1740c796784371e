"""Applies committed files and transaction markers to partitions and their producers. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from moldau.coordinators.diskless.state.partitions import PartitionState, PartitionTable
from moldau.coordinators.diskless.state.producers import Window, extended, last_sequence, marked
from moldau.coordinators.diskless.state.records import (
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
    FileCommitted,
    Moved,
    TransactionsEnded,
)


class BegunIn(NamedTuple):
    """A transactional batch. It begins its producer's transaction in the partition, if none is open."""

    run: int
    """Position of the batch's run in the file."""
    producer_id: int
    offset: int


def begun_in(record: FileCommitted) -> list[BegunIn]:
    """The transactional batches of a file. For each producer and run, only the first batch is included."""
    if not record.flags or max(record.flags) < FLAG_TRANSACTIONAL:
        return []
    begun: dict[tuple[int, int], int] = {}
    at = 0
    for number, run in enumerate(record.runs):
        offset = run.base_offset
        for position in range(at, at + run.batches):
            if record.flags[position] & FLAG_TRANSACTIONAL:
                producer_id = record.producers[record.producer_indexes[position] - 1][0]
                begun.setdefault((number, producer_id), offset)
            offset += record.offset_deltas[position] + 1
        at += run.batches
    return [BegunIn(number, producer_id, offset) for (number, producer_id), offset in begun.items()]


def replay_file(
    partitions: PartitionTable, record: FileCommitted, changes: Sequence[Moved] | None = None
) -> Sequence[Moved]:
    """Apply the file to the partitions and their producers, and return the changes, run by run.

    ``changes`` are the changes that the decision has computed. They are ``None`` for a record that was read
    from the log. This function then computes the changes by the same rules.
    """
    replayed: list[Moved] = []
    computed = _changes(partitions, record) if changes is None else changes
    for run, moved in zip(record.runs, computed, strict=True):
        partition, next_offset, windows = moved
        if run.base_offset != partition.next:
            place = f"{run.topic_id}-{run.partition_index}"
            raise ValueError(f"{place} goes on at {partition.next}, not at {run.base_offset}")
        partition.next = next_offset
        partition.producers.update(windows)
        replayed.append(moved)
    for number, producer_id, offset in begun_in(record):
        replayed[number].partition.begin_transaction(producer_id, offset)
    return replayed


def replay_markers(partitions: PartitionTable, record: TransactionsEnded) -> Sequence[Moved]:
    """Apply the markers. Returns the change for each marker."""
    replayed: list[Moved] = []
    for marker in record.markers:
        partition = partitions.find(marker.topic_id, marker.partition_index)
        if partition is None or marker.base_offset != partition.next:
            place = f"{marker.topic_id}-{marker.partition_index}"
            raise ValueError(f"{place} has no place for a marker at {marker.base_offset}")
        producer_id = marker.producer_id
        window = marked(partition.producers.get(producer_id), marker.producer_epoch, record.ended_ms)
        partition.producers[producer_id] = window
        partition.end_transaction(producer_id, marker.coordinator_epoch)
        partition.next += 1
        replayed.append(Moved(partition, partition.next, {producer_id: window}))
    return replayed


def _changes(partitions: PartitionTable, record: FileCommitted) -> Iterator[Moved]:
    """Yield the state of a partition after each run. The state after a run includes the changes by the
    earlier runs of the file."""
    start = 0
    for topic_id, index, offset, count in record.runs:
        partition = partitions.find(topic_id, index)
        if partition is None:
            raise ValueError(f"a file has batches of {topic_id}-{index}, which was not created")
        end = start + count
        next_offset = offset + sum(record.offset_deltas[start:end]) + count
        windows = _windows_after(partition, record, offset, start, end) if record.producers else {}
        yield Moved(partition, next_offset, windows)
        start = end


def _windows_after(
    partition: PartitionState, record: FileCommitted, offset: int, start: int, end: int
) -> dict[int, Window]:
    known = partition.producers
    changed: dict[int, Window] = {}
    now_ms = record.committed_ms
    for at in range(start, end):
        delta = record.offset_deltas[at]
        number = record.producer_indexes[at]
        if number:
            producer_id, epoch = record.producers[number - 1]
            sequence = record.base_sequences[at]
            appended_ms = now_ms if record.flags[at] & FLAG_LOG_APPEND_TIME else -1
            entry = (sequence, last_sequence(sequence, delta), offset, appended_ms)
            window = changed.get(producer_id) or known.get(producer_id)
            if not sequence or window is None:
                partition.note_beginning(producer_id, epoch, sequence)
            changed[producer_id] = extended(window, epoch, now_ms, entry)
        offset += delta + 1
    return changed
