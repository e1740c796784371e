"""Decodes record batches to Arrow tables. One loop goes over the lengths of the records; all later steps are
vectorised.

A Python loop costs about 0.2 µs for each step, so this loop only finds the start of each record. Then all
numbers (varints) are decoded by vectorised operations. One Arrow kernel copies all keys. The values and the
headers are copied in the same way.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.record_walk import find_records
from moldau.pipeline.reading.varints import PADDING_BYTES, Bytes, Longs, read_varints
from moldau.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    TimestampType,
    check_batch,
)
from moldau.records.errors import CorruptRecordError, InvalidRecordError
from moldau.records.record import open_batch
from moldau.records.varint import read_varlong
from moldau.runtime.buffers import Buffer

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Number of decompressed bytes that are decoded at a time. It is large, so that the overhead of a call does
not matter. It is small enough that intermediate results stay in the processor's caches."""
VECTOR_HEADERS_MAX: Final = 32
"""If a record has more headers than this number, its headers are decoded one by one. In vectorised decoding,
each of these headers would require another step over the records."""
MICROSECONDS_IN_MS: Final = 1000
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // MICROSECONDS_IN_MS

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
"""Arrow schema of decoded records. Headers are null if a record has none."""

Indices: TypeAlias = npt.NDArray[np.bool_]


class FoundBatch(NamedTuple):
    """A fetched batch, with the coordinator's values that replace values in the batch."""

    data: Buffer
    partition: int
    base_offset: int | None = None
    """The first offset; ``None`` if the base offset in the batch is valid."""
    append_time_ms: int | None = None
    """The timestamp of all records; ``None`` if the timestamps in the batch are valid."""
    first_offset: int = 0
    """Records before this offset are deleted, although the batch still contains them."""


class OpenedBatch(NamedTuple):
    """The header of a batch, and the decompressed bytes of its records."""

    header: BatchHeader
    data: bytes | memoryview
    partition: int = 0
    first_offset: int = 0


def _open(found: FoundBatch) -> OpenedBatch | None:
    """Check and decompress a batch. Its header gets the values of the coordinator. The result is ``None`` for
    a control batch."""
    data, partition, base_offset, append_time_ms, first_offset = found
    try:
        header = check_batch(data)
    except CorruptRecordError as error:
        if base_offset is None:
            raise
        raise CorruptRecordError(f"partition {partition}, offset {base_offset}: {error}") from error
    if header.attributes & CONTROL_BIT:
        return None
    if header.records_count < 0:
        raise InvalidRecordError(f"the header of the batch says {header.records_count} records")
    content: bytes | memoryview
    if header.attributes & COMPRESSION_MASK:
        _, content = open_batch(data)
    else:  # no copy, because the records are copied when the chunk is joined
        content = memoryview(data)[HEADER_SIZE_BYTES : header.size_bytes]
    if base_offset is not None:
        header = header._replace(base_offset=base_offset)
    if append_time_ms is not None:
        attributes = header.attributes | TIMESTAMP_TYPE_BIT
        header = header._replace(attributes=attributes, max_timestamp=append_time_ms)
    return OpenedBatch(header, content, partition, first_offset)


def open_batches(batches: Iterable[FoundBatch], ranges: Mapping[int, OffsetRange]) -> Iterator[OpenedBatch]:
    """Check and decompress the batches that have offsets in the range of their partition. Control batches are
    skipped. Raises the errors of :func:`decode_found`, except for malformed records."""
    for found in batches:
        opened = _open(found)
        if opened is None:
            continue
        within = ranges[opened.partition]
        if opened.header.last_offset >= within.start and opened.header.base_offset < within.end:
            yield opened


