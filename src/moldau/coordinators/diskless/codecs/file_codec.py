"""FileCommitted as two byte strings of columns: the receipt and the locations. Pure.

The receipt contains the data from which the response to the uploading broker is made. It stays in memory for
the time in which the broker may repeat its request. With 500 batches over 50 partitions, both strings
together take 10 to 13 bytes per batch. KIP-1164's form takes 67 bytes per batch.
"""

from itertools import chain
from operator import add, sub
from typing import Final, NamedTuple
from uuid import UUID

from moldau.coordinators.diskless.calls import MAX_FILE_BATCHES
from moldau.coordinators.diskless.codecs.columns import ColumnError, ColumnReader, put_column, put_varint
from moldau.coordinators.diskless.state.records import FileCommitted, Rejected, Run
from moldau.protocol.records.diskless import DisklessFileCommittedRecord
from moldau.runtime import ErrorCode

_NO_MARKERS: Final = 0
"""The value of the field for the number of markers. It is always 0, because markers are in records of another
type."""


class Receipt(NamedTuple):
    """The data for the response to the broker that uploaded a file."""

    runs: list[Run]
    offset_deltas: list[int]
    flags: list[int]
    rejected: list[Rejected]


def _topics(record: FileCommitted) -> dict[UUID, int]:
    found: dict[UUID, int] = {}
    previous: UUID | None = None
    for run in record.runs:
        if run.topic_id is not previous:
            previous = run.topic_id
            found.setdefault(previous, len(found))
    return found


def encode_receipt(record: FileCommitted) -> bytes:
    """Encode topics, runs, offset deltas, flags and rejected batches."""
    out = bytearray()
    topics = _topics(record)
    put_varint(out, len(topics))
    for topic_id in topics:
        out += topic_id.bytes
    runs = record.runs
    put_varint(out, len(runs))
    if runs:
        numbers: list[int] = []
        previous: UUID | None = None
        number = 0
        for run in runs:
            if run.topic_id is not previous:
                previous = run.topic_id
                number = topics[previous]
            numbers.append(number)
        _, indexes, base_offsets, counts = zip(*runs, strict=True)
        put_column(out, numbers)
        put_column(out, indexes)
        put_column(out, base_offsets)
        put_column(out, counts)
        put_column(out, record.offset_deltas)
        put_column(out, record.flags)
    put_varint(out, len(record.rejected))
    if record.rejected:
        positions, errors, offsets, times = zip(*record.rejected, strict=True)
        put_column(out, positions)
        put_column(out, [error.value for error in errors])
        put_column(out, offsets)
        put_column(out, times)
    return bytes(out)


def _read_receipt(content: bytes) -> tuple[list[UUID], Receipt]:
    reader = ColumnReader(content)
    topics = [UUID(bytes=reader.raw(16)) for _ in range(reader.count(MAX_FILE_BATCHES))]
    run_count = reader.count(MAX_FILE_BATCHES)
    numbers = reader.column(run_count, (0, len(topics) - 1))
    columns = [numbers, *(reader.column(run_count) for _ in range(2))]
    columns.append(reader.column(run_count, (0, MAX_FILE_BATCHES)))
    runs = [
        Run(topics[number], index, base_offset, count)
        for number, index, base_offset, count in zip(*columns, strict=True)
    ]
    total = sum(columns[3])
    if total > MAX_FILE_BATCHES:
        raise ColumnError(f"a file of {total} batches")
    deltas, flags = reader.column(total), reader.column(total)
    rejected_count = reader.count(MAX_FILE_BATCHES)
    columns = [reader.column(rejected_count) for _ in range(4)]
    rejected = [
        Rejected(position, ErrorCode(error), offset, time)
        for position, error, offset, time in zip(*columns, strict=True)
    ]
    reader.end()
    return topics, Receipt(runs, deltas, flags, rejected)


def decode_receipt(content: bytes) -> Receipt:
    """Raises :class:`ColumnError`."""
    return _read_receipt(content)[1]


def encode_locations(record: FileCommitted) -> bytes:
    """Encode gaps between batches, sizes, timestamps, producers and sequences."""
    out = bytearray()
    sizes, byte_offsets = record.sizes_bytes, record.byte_offsets
    ends = map(add, byte_offsets, sizes)
    put_column(out, list(map(sub, byte_offsets, chain((0,), ends))))
    put_column(out, sizes)
    put_column(out, record.max_timestamps_ms)
    put_varint(out, len(record.producers))
    if record.producers:
        producer_ids, epochs = zip(*record.producers, strict=True)
        put_column(out, producer_ids)
        put_column(out, epochs)
        put_column(out, record.producer_indexes)
        put_column(out, record.base_sequences)
    put_varint(out, _NO_MARKERS)
    return bytes(out)


def encode_file(record: FileCommitted) -> DisklessFileCommittedRecord:
    """Encode the record in Moldau's own version (1). This function also stores the encoded receipt in
    ``record``."""
    record.receipt = encode_receipt(record)
    return DisklessFileCommittedRecord(
        object_key=record.object_key,
        object_format=record.object_format,
        file_size=record.size_bytes,
        uploader_broker_id=record.uploader_broker_id,
        owner_ids=record.owner_ids,
        created_ms=record.created_ms,
        committed_ms=record.committed_ms,
        receipt=record.receipt,
        locations=encode_locations(record),
        uploader_broker_epoch=record.broker_epoch,
        commit_number=record.commit_number,
    )


def decode_file(value: DisklessFileCommittedRecord) -> FileCommitted:
    """Raises :class:`ColumnError`."""
    _, receipt = _read_receipt(value.receipt)
    count = len(receipt.offset_deltas)
    reader = ColumnReader(value.locations)
    gaps, sizes, timestamps = (reader.column(count) for _ in range(3))
    byte_offsets = []
    end = 0
    for gap, size_bytes in zip(gaps, sizes, strict=True):
        byte_offsets.append(end + gap)
        end += gap + size_bytes
    producer_count = reader.count(count)
    producers: list[tuple[int, int]] = []
    indexes, sequences = [0] * count, [-1] * count
    if producer_count:
        producers = list(zip(reader.column(producer_count), reader.column(producer_count), strict=True))
        indexes, sequences = reader.column(count), reader.column(count)
    if reader.varint() != _NO_MARKERS:
        raise ColumnError("a file has no markers")
    reader.end()
    return FileCommitted(
        object_key=value.object_key,
        object_format=value.object_format,
        size_bytes=value.file_size,
        uploader_broker_id=value.uploader_broker_id,
        owner_ids=tuple(value.owner_ids),
        created_ms=value.created_ms,
        committed_ms=value.committed_ms,
        runs=receipt.runs,
        offset_deltas=receipt.offset_deltas,
        flags=receipt.flags,
        rejected=receipt.rejected,
        byte_offsets=byte_offsets,
        sizes_bytes=sizes,
        max_timestamps_ms=timestamps,
        producers=producers,
        producer_indexes=indexes,
        base_sequences=sequences,
        broker_epoch=value.uploader_broker_epoch,
        commit_number=value.commit_number,
        receipt=bytes(value.receipt),
    )
