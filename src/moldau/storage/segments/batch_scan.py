"""Reads the batches of a segment file by their headers only."""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.records.batch import (
    CHECKED_FROM,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    unchecked_header,
)
from moldau.records.errors import CorruptRecordError
from moldau.runtime.files.disk import File

# The struct reads these fields of a batch header: base offset, batch length, last offset delta and max
# timestamp. It skips epoch, magic, CRC and attributes (11 bytes) and the base timestamp (8 bytes).
_SKETCH: Final = Struct(">qi11xi8xq")
_CHECKSUM_AT: Final = 17
_LENGTH_MIN: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES
_CHUNK_SIZE_BYTES: Final = 8 * 1024
_CHECK_CHUNK_SIZE_BYTES: Final = 1024 * 1024


class Sketch(NamedTuple):
    """A batch in a segment: its position, offsets and timestamps."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


def sketch_at(buffer: memoryview | bytes, start: int, position: int) -> Sketch:
    """Read the header of a batch at ``buffer[start:]``. The position of the batch in the file is
    ``position``."""
    base_offset, length, last_offset_delta, max_timestamp_ms = _SKETCH.unpack_from(buffer, start)
    return Sketch(
        position, length + LOG_OVERHEAD_BYTES, base_offset, base_offset + last_offset_delta, max_timestamp_ms
    )


def checksum_in(batches: memoryview, at: int) -> int:
    """Return the checksum in the header of the batch at the index ``at``."""
    return int.from_bytes(batches[at + _CHECKSUM_AT : at + _CHECKSUM_AT + 4], "big")


def checksum_at(file: File, position: int) -> int:
    """Return the checksum in the header of the batch at ``position``."""
    return int.from_bytes(file.read_at(position + _CHECKSUM_AT, 4), "big")


def scan(file: File, position: int, end: int) -> Iterator[Sketch]:
    """The batches of ``file[position:end]``. The bytes must contain only whole, valid batches."""
    while position < end:
        chunk = file.view(position, min(_CHUNK_SIZE_BYTES, end - position))
        at, last_start = 0, len(chunk) - _SKETCH.size
        while at <= last_start:
            sketch = sketch_at(chunk, at, position + at)
            if sketch.size_bytes < HEADER_SIZE_BYTES:
                return
            yield sketch
            at += sketch.size_bytes
        if not at:
            return
        position += at


def find_position(file: File, position: int, end: int, offset: int) -> int:
    """Position of the first batch of ``file[position:end]`` that ends at or after ``offset``. The result is
    ``end`` if there is no such batch.

    Every read calls this function, so it must be fast. It takes a quarter of the time of :func:`scan`. Raises
    :class:`CorruptRecordError` if the bytes cannot be a batch.
    """
    unpack = _SKETCH.unpack_from
    while position < end:
        chunk = file.view(position, min(_CHUNK_SIZE_BYTES, end - position))
        at, last_start = 0, len(chunk) - _SKETCH.size
        while at <= last_start:
            base_offset, length, last_offset_delta, _ = unpack(chunk, at)
            if not _LENGTH_MIN <= length <= end - position - at - LOG_OVERHEAD_BYTES:
                raise _not_a_batch(file, position + at, length)
            if base_offset + last_offset_delta >= offset:
                return position + at
            at += length + LOG_OVERHEAD_BYTES
        if not at:
            raise _not_a_batch(file, position, end - position)
        position += at
    return end


def _not_a_batch(file: File, position: int, length: int) -> CorruptRecordError:
    return CorruptRecordError(f"{file.path} is damaged at byte {position}: no batch has {length} bytes there")


def find_fitting_end(file: File, position: int, end: int, limit: int) -> tuple[int, int | None]:
    """End position of the last batch of ``file[position:end]`` that ends at or before ``limit``.

    The second value of the result is the offset after that batch. If the first batch does not fit, the result
    is ``position`` and the base offset of the first batch. If there is no batch at all, the second value is
    None. Raises :class:`CorruptRecordError` like :func:`find_position`.
    """
    unpack = _SKETCH.unpack_from
    next_offset: int | None = None
    while position < end:
        chunk = file.view(position, min(_CHUNK_SIZE_BYTES, end - position))
        at, last_start = 0, len(chunk) - _SKETCH.size
        while at <= last_start:
            base_offset, length, last_offset_delta, _ = unpack(chunk, at)
            if length < _LENGTH_MIN:
                raise _not_a_batch(file, position + at, length)
            if position + at + length + LOG_OVERHEAD_BYTES > limit:
                return position + at, base_offset if next_offset is None else next_offset
            next_offset = base_offset + last_offset_delta + 1
            at += length + LOG_OVERHEAD_BYTES
        if not at:
            break
        position += at
    return position, next_offset


def scan_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Pairs ``(position, header)`` for the batches of ``file[position:end]``. The bytes must contain only
    whole, valid batches.

    This function is like :func:`scan`, but with complete headers, and takes a microsecond per batch.
    """
    while position < end:
        chunk = file.view(position, min(_CHUNK_SIZE_BYTES, end - position))
        at, last_start = 0, len(chunk) - HEADER_SIZE_BYTES
        while at <= last_start:
            header = unchecked_header(chunk, at)
            size_bytes = header[1] + LOG_OVERHEAD_BYTES
            if size_bytes < HEADER_SIZE_BYTES:
                return
            yield position + at, header
            at += size_bytes
        if not at:
            return
        position += at


def scan_checked(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Triples ``(position, header, batch)`` for the batches of ``file[position:end]``, up to the first
    invalid batch.

    This function is for bytes that a crash may have damaged. It checks length, magic and CRC, and does not
    accept zeros as a batch. When the node starts after a kill, it reads all batches since the last checkpoint
    by this function, so the loop is optimised.
    """
    while end - position >= HEADER_SIZE_BYTES:
        chunk = memoryview(file.read_at(position, min(_CHECK_CHUNK_SIZE_BYTES, end - position)))
        at, size = 0, len(chunk)
        while size - at >= HEADER_SIZE_BYTES:
            header = unchecked_header(chunk, at)
            size_bytes = header[1] + LOG_OVERHEAD_BYTES
            if not HEADER_SIZE_BYTES <= size_bytes <= end - position - at:
                return
            if size_bytes > size - at:
                if not at:
                    chunk = memoryview(file.read_at(position, size_bytes))
                    size = len(chunk)
                    continue
                break
            batch = chunk[at : at + size_bytes]
            if header[3] != MAGIC or header[4] != crc32c(batch[CHECKED_FROM:]):
                return
            yield position + at, header, batch
            at += size_bytes
        position += at
