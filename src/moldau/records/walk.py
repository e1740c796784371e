"""One pass through the records of an opened batch, in steps, without an object for each record.

The pass collects everything that a broker needs to know before it stores the batch. The pass finds out
whether the records can be parsed, and finds their largest timestamp. It also finds records without a key,
timestamps that are out of range, and wrong offset deltas. It corrects the wrong deltas.

A single record takes about 0.5 µs. Consecutive records of the same shape (the same lengths of all fields) are
read together as columns, hundreds at a time. Therefore a batch of identical records costs little for its
sender and for the broker.
"""

from typing import Final, NamedTuple

from moldau.records.batch import NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, BatchHeader
from moldau.records.errors import InvalidRecordError
from moldau.records.record import HEADERS_PER_BATCH_MAX, too_many_headers
from moldau.records.varint import (
    INT64_MAX,
    INT64_MIN,
    encode_unsigned_varint,
    encode_varint,
    read_varlong,
    wrapped,
)

__all__ = ["FOUND_MAX", "RecordWalk", "TimestampBounds"]

FOUND_MAX: Final = 100
"""Maximum number of bad records of each kind that a pass stores. A few of them are enough to find the fault.
"""

_ROW_MIN: Final = 8
_ROW_MAX: Final = 4096
_SINGLY_MAX: Final = 256
_RENUMBERED_BYTES_MAX: Final = 64
"""Size in bytes. Larger records are copied one by one when they are renumbered. Reading them as columns would
not be faster."""
_HEADERS_A_STEP: Final = 20_000

_BLOCK: Final = 8192
"""Number of consecutive integers whose varints differ only in their first two bytes."""
_CONTINUES: Final = bytes(128) + b"\x01" * 128
"""A table that translates the bytes of varints. The result is 1 for a byte that is followed by another byte
of the same varint."""
_LOW: Final = bytes(number << 1 & 0x7F | 0x80 for number in range(64))
_MIDDLE: Final = bytes(number >> 6 for number in range(_BLOCK))
_MIDDLE_CONTINUED: Final = bytes(number >> 6 | 0x80 for number in range(_BLOCK))


class TimestampBounds(NamedTuple):
    """The timestamps that a topic accepts, including both limits. A record without a timestamp is accepted,
    too."""

    oldest_ms: int
    newest_ms: int

    def has(self, timestamp: int) -> bool:
        return timestamp == NO_TIMESTAMP or self.oldest_ms <= timestamp <= self.newest_ms


class _RecordLayout(NamedTuple):
    """The positions of the fields of a record without headers, in bytes from its first byte."""

    attributes_at: int
    offset_at: int
    key_size_at: int
    key_at: int
    value_size_at: int
    value_at: int
    size_bytes: int


