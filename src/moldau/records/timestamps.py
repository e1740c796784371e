"""Timestamp look-ups that are exact to the record, not to the batch."""

from collections.abc import Iterator

from moldau.records.batch import TIMESTAMP_TYPE_BIT, Buffer, parse_header
from moldau.records.errors import InvalidRecordError
from moldau.records.record import open_batch
from moldau.records.varint import read_varlong, wrapped

__all__ = ["first_offset_at_or_after", "first_offset_of_max_timestamp", "iter_positions_in_time"]


def first_offset_at_or_after(
    batch: Buffer, timestamp_ms: int, starting_offset: int = 0
) -> tuple[int, int] | None:
    """``(offset, timestamp)`` of the first *record* with a timestamp at or after ``timestamp_ms``.

    Records below ``starting_offset`` (the log start offset may lie inside a batch) do not count. None
    when the batch has no such record; the header alone answers that in most cases, unopened.
    """
    header = parse_header(batch)
    if header.max_timestamp < timestamp_ms or header.last_offset < starting_offset:
        return None
    for offset, timestamp in iter_positions_in_time(batch):
        if timestamp >= timestamp_ms and offset >= starting_offset:
            return offset, timestamp
    return None


def first_offset_of_max_timestamp(batch: Buffer) -> tuple[int, int] | None:
    """``(offset, timestamp)`` of the first record that has the batch's max timestamp (ListOffsets -3)."""
    target = parse_header(batch).max_timestamp
    for offset, timestamp in iter_positions_in_time(batch):
        if timestamp == target:
            return offset, timestamp
    return None


def iter_positions_in_time(batch: Buffer, limit: int | None = None) -> Iterator[tuple[int, int]]:
    """``(offset, timestamp)`` of each record, skipping over keys, values and headers.

    Raises as ``iter_records`` does, though it sees less of what may be wrong.
    """
    header, data = open_batch(batch, limit)
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    position = 0
    for _ in range(header.records_count):
        try:
            size, position = read_varlong(data, position, 32)
            end = position + size
            if size < 0 or end > len(data):
                raise InvalidRecordError(f"a record says {size} bytes, {len(data) - position} are there")
            timestamp_delta, position = read_varlong(data, position + 1)
            offset_delta, position = read_varlong(data, position, 32)
        except IndexError:
            raise InvalidRecordError("the records end before the batch's count is reached") from None
        if position > end:
            raise InvalidRecordError(f"a record of {size} bytes is shorter than its own fields")
        position = end
        timestamp = wrapped(header.base_timestamp + timestamp_delta) if append_time is None else append_time
        yield header.base_offset + offset_delta, timestamp
