"""The batches of a file as columns, and the faster form of the commit rule for plain files. Pure.

The rule is in ``commit.py``. Decision 0029 explains why there is a faster form.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, repeat
from operator import add, sub
from typing import Any, Final, NamedTuple
from uuid import UUID

from moldau.coordinators.diskless.calls import BatchToCommit
from moldau.coordinators.diskless.state.partitions import PartitionState, PartitionTable
from moldau.coordinators.diskless.state.producers import SEQUENCE_MODULUS, Window, all_extended
from moldau.coordinators.diskless.state.records import Moved, Rejected, Run

MAX_OFFSET_DELTA: Final = (1 << 31) - 1


class DecidedBatches(NamedTuple):
    """The decision about the batches of a file."""

    runs: list[Run]
    changes: list[Moved]
    """The change of each run."""
    rejected: list[Rejected]
    """In the order of their positions."""


class BatchColumns:
    """The fields of batches as columns. Each column has the values of one field, in the order of the
    batches."""

    __slots__ = (
        "are_ordinary",
        "base_sequences",
        "byte_offsets",
        "flags",
        "max_timestamps_ms",
        "offset_deltas",
        "partition_indexes",
        "producer_epochs",
        "producer_ids",
        "records_counts",
        "sizes_bytes",
        "timestamp_types",
        "topic_ids",
    )

    def __init__(self, batches: Sequence[BatchToCommit]) -> None:
        values: Any = zip(*batches, strict=True) if batches else repeat(())
        columns: dict[str, Sequence[Any]] = dict(zip(BatchToCommit._fields, values, strict=False))
        self.topic_ids: Sequence[UUID] = columns["topic_id"]
        self.partition_indexes: Sequence[int] = columns["partition_index"]
        self.byte_offsets: Sequence[int] = columns["byte_offset"]
        self.sizes_bytes: Sequence[int] = columns["size_bytes"]
        self.offset_deltas: Sequence[int] = columns["last_offset_delta"]
        self.records_counts: Sequence[int] = columns["records_count"]
        self.max_timestamps_ms: Sequence[int] = columns["max_timestamp_ms"]
        self.timestamp_types: Sequence[int] = columns["timestamp_type"]
        self.producer_ids: Sequence[int] = columns["producer_id"]
        self.producer_epochs: Sequence[int] = columns["producer_epoch"]
        self.base_sequences: Sequence[int] = columns["base_sequence"]
        self.flags: Sequence[int] = columns["flags"]
        self.are_ordinary = not (any(self.flags) or any(self.timestamp_types))
        """Whether no batch has a flag or a timestamp type other than CreateTime."""

    def are_valid(self, file_bytes: int) -> bool:
        """Whether all numbers of ordinary batches are valid in a file of this size. The numbers of producers
        are not checked."""
        byte_offsets, sizes, deltas = self.byte_offsets, self.sizes_bytes, self.offset_deltas
        return (
            0 <= min(deltas) <= max(deltas) <= MAX_OFFSET_DELTA
            and min(sizes) > 0
            and min(byte_offsets) >= 0
            and max(map(add, byte_offsets, sizes)) <= file_bytes
            and list(map(sub, self.records_counts, deltas)).count(1) == len(sizes)
        )

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Return the start and the end of each stretch of adjacent batches of one partition."""
        start = 0
        for _, stretch in groupby(zip(self.topic_ids, self.partition_indexes, strict=True)):
            end = start + len(list(stretch))
            yield start, end
            start = end


def accept_plain_file(
    partitions: PartitionTable, columns: BatchColumns, now_ms: int
) -> DecidedBatches | None:
    """Accept a plain file at once. Returns ``None`` if the rule must decide. All batches of the file must be
    ordinary and valid.

    In a plain file all batches of a partition are adjacent. A producer has only one batch in a partition.
    This batch is the next batch in sequence, and the coordinator has a full window of the producer in the
    partition. A file without batches of idempotent producers is also plain.
    """
    topic_ids, indexes, counts = columns.topic_ids, columns.partition_indexes, columns.records_counts
    producer_ids = columns.producer_ids
    idempotent = max(producer_ids) >= 0
    places: list[tuple[PartitionState, int, int, int]] = []
    base_offsets: list[int] = []
    windows: list[Window] = []
    for start, end in columns.stretches():
        partition = partitions.find(topic_ids[start], indexes[start])
        if partition is None or partition.has_open_transaction:
            return None
        base_offsets += accumulate(counts[start:end], initial=partition.next)
        places.append((partition, start, end, base_offsets.pop()))
        if idempotent:
            ids = producer_ids[start:end]
            if len(set(ids)) != end - start:
                return None
            windows += map(partition.producers.get, ids, repeat(b""))
    if len({partition.number for partition, *_ in places}) != len(places):
        return None
    if idempotent:
        extended = _extended_windows(windows, columns, base_offsets, now_ms)
        if extended is None:
            return None
        changes = [
            Moved(partition, after, dict(zip(producer_ids[start:end], extended[start:end], strict=True)))
            for partition, start, end, after in places
        ]
    else:
        changes = [Moved(partition, after, {}) for partition, *_, after in places]
    runs = [Run(*partition.id, partition.next, end - start) for partition, start, end, _ in places]
    return DecidedBatches(runs, changes, [])


def _extended_windows(
    windows: Sequence[Window], columns: BatchColumns, base_offsets: Sequence[int], now_ms: int
) -> list[Window] | None:
    """The windows after the batches; ``None`` if the rule must decide."""
    sequences = columns.base_sequences
    last_sequences = list(map(add, sequences, columns.offset_deltas))
    if max(last_sequences) >= SEQUENCE_MODULUS:
        return None
    return all_extended(windows, columns.producer_epochs, sequences, last_sequences, base_offsets, now_ms)