class RecordWalk:
    """A pass through the records of a batch. :meth:`advance` runs its steps, and the attributes contain the
    results."""

    def __init__(
        self,
        header: BatchHeader,
        data: bytes,
        bounds: TimestampBounds | None = None,
        *,
        renumbers: bool = False,
    ) -> None:
        """``data`` is the result of ``open_batch``. With ``renumbers``, wrong offsets are replaced by
        consecutive ones."""
        if header.records_count < 0:
            raise InvalidRecordError(f"the header of the batch says {header.records_count} records")
        self._count = header.records_count
        self._base_timestamp = header.base_timestamp
        self._append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
        self._data = data
        self._bounds = bounds
        self._renumbers = renumbers
        self._renumbered: bytearray | None = None
        self._index = self._position = self._headers_count = 0
        self._singly_count = 1
        self._row_count = 4 * _ROW_MIN
        self.max_timestamp = NO_TIMESTAMP
        self.keyless: list[int] = []
        """The first records without a key, by their place in the batch."""
        self.misdated: list[tuple[int, int]] = []
        """The first records whose timestamp is out of bounds. For each record, the list has its position in
        the batch and its timestamp.
        """

    @property
    def payload(self) -> bytes:
        """The bytes of the records. If the producer numbered the records wrongly, these bytes contain
        corrected offset deltas."""
        return self._data if self._renumbered is None else bytes(self._renumbered)

    def advance(self, records_count: int) -> bool:
        """Read ``records_count`` records, or fewer if reading them takes long. Returns whether any records
        are left.

        Raises the same errors as ``iter_opened``.
        """
        stop = min(self._count, self._index + records_count)
        headers_stop = self._headers_count + _HEADERS_A_STEP
        while self._index < stop and self._headers_count < headers_stop:
            try:
                shape = self._read_singly(min(stop, self._index + self._singly_count))
            except IndexError:
                raise InvalidRecordError("the records end before the batch's count is reached") from None
            if shape is not None and self._index < stop:
                self._read_row(shape, stop)
        if self._index < self._count:
            return True
        left = len(self._data) - self._position
        if left:
            raise InvalidRecordError(f"{left} bytes are left after the last record")
        return False

    # -- one by one ---------------------------------------------------------------------------

    def _read_singly(self, stop: int) -> _RecordLayout | None:
        """Read records up to index ``stop``. Returns the last shape. Raises IndexError if the data end."""
        # Nearly all varints have one byte, and are decoded here without a call.
        data, base_timestamp, renumbers = self._data, self._base_timestamp, self._renumbers
        size, index, end, latest = len(data), self._index, self._position, self.max_timestamp
        oldest, newest = self._bounds or (INT64_MIN, INT64_MAX)
        headers_at = -1
        while index < stop:
            start = end
            raw = data[start]
            if raw < 0x80 and not raw & 1:
                attributes_at = start + 1
                end = attributes_at + (raw >> 1)
            else:
                length, attributes_at = read_varlong(data, start, 32)
                end = attributes_at + length
            if end > size or end < attributes_at:
                raise _too_long(end - attributes_at, size - attributes_at)
            raw = data[attributes_at + 1]
            if raw < 0x80:
                timestamp = base_timestamp + (raw >> 1 ^ -(raw & 1))
                offset_at = attributes_at + 2
            else:
                delta, offset_at = read_varlong(data, attributes_at + 1)
                timestamp = base_timestamp + delta
            number = data[offset_at]
            if number < 0x80 and not number & 1:
                number >>= 1
                key_size_at = offset_at + 1
            else:
                number, key_size_at = read_varlong(data, offset_at, 32)
            raw = data[key_size_at]
            if raw < 0x80 and not raw & 1:
                key_at = key_size_at + 1
                value_size_at = key_at + (raw >> 1)
            else:
                value_size_at, key_at = self._read_key(index, key_size_at)
            raw = data[value_size_at]
            if raw < 0x80 and not raw & 1:
                value_at = value_size_at + 1
                headers_at = value_at + (raw >> 1)
            else:
                headers_at, value_at = _skip_bytes(data, value_size_at)
            position = headers_at + 1 if not data[headers_at] else self._skip_headers(headers_at, end)
            # This check also detects a position beyond the record's end.
            if position != end:
                raise InvalidRecordError(f"a record ends {position - end:+d} bytes off its own length")
            if not INT64_MIN <= timestamp <= INT64_MAX:
                timestamp = wrapped(timestamp)
            if timestamp > latest:
                latest = timestamp
            if not oldest <= timestamp <= newest:
                self._note_misdated(index, timestamp)
            if renumbers and (number != index or self._renumbered is not None):
                self._renumber_one(index, start, attributes_at, offset_at, key_size_at, end)
            index += 1
        self._index, self._position = index, end
        self.max_timestamp = latest if self._append_time is None else self._append_time
        fields = (attributes_at, offset_at, key_size_at, key_at, value_size_at, value_at, end)
        return None if data[headers_at] else _shape(start, fields)

    def _read_key(self, index: int, position: int) -> tuple[int, int]:
        size, _ = read_varlong(self._data, position, 32)
        if size == -1 and len(self.keyless) < FOUND_MAX:
            self.keyless.append(index)
        return _skip_bytes(self._data, position)

    def _note_misdated(self, index: int, timestamp: int) -> None:
        if timestamp != NO_TIMESTAMP and len(self.misdated) < FOUND_MAX:
            self.misdated.append((index, timestamp))

    def _skip_headers(self, position: int, end: int) -> int:
        data = self._data
        count, position = read_varlong(data, position, 32)
        # A header takes at least two bytes. If the headers need more bytes than the record has left, the
        # number of headers is wrong. No time may be spent on so many headers.
        if count < 0 or count * 2 > end - position:
            raise InvalidRecordError(f"{count} headers in a record that has {end - position} bytes left")
        self._headers_count += count
        if self._headers_count > HEADERS_PER_BATCH_MAX:
            raise too_many_headers()
        for _ in range(count):
            raw = data[position]
            if raw < 0x80 and not raw & 1:
                position += 1 + (raw >> 1)
            else:
                size, position = read_varlong(data, position, 32)
                if size < 0:
                    raise InvalidRecordError("a record header without a name")
                position += size
            raw = data[position]
            if raw < 0x80 and not raw & 1:
                position += 1 + (raw >> 1)
            else:
                position, _ = _skip_bytes(data, position)
        return position

    def _renumber_one(
        self, index: int, start: int, attributes_at: int, offset_at: int, key_size_at: int, end: int
    ) -> None:
        """Kafka's brokers renumber the records, too, because some clients number the records of a compressed
        batch wrongly."""
        data = self._data
        if self._renumbered is None:
            self._renumbered = bytearray(data[:start])
        number = encode_varint(index)
        length = end - attributes_at - (key_size_at - offset_at) + len(number)
        self._renumbered += encode_varint(length) + data[attributes_at:offset_at] + number
        self._renumbered += data[key_size_at:end]

    # -- by columns ---------------------------------------------------------------------------

    def _read_row(self, shape: _RecordLayout, stop: int) -> None:
        """Read the following records that have the shape of the last record, if there are enough of them.

        The last record was read alone. The next records can be read together with it under two conditions.
        The fields with lengths must have the same bytes. The varints in the other fields must have the same
        widths.
        """
        index, size = self._index, shape.size_bytes
        count = min(
            self._row_count,
            stop - index,
            (len(self._data) - self._position) // size,
            64 - index if index < 64 else _BLOCK - index % _BLOCK,
        )
        wanted = count
        for at, table, byte in self._marks(shape):
            if count < _ROW_MIN:
                break
            column = self._column(at, size, count)
            if table is not None:
                column = column.translate(table)
            count -= len(column.lstrip(byte))
        if count < _ROW_MIN or not self._take_timestamps(shape, count):
            # The next records cannot be read together. From now on, more records are read one by one before
            # the next attempt to read records together.
            self._singly_count = min(_SINGLY_MAX, 2 * self._singly_count)
            self._row_count = 4 * _ROW_MIN
            return
        self._singly_count = 1
        self._row_count = min(_ROW_MAX, 2 * count) if count == wanted else max(4 * _ROW_MIN, count)
        if self._data[self._position + shape.key_size_at] & 1 and shape.key_at == shape.value_size_at:
            self.keyless += range(index, index + min(count, FOUND_MAX - len(self.keyless)))
        if self._renumbers:
            self._take_numbers(shape, count)
        self._index = index + count
        self._position += count * size

    def _column(self, at: int, size: int, count: int) -> bytes:
        """The bytes at position ``at`` of ``count`` consecutive records of ``size`` bytes each."""
        begin = self._position
        return self._data[begin + at : begin + count * size : size]

    def _marks(self, shape: _RecordLayout) -> "list[tuple[int, bytes | None, bytes]]":
        """Return the bytes by which records of the shape are recognised. For each byte, the result has its
        position in the record, a translation table (or None), and the expected value of the byte after the
        translation."""
        begin = self._position - shape.size_bytes
        fixed = [
            *range(shape.attributes_at),
            *range(shape.key_size_at, shape.key_at),
            *range(shape.value_size_at, shape.value_at),
            shape.size_bytes - 1,
        ]
        marks: list[tuple[int, bytes | None, bytes]] = [
            (at, None, self._data[begin + at : begin + at + 1]) for at in fixed
        ]
        for first, end in (
            (shape.attributes_at + 1, shape.offset_at),
            (shape.offset_at, shape.key_size_at),
        ):
            marks += [(at, _CONTINUES, b"\x01") for at in range(first, end - 1)]
            marks.append((end - 1, _CONTINUES, b"\0"))
        return marks

    def _take_timestamps(self, shape: _RecordLayout, count: int) -> bool:
        """Process the timestamps of ``count`` consecutive records. Returns False when some timestamps are out
        of range and must be recorded one by one."""
        if self._append_time is not None and self._bounds is None:
            return True
        columns = [
            self._column(at, shape.size_bytes, count)
            for at in range(shape.attributes_at + 1, shape.offset_at)
        ]
        base = self._base_timestamp
        times = [
            wrapped(base + read_varlong(bytes(delta), 0)[0]) for delta in set(zip(*columns, strict=True))
        ]
        bounds = self._bounds
        if bounds is not None and not all(map(bounds.has, times)):
            return len(self.misdated) >= FOUND_MAX
        if self._append_time is None:
            self.max_timestamp = max(self.max_timestamp, max(times))
        return True

    def _take_numbers(self, shape: _RecordLayout, count: int) -> None:
        """Check the offsets of ``count`` consecutive records. If necessary, renumber the records."""
        numbers = _consecutive(self._index, count)
        size = shape.size_bytes
        offset_columns = range(shape.offset_at, shape.key_size_at)
        if self._renumbered is None:
            if numbers == [self._column(at, size, count) for at in offset_columns]:
                return
            self._renumbered = bytearray(self._data[: self._position])
        if size > _RENUMBERED_BYTES_MAX:
            for number in range(count):
                start = self._position + number * size
                self._renumber_one(
                    self._index + number,
                    start,
                    start + shape.attributes_at,
                    start + shape.offset_at,
                    start + shape.key_size_at,
                    start + size,
                )
            return
        length = encode_varint(size - shape.attributes_at - len(offset_columns) + len(numbers))
        columns = [bytes([byte]) * count for byte in length]
        columns += [self._column(at, size, count) for at in range(shape.attributes_at, shape.offset_at)]
        columns += numbers
        columns += [self._column(at, size, count) for at in range(shape.key_size_at, size)]
        row = bytearray(count * len(columns))
        for at, column in enumerate(columns):
            row[at :: len(columns)] = column
        self._renumbered += row


