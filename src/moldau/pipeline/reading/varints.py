"""Decodes zigzag varints of many records at once."""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from moldau.records.errors import InvalidRecordError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.int64]

PADDING_BYTES: Final = 16
"""Number of zeros after the data. A varint that is not complete at the end of the data ends at the first
zero."""


def read_varints(data: Bytes, positions: Longs, bits: int = 64) -> tuple[Longs, Longs]:
    """The signed numbers at ``positions``, and the position after each number.

    ``data`` ends in :data:`PADDING_BYTES` zeros, and no position is after them. Raises
    :class:`InvalidRecordError` for a varint of more than ``bits`` bits.
    """
    first = data[positions]
    behind = positions + 1
    longer = first >= 0x80
    if not longer.any():
        return _OF_ONE_BYTE[first], behind
    # Most varints have one or two bytes. Such a varint fits into 16 bits, and the processor adds many 16-bit
    # numbers at once.
    second = data[behind]
    raw = np.multiply(second, longer, dtype=np.uint16) << 7 | first & 0x7F
    numbers = ((raw >> 1).view(np.int16) ^ -(raw & 1).view(np.int16)).astype(np.int64)
    behind += longer
    long = np.flatnonzero(longer & (second >= 0x80))
    if long.size:
        numbers[long], behind[long] = _read_any(data, positions[long], bits)
    return numbers, behind


def _read_any(data: Bytes, positions: Longs, bits: int) -> tuple[Longs, Longs]:
    """Like :func:`read_varints`, but for varints of any length. In each step, one byte is read of every
    varint that has not ended yet."""
    first = data[positions]
    raw = (first & 0x7F).astype(np.uint64)
    behind = positions + 1
    longer = np.flatnonzero(first & 0x80)
    for shift in range(7, bits + 6, 7):
        if not longer.size:
            break
        byte = data[behind[longer]]
        raw[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        if shift == 63 and np.any((byte & 0x7F) > 1):
            raise InvalidRecordError("varint of more than 64 bits")
        behind[longer] += 1
        longer = longer[byte >= 0x80]
    if longer.size or (bits < 64 and np.any(raw >> np.uint64(bits))):
        raise InvalidRecordError(f"varint of more than {bits} bits")
    return zigzag(raw), behind


def zigzag(raw: Any) -> Longs:
    """Convert numbers from the unsigned zigzag form to signed numbers."""
    halves: Longs = (raw >> np.uint64(1)).astype(np.int64)
    signs: Longs = (raw & np.uint64(1)).astype(np.int64)
    return halves ^ -signs


_OF_ONE_BYTE: Final = zigzag(np.arange(0x80, dtype=np.uint64))
