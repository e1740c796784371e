"""Records inside a batch. This module opens a batch (decompresses its records), and reads its records. A
broker can store and send most batches without opening them.

Each record begins with a varint that contains the record's length. The other fields of a record are
attributes (1 byte, unused), timestamp delta (varlong), offset delta (varint), key and value (varint length,
-1 for null), header count and headers.
"""

from collections.abc import Iterator
from typing import NamedTuple

from moldau.records.batch import HEADER_SIZE_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader, parse_header
from moldau.records.compression import Compression, decompress
from moldau.records.errors import InvalidRecordError, OpenedSizeError
from moldau.records.varint import INT64_MAX, INT64_MIN, read_varlong, wrapped
from moldau.runtime.buffers import Buffer

__all__ = [
    "HEADERS_PER_BATCH_MAX",
    "QUICK_BYTES",
    "QUICK_RECORDS",
    "Headers",
    "Record",
    "RecordCursor",
    "iter_opened",
    "iter_records",
    "open_batch",
    "opens_quickly",
    "read_records",
    "too_many_headers",
]

QUICK_RECORDS = 500
QUICK_BYTES = 128 * 1024
"""Number of bytes of records that may be read on the event loop. Reading them takes a millisecond."""

HEADERS_PER_BATCH_MAX = 1_000_000
"""Maximum number of headers in all records of a batch. A header may take two bytes, and many such headers
compress to almost nothing."""

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record. ``timestamp`` is in milliseconds since the epoch. It is -1 if there is no timestamp.

    Header names that are not UTF-8 are stored with surrogate escapes, so that rewriting a batch changes no
    bytes.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


_new = tuple.__new__


def open_batch(batch: Buffer, limit: int | None = None) -> tuple[BatchHeader, bytes]:
    """Return the header of a batch, and the decompressed bytes of its records.

    The buffer ``batch`` begins with a batch, and bytes after this batch are ignored. Raises
    :class:`CorruptRecordError` or :class:`InvalidRecordError` for an invalid batch. Raises
    :class:`OpenedSizeError` when the decompressed records have more than ``limit`` bytes. The default limit
    is ``decompressed_bytes_max``. The CRC is not checked again.
    """
    header = parse_header(batch)
    size = header.size_bytes
    if size > len(batch) or size < HEADER_SIZE_BYTES:
        raise InvalidRecordError(f"the batch says {size} bytes, {len(batch)} are there")
    codec = header.compression
    payload = memoryview(batch)[HEADER_SIZE_BYTES:size]
    if codec is Compression.NONE:
        return header, bytes(payload)
    if not payload and not header.records_count:
        return header, b""  # A batch that has lost all records in a compaction still names its codec.
    return header, decompress(codec, payload, limit)


def opens_quickly(batch: Buffer) -> bool:
    """Whether a batch certainly has few records and bytes. The result is always False for a compressed
    batch."""
    header = parse_header(batch)
    return (
        header.records_count <= QUICK_RECORDS
        and header.batch_length <= QUICK_BYTES
        and not header.is_compressed
    )


def read_records(batch: Buffer, limit: int | None = None) -> list[Record]:
    """All records of a batch. Raises the errors of :func:`iter_records`."""
    return list(iter_records(batch, limit))


def iter_records(batch: Buffer, limit: int | None = None) -> Iterator[Record]:
    """Walk through a batch, decompressing it as :func:`open_batch` does when it is compressed.

    With LogAppendTime every record has the batch's max timestamp. Raises :class:`InvalidRecordError` for any
    length, varint or count that does not fit, and for bytes after the last record. Raises
    :class:`OpenedSizeError` for more than ``HEADERS_PER_BATCH_MAX`` headers.
    """
    return iter_opened(*open_batch(batch, limit))


def iter_opened(header: BatchHeader, data: bytes) -> Iterator[Record]:
    """Does the same as :func:`iter_records`, but gets the result of :func:`open_batch`."""
    # A RecordCursor reads the same records, but takes a tenth more time for its calls. Compaction reads all
    # records in this way.
    count = header.records_count
    if count < 0:
        raise InvalidRecordError(f"the header of the batch says {count} records")
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    position = headers_count = 0
    for _ in range(count):
        try:
            record, position = _read_record(data, position, base_offset, base_timestamp)
        except IndexError:
            raise InvalidRecordError("the records end before the batch's count is reached") from None
        if record.headers:
            headers_count += len(record.headers)
            if headers_count > HEADERS_PER_BATCH_MAX:
                raise too_many_headers()
        yield record if append_time is None else record._replace(timestamp=append_time)
    if position != len(data):
        raise InvalidRecordError(f"{len(data) - position} bytes are left after the last record")


