"""Functions that compiled encoders and decoders call: varints, packers of arrays, ids, error codes."""

from collections.abc import Callable
from struct import Struct
from uuid import UUID

from moldau.protocol.costs import TAGGED_FIELD_COST
from moldau.protocol.decoding_errors import ParsedSizeError, ProtocolError
from moldau.protocol.schema import ZERO_UUID
from moldau.runtime import ErrorCode
from moldau.runtime.buffers import Buffer

FIXED_FORMATS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "uuid": "16s",
}

SINGLE_BYTES = [bytes([value]) for value in range(128)]

_PACKERS_KEPT = 1024
"""Packers of arrays up to this length are cached. Longer arrays are rare, and their packers would fill the
cache.
"""


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint (LEB128) of at most 32 bits."""
    if value < 128:
        return SINGLE_BYTES[value]
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Decode an unsigned varint. Returns the value and the position after it."""
    value = buffer[position]
    if value < 128:
        return value, position + 1
    return continue_uvarint(buffer, position + 1, value)


def continue_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Decode the remaining bytes of an unsigned varint. Its first byte had the continuation bit set."""
    value = first & 127
    shift = 7
    while shift < 35:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
        shift += 7
    raise ProtocolError("a varint is longer than 32 bits")


def skip_tagged_fields(buffer: Buffer, position: int, count: int, end: int, left: int) -> tuple[int, int]:
    """Skip ``count`` unknown tagged fields.

    ``left`` is the cost that the rest of the message may still have, in bytes. Returns the position after the
    fields, and ``left`` minus the cost of the fields. Raises ParsedSizeError when this difference is below 0.
    """
    if count > 127:
        count, position = continue_uvarint(buffer, position, count)
    left -= count * TAGGED_FIELD_COST
    if left < 0:
        raise ParsedSizeError(f"{count} tagged fields are too many for a message of this size", -left)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise ProtocolError("a tagged field runs past the end")
    return position, left


class CompactPackers(dict[int, Callable[..., bytes]]):
    """Packers of compact arrays of one format. Call ``packers[n + 1](n + 1, *items)``."""

    def __init__(self, item_format: str) -> None:
        self._item_format = item_format

    def __missing__(self, length: int) -> Callable[..., bytes]:
        pack = Struct(f">B{length - 1}{self._item_format}").pack if length < 128 else self._long(length)
        if length <= _PACKERS_KEPT:
            self[length] = pack
        return pack

    def _long(self, length: int) -> Callable[..., bytes]:
        prefix = uvarint(length)
        pack_items = Struct(f">{length - 1}{self._item_format}").pack

        def pack(_length: int, *items: object) -> bytes:
            return prefix + pack_items(*items)

        return pack


class LegacyPackers(dict[int, Callable[..., bytes]]):
    """Packers of arrays with an int32 length. Call ``packers[n](n, *items)``."""

    def __init__(self, item_format: str) -> None:
        self._item_format = item_format

    def __missing__(self, length: int) -> Callable[..., bytes]:
        pack = Struct(f">i{length}{self._item_format}").pack
        if length <= _PACKERS_KEPT:
            self[length] = pack
        return pack


class _ErrorCodes(dict[int, ErrorCode]):
    """ErrorCode by number. An unknown number becomes unknown_server_error, as in Kafka's client."""

    def __missing__(self, code: int) -> ErrorCode:
        return ErrorCode.unknown_server_error


ERROR_CODES: dict[int, ErrorCode] = _ErrorCodes((int(code), code) for code in ErrorCode)


class _Uuids(dict[bytes, UUID]):
    """UUID by its bytes. UUIDs are cached, because a broker uses few topic ids and creating a UUID is
    slow."""

    def __missing__(self, raw: bytes) -> UUID:
        if len(self) >= 16_384:
            self.clear()
            self[ZERO_UUID.bytes] = ZERO_UUID
        value = self[raw] = UUID(bytes=raw)
        return value


UUIDS: dict[bytes, UUID] = _Uuids({ZERO_UUID.bytes: ZERO_UUID})