def decode(
    batches: Iterable[Buffer], wanted: OffsetRange, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[pa.RecordBatch]:
    """Decode the records of one partition that are in the range ``wanted``. Yields them in order, as Arrow
    record batches with the columns of :data:`SCHEMA`.

    Each element of ``batches`` is a buffer that begins with a record batch. Raises the errors of
    :func:`decode_found`.
    """
    found = (FoundBatch(batch, wanted.partition) for batch in batches)
    return decode_found(found, [wanted], chunk_bytes=chunk_bytes)


def decode_found(
    batches: Iterable[FoundBatch],
    wanted: Sequence[OffsetRange],
    columns: Collection[str] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records in the ranges, with the named columns or all columns. Records of a partition are in order.

    A partition has at most one range. Control batches are skipped. Raises
    :class:`moldau.records.errors.CorruptRecordError` for a wrong CRC and :class:`InvalidRecordError` for
    malformed records, and for a timestamp that a 64-bit number of microseconds cannot represent.
    """
    ranges = {one.partition: one for one in wanted}
    schema = SCHEMA if columns is None else pa.schema([field for field in SCHEMA if field.name in columns])
    with _scratch() as scratch:
        pending: list[OpenedBatch] = []
        size = 0
        for opened in open_batches(batches, ranges):
            pending.append(opened)
            size += len(opened.data)
            if size >= chunk_bytes:
                yield from _non_empty(_decode_opened(pending, ranges, schema, scratch))
                pending, size = [], 0
        if pending:
            yield from _non_empty(_decode_opened(pending, ranges, schema, scratch))


def _non_empty(decoded: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if decoded.num_rows:
        yield decoded


def _decode_opened(
    batches: Sequence[OpenedBatch], ranges: Mapping[int, OffsetRange], schema: Any, scratch: "_ChunkMemory"
) -> pa.RecordBatch:
    """The records of some opened batches that are in the wanted ranges."""
    names = frozenset(schema.names)
    counts = np.array([batch.header.records_count for batch in batches], np.int64)
    padded = scratch.join([batch.data for batch in batches])
    fields = _read_fields(
        np.frombuffer(padded, np.uint8),
        *find_records(padded, [len(batch.data) for batch in batches], counts),
    )
    source = pa.py_buffer(padded)
    offsets = fields.offset_deltas + np.repeat([batch.header.base_offset for batch in batches], counts)
    wanted = _wanted(batches, ranges, counts, offsets)
    if wanted is not None:
        fields, offsets = _selected(fields, wanted), offsets[wanted]
        owners = np.repeat(np.arange(len(batches)), counts)
        counts = np.bincount(owners[wanted], minlength=len(batches))
    columns: dict[str, pa.Array] = {"offset": pa.array(offsets)}
    if "key" in names:
        columns["key"] = _gather(source, fields.keys)
    if "value" in names:
        columns["value"] = _gather(source, fields.values)
    if "headers" in names:
        columns["headers"] = _headers(source, fields)
    if "partition" in names:
        columns["partition"] = _of_batches([batch.partition for batch in batches], counts)
    if "timestamp" in names:
        columns["timestamp"] = _timestamps(batches, counts, fields.timestamp_deltas, offsets)
    if "timestampType" in names:
        columns["timestampType"] = _of_batches([batch.header.timestamp_type for batch in batches], counts)
    if not schema.names:  # a count of rows needs a table that has rows but no columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(offsets), pa.struct([])))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _of_batches(values: Sequence[int], counts: Longs) -> pa.Array:
    return pa.array(np.repeat(np.array(values, np.int32), counts))


def _wanted(
    batches: Sequence[OpenedBatch], ranges: Mapping[int, OffsetRange], counts: Longs, offsets: Longs
) -> Indices | None:
    """A mask of the records that are in the range of their partition. ``None`` means that all records are in
    it, which is the usual case."""
    limits = [
        (max(ranges[batch.partition].start, batch.first_offset), ranges[batch.partition].end)
        for batch in batches
    ]
    if len(set(limits)) == 1:
        start, end = limits[0]
        if offsets.size == 0 or (offsets.min() >= start and offsets.max() < end):
            return None
    starts = np.repeat([start for start, _ in limits], counts)
    ends = np.repeat([end for _, end in limits], counts)
    inside: Indices = (offsets >= starts) & (offsets < ends)
    return None if inside.all() else inside


class _ChunkMemory:
    """Memory in which the records of a chunk are joined. It is reused, because reusing memory avoids the cost
    of new pages."""

    def __init__(self) -> None:
        self._buffer = bytearray(CHUNK_BYTES)

    def join(self, parts: Sequence[bytes | memoryview]) -> memoryview:
        """Join the parts one after the other, and add :data:`PADDING_BYTES` zeros. The result is valid until
        the next call."""
        needed = sum(map(len, parts)) + PADDING_BYTES
        if len(self._buffer) < needed:
            self._buffer = bytearray(needed + needed // 4)
        view = memoryview(self._buffer)
        position = 0
        for part in parts:
            end = position + len(part)
            view[position:end] = part
            position = end
        view[position:needed] = bytes(PADDING_BYTES)
        return view[:needed]


_IDLE_SCRATCHES: Final[list[_ChunkMemory]] = []
"""Memory of this process that is not in use now. Spark runs many tasks in a process, one after the other."""


@contextmanager
def _scratch() -> Iterator[_ChunkMemory]:
    scratch = _IDLE_SCRATCHES.pop() if _IDLE_SCRATCHES else _ChunkMemory()
    try:
        yield scratch
    finally:
        if not _IDLE_SCRATCHES:
            _IDLE_SCRATCHES.append(scratch)


class Spans(NamedTuple):
    """Byte ranges in ascending order. Some of them represent null."""

    starts: Longs
    ends: Longs
    nulls: Indices

    def only(self, wanted: Indices) -> "Spans":
        return Spans(self.starts[wanted], self.ends[wanted], self.nulls[wanted])


@dataclass(frozen=True, slots=True)
class _FieldPositions:
    timestamp_deltas: Longs
    offset_deltas: Longs
    keys: Spans
    values: Spans
    header_counts: Longs
    header_names: Spans
    header_values: Spans


def _read_fields(data: Bytes, starts: Longs, ends: Longs) -> _FieldPositions:
    timestamp_deltas, position = read_varints(data, starts + 1)  # the delta follows the attributes
    offset_deltas, position = read_varints(data, np.minimum(position, ends), 32)
    keys, position = _read_spans(data, position, ends)
    values, position = _read_spans(data, position, ends)
    counts, position = read_varints(data, position, 32)
    if counts.min(initial=0) < 0 or np.any(counts * 2 > ends - position):
        raise InvalidRecordError("a record has too few bytes for its number of headers")
    names, contents, position = _read_headers(data, position, ends, counts)
    if np.any(position != ends):
        raise InvalidRecordError("a record does not end at its own length")
    return _FieldPositions(timestamp_deltas, offset_deltas, keys, values, counts, names, contents)


def _selected(fields: _FieldPositions, wanted: Indices) -> _FieldPositions:
    """The fields of the selected records. No record is checked again, because :func:`_read_fields` has
    checked all of them."""
    headers = np.repeat(wanted, fields.header_counts)
    return _FieldPositions(
        fields.timestamp_deltas[wanted],
        fields.offset_deltas[wanted],
        fields.keys.only(wanted),
        fields.values.only(wanted),
        fields.header_counts[wanted],
        fields.header_names.only(headers),
        fields.header_values.only(headers),
    )


def _read_spans(data: Bytes, positions: Longs, ends: Longs) -> tuple[Spans, Longs]:
    sizes, starts = read_varints(data, np.minimum(positions, ends), 32)
    nulls: Indices = sizes == -1
    if sizes.min(initial=0) < -1:
        raise InvalidRecordError("a negative length inside a record")
    behind = starts + np.maximum(sizes, 0)
    if np.any(behind > ends):
        raise InvalidRecordError("a field runs over the end of its record")
    return Spans(starts, behind, nulls), behind


def _read_headers(data: Bytes, positions: Longs, ends: Longs, counts: Longs) -> tuple[Spans, Spans, Longs]:
    """The names and the values of all headers, record by record, and the position after the headers of each
    record."""
    total = int(counts.sum())
    names, values = _empty_spans(total), _empty_spans(total)
    if not total:
        return names, values, positions
    slots = np.cumsum(counts) - counts
    position = positions.copy()
    for record in np.flatnonzero(counts > VECTOR_HEADERS_MAX):
        position[record] = _read_many_headers(
            data,
            int(position[record]),
            int(ends[record]),
            int(counts[record]),
            int(slots[record]),
            names,
            values,
        )
    few = np.where(counts > VECTOR_HEADERS_MAX, 0, counts)
    for index in range(int(few.max(initial=0))):
        rows = np.flatnonzero(few > index)
        slot = slots[rows] + index
        name, behind = _read_spans(data, position[rows], ends[rows])
        if name.nulls.any():
            raise InvalidRecordError("a record header without a name")
        value, behind = _read_spans(data, behind, ends[rows])
        _store(names, slot, name)
        _store(values, slot, value)
        position[rows] = behind
    return names, values, position


def _read_many_headers(
    data: Bytes, position: int, end: int, count: int, slot: int, names: Spans, values: Spans
) -> int:
    record = data[position : end + PADDING_BYTES].tobytes()
    at = 0
    for index in range(slot, slot + count):
        for spans in (names, values):
            size, at = read_varlong(record, at, 32)
            if size < (0 if spans is names else -1) or at + max(size, 0) > end - position:
                raise InvalidRecordError("a header runs over the end of its record")
            spans.starts[index] = position + at
            at += max(size, 0)
            spans.ends[index] = position + at
            spans.nulls[index] = size < 0
    return position + at


def _empty_spans(count: int) -> Spans:
    return Spans(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.bool_))


def _store(spans: Spans, slots: Longs, found: Spans) -> None:
    spans.starts[slots], spans.ends[slots], spans.nulls[slots] = found


def _gather(source: Any, spans: Spans) -> pa.Array:
    """Copy the byte ranges to one binary column, with Arrow.

    Together with the gaps between them, the ranges form an array that needs no copy. Every second element of
    this array is a range. Selecting these elements copies only the ranges.
    """
    count = len(spans.starts)
    if spans.nulls.all():
        return pa.nulls(count, pa.binary())
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[0 : 2 * count : 2] = spans.starts
    bounds[1 : 2 * count : 2] = spans.ends
    bounds[2 * count] = bounds[2 * count - 1]
    ranges = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), source])
    every_second = np.arange(0, 2 * count, 2, dtype=np.int32)
    taken = pa.array(every_second, mask=spans.nulls if spans.nulls.any() else None)
    return pc.take(ranges, taken, boundscheck=False)


def _headers(source: Any, fields: _FieldPositions) -> pa.Array:
    counts = fields.header_counts
    if not counts.any():
        return pa.nulls(len(counts), HEADERS_TYPE)
    names = _text(_gather(source, fields.header_names))
    pairs = pa.StructArray.from_arrays(
        [names, _gather(source, fields.header_values)], fields=list(HEADERS_TYPE.value_type)
    )
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), pairs, type=HEADERS_TYPE, mask=pa.array(counts == 0))


def _text(names: pa.Array) -> pa.Array:
    """Names as text. Bytes that are not UTF-8 are replaced."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


def _timestamps(batches: Sequence[OpenedBatch], counts: Longs, deltas: Longs, offsets: Longs) -> pa.Array:
    headers = [batch.header for batch in batches]
    appended = [header.timestamp_type is TimestampType.LOG_APPEND_TIME for header in headers]
    base = [
        header.max_timestamp if by_broker else header.base_timestamp
        for header, by_broker in zip(headers, appended, strict=True)
    ]
    if any(appended):
        deltas = np.where(np.repeat(appended, counts), 0, deltas)
    milliseconds = np.repeat(base, counts) + deltas
    if milliseconds.size and max(int(milliseconds.max()), -int(milliseconds.min())) > TIMESTAMP_MS_MAX:
        first = int(np.argmax(np.abs(milliseconds) > TIMESTAMP_MS_MAX))
        raise InvalidRecordError(
            f"offset {offsets[first]} has timestamp {milliseconds[first]} ms, which microseconds cannot hold"
        )
    return pa.array(milliseconds * MICROSECONDS_IN_MS).view(SCHEMA.field("timestamp").type)