class RecordCursor:
    """Reads the records of an opened batch one by one, like :func:`iter_opened`. The caller may also read
    some of the records itself, and then :meth:`skip` them."""

    def __init__(self, header: BatchHeader, data: bytes) -> None:
        """The arguments are the result of :func:`open_batch`. Raises :class:`InvalidRecordError` for a
        negative number of records."""
        if header.records_count < 0:
            raise InvalidRecordError(f"the header of the batch says {header.records_count} records")
        self.header = header
        self.data = data
        self.position = 0
        """The position of the next record in ``data``."""
        self.left = header.records_count
        """Number of records that are not read yet, according to the header."""
        self._headers_count = 0

    def read(self) -> Record:
        """Read the next record; ``left`` must not be 0. Raises the errors of :func:`iter_records`."""
        header = self.header
        try:
            record, self.position = _read_record(
                self.data, self.position, header.base_offset, header.base_timestamp
            )
        except IndexError:
            raise InvalidRecordError("the records end before the batch's count is reached") from None
        self.left -= 1
        if record.headers:
            self._headers_count += len(record.headers)
            if self._headers_count > HEADERS_PER_BATCH_MAX:
                raise too_many_headers()
        if header.attributes & TIMESTAMP_TYPE_BIT:
            return record._replace(timestamp=header.max_timestamp)
        return record

    def skip(self, count: int, position: int) -> None:
        """Skip ``count`` records without headers. The next record is at ``position``."""
        self.left -= count
        self.position = position

    def end(self) -> None:
        """Raise :class:`InvalidRecordError` if there are bytes after the last record."""
        if self.position != len(self.data):
            raise InvalidRecordError(f"{len(self.data) - self.position} bytes are left after the last record")


def _read_record(data: bytes, position: int, base_offset: int, base_timestamp: int) -> tuple[Record, int]:
    """One record and the position after it. Raises IndexError at the end of the data.

    Nearly all varints have one or two bytes, and are decoded here without a call. This function is the inner
    loop of compaction, and of coordinators that load their state.
    """
    raw = data[position]
    if raw < 0x80 and not raw & 1:
        position += 1
        end = position + (raw >> 1)
    else:
        size, position = read_varlong(data, position, 32)
        end = position + size
    if end > len(data) or end < position:
        raise InvalidRecordError(f"a record says {end - position} bytes, {len(data) - position} are there")
    raw = data[position + 1]  # The position after the attributes, which have no meaning yet.
    if raw < 0x80:
        timestamp = base_timestamp + (raw >> 1 ^ -(raw & 1))
        position += 2
    else:
        delta, position = read_varlong(data, position + 1)
        timestamp = base_timestamp + delta
    if not INT64_MIN <= timestamp <= INT64_MAX:
        timestamp = wrapped(timestamp)
    raw = data[position]
    if raw < 0x80:
        offset = base_offset + (raw >> 1 ^ -(raw & 1))
        position += 1
    else:
        delta, position = read_varlong(data, position, 32)
        offset = base_offset + delta
    raw = data[position]
    if raw < 0x80 and not raw & 1:
        start = position + 1
        position = start + (raw >> 1)
        key: bytes | None = data[start:position]
    else:
        key, position = _read_bytes(data, position, end)
    raw = data[position]
    if raw < 0x80 and not raw & 1:
        start = position + 1
        position = start + (raw >> 1)
        value: bytes | None = data[start:position]
    else:
        value, position = _read_bytes(data, position, end)
    headers: Headers = ()
    if data[position]:
        headers, position = _read_headers(data, position, end)
    else:
        position += 1
    # This check also detects a position beyond the record's end.
    if position != end:
        raise InvalidRecordError(f"a record ends {position - end:+d} bytes off its own length")
    return _new(Record, (offset, timestamp, key, value, headers)), end


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size = data[position]
    position += 1
    if size < 0x80:
        size = size >> 1 ^ -(size & 1)
    else:
        size, position = read_varlong(data, position - 1, 32)
    if size < 0:
        if size != -1:
            raise InvalidRecordError(f"negative length {size} inside a record")
        return None, position
    stop = position + size
    if stop > end:
        raise InvalidRecordError(f"{size} bytes inside a record that has {end - position} left")
    return data[position:stop], stop


def _read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = read_varlong(data, position, 32)
    # A header takes at least two bytes. If the headers need more bytes than the record has left, the number
    # of headers is wrong. No memory may be allocated for so many headers.
    if count < 0 or count * 2 > end - position:
        raise InvalidRecordError(f"{count} headers in a record that has {end - position} bytes left")
    if count > HEADERS_PER_BATCH_MAX:
        raise too_many_headers()
    headers = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise InvalidRecordError("a record header without a name")
        value, position = _read_bytes(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def too_many_headers() -> OpenedSizeError:
    """The error for more than ``HEADERS_PER_BATCH_MAX`` headers."""
    return OpenedSizeError(f"the records have more than {HEADERS_PER_BATCH_MAX} headers")
