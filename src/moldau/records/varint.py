"""Zigzag varints, as they are used in records (Protocol Buffers' sint32 and sint64)."""

from moldau.records.errors import InvalidRecordError

__all__ = ["INT64_MAX", "INT64_MIN", "encode_unsigned_varint", "encode_varint", "read_varlong", "wrapped"]

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

_ONE_BYTE = tuple(bytes([value]) for value in range(128))


def encode_unsigned_varint(value: int) -> bytes:
    """The encoding of a non-negative number in groups of seven bits, the lowest group first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def encode_varint(value: int) -> bytes:
    """The zigzag encoding of a number of up to 64 bits. Small positive and negative numbers take few
    bytes."""
    if -64 <= value < 64:
        return _ONE_BYTE[value << 1 if value >= 0 else (-value << 1) - 1]
    return encode_unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_varlong(data: bytes, position: int, bits: int = 64) -> tuple[int, int]:
    """Returns the value and the position after it. Raises IndexError at the end of the data, which callers
    convert to another error.

    Raises :class:`InvalidRecordError` for a varint of more than ``bits`` bits.
    """
    raw = data[position]
    if raw < 0x80:
        return raw >> 1 ^ -(raw & 1), position + 1
    byte = data[position + 1]
    if byte < 0x80:
        raw = raw & 0x7F | byte << 7
        return raw >> 1 ^ -(raw & 1), position + 2
    raw = 0
    for shift in range(0, bits + 6, 7):
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits:
                break
            return (raw >> 1) ^ -(raw & 1), position
    raise InvalidRecordError(f"varint of more than {bits} bits")


def wrapped(value: int) -> int:
    """Reduce ``value``, the exact result of an addition, to a signed 64-bit number. It overflows as in
    Kafka's clients and brokers."""
    return (value - INT64_MIN & 2**64 - 1) + INT64_MIN