def _shape(start: int, fields: tuple[int, ...]) -> _RecordLayout | None:
    """The shape of a record. It is None when the record's varints are too long to be read as columns."""
    shape = _RecordLayout(*(at - start for at in fields))
    too_long = shape.key_size_at - shape.offset_at > 4 or shape.offset_at - shape.attributes_at > 9
    return None if too_long else shape


def _too_long(size_bytes: int, left_bytes: int) -> InvalidRecordError:
    return InvalidRecordError(f"a record says {size_bytes} bytes, {left_bytes} are there")


def _skip_bytes(data: bytes, position: int) -> tuple[int, int]:
    """Returns the end of a field that begins with a length, and the start of its content. Both positions are
    equal for null."""
    size, position = read_varlong(data, position, 32)
    if size < -1:
        raise InvalidRecordError(f"negative length {size} inside a record")
    return position + max(0, size), position


def _consecutive(first: int, count: int) -> list[bytes]:
    """The varints of consecutive numbers as columns. The numbers are either all below 64, or all in one block
    of ``_BLOCK`` numbers."""
    if first < 64:
        return [bytes(range(2 * first, 2 * (first + count), 2))]
    low = (_LOW * (count // 64 + 2))[first % 64 :][:count]
    at, high = first % _BLOCK, first // _BLOCK
    if not high:
        return [low, _MIDDLE[at : at + count]]
    rest = [bytes([byte]) * count for byte in encode_unsigned_varint(high)]
    return [low, _MIDDLE_CONTINUED[at : at + count], *rest]
