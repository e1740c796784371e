"""Selects whole batches in a part of a segment file. Pure."""

from struct import Struct
from typing import Final, NamedTuple

from moldau.records.batch import HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES

__all__ = ["Selection", "select_batches"]

# Reads three fields of a batch header: base offset, batch length and last offset delta. It skips the fields
# between them: leader epoch, magic, CRC and attributes.
_UNPACK: Final = Struct(">qi11xi").unpack_from


class Selection(NamedTuple):
    """The batches for a reader in a part of a segment: ``piece[start:end]``.

    ``next_offset`` is the offset after the last batch. If ``start == end``, there are no batches. Then
    ``missing_bytes`` is the number of bytes of the segment, beginning at ``start``, that are needed to get
    the first batch. It is 0 when there is no such batch: all batches are before the offset, or the first
    batch is at or after the limit.
    """

    start: int
    end: int
    next_offset: int
    missing_bytes: int = 0


def select_batches(
    piece: memoryview, offset: int, bound_offset: int, max_bytes: int, *, min_one_batch: bool
) -> Selection:
    """Select the batches for a reader. The first of them contains ``offset``, all of them are before
    ``bound_offset``, and together they have at most ``max_bytes``.

    ``piece`` begins with a batch and may end within a batch. With ``min_one_batch`` the first batch may be
    larger than ``max_bytes``.
    """
    length, at = len(piece), 0
    while length - at >= HEADER_SIZE_BYTES:
        base_offset, batch_length, last_delta = _UNPACK(piece, at)
        if base_offset + last_delta >= offset:
            break
        at += batch_length + LOG_OVERHEAD_BYTES
    else:
        return Selection(at, at, offset, HEADER_SIZE_BYTES)
    start, next_offset = at, offset
    limit = min(length, start + max_bytes)
    while length - at >= HEADER_SIZE_BYTES:
        base_offset, batch_length, last_delta = _UNPACK(piece, at)
        end = at + batch_length + LOG_OVERHEAD_BYTES
        if base_offset >= bound_offset:
            break
        if at == start and min_one_batch:
            if end > length:
                return Selection(start, start, offset, end - start)
        elif end > limit:
            break
        at, next_offset = end, base_offset + last_delta + 1
    return Selection(start, at, next_offset)
