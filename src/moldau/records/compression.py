"""The five codecs of record batches, each in the framing that the Java client reads and writes.

* gzip, zstd: their own stream formats.
* lz4: the frame format with independent blocks (the Java client refuses linked ones).
* snappy: written as the blocks of snappy-java (``xerial``); read in this form or as one raw block
  (librdkafka).

Decompression never produces more bytes than the caller's limit, even for a small input.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import assert_never

import cramjam

from moldau.records.errors import InvalidRecordError, OpenedSizeError
from moldau.runtime.buffers import Buffer
from moldau.runtime.steps import NextTurn, Steps

__all__ = [
    "DECOMPRESSED_BYTES_FLOOR",
    "Compression",
    "compress",
    "compress_in_turn",
    "decompress",
    "decompressed_bytes_max",
]


DECOMPRESSED_BYTES_FLOOR = 64 * 1024 * 1024
"""Minimum of the limit that :func:`decompressed_bytes_max` returns, in bytes. It is about 64 times Kafka's
default max.message.bytes.
"""
_DECOMPRESSED_RATIO = 16


def decompressed_bytes_max(size_bytes: int) -> int:
    """Maximum size of a batch's records after decompression. It depends on the size of the batch, and not on
    a configuration.

    A stored batch therefore stays readable when configs change.
    """
    return max(DECOMPRESSED_BYTES_FLOOR, _DECOMPRESSED_RATIO * size_bytes)


class Compression(IntEnum):
    """A codec, by its number in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_id(cls, codec_id: int) -> "Compression":
        """Raises :class:`InvalidRecordError` for numbers that Kafka does not define."""
        codec = _BY_ID.get(codec_id)
        if codec is None:
            raise InvalidRecordError(f"unknown compression codec {codec_id}")
        return codec

    @classmethod
    def of_name(cls, name: str) -> "Compression":
        """The codec with this name in Kafka (``uncompressed`` is a synonym of ``none``). Raises KeyError if
        Kafka has no codec with this name."""
        return cls["NONE" if name == "uncompressed" else name.upper()]


_BY_ID = {codec.value: codec for codec in Compression}

_INT32 = Struct(">i")
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
# The two numbers are the version of the format, and the oldest version that a reader must support.
_XERIAL_HEADER = _XERIAL_MAGIC + _INT32.pack(1) + _INT32.pack(1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_FIRST_GUESS_BYTES = 16 * 1024
_GROWTH = 4
_STEP_BYTES = 256 * 1024


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress ``data``. ``level`` is on the codec's own scale (gzip 1-9, zstd 1-22). None is the codec's
    default level."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            frame = _stream(codec, level)
            frame.compress(data)
            return bytes(frame.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, 3 if level is None else level))
        case _:
            assert_never(codec)


def compress_in_turn(codec: Compression, data: bytes, level: int | None = None) -> Steps[bytes]:
    """Does the same as :func:`compress`, but in steps of some milliseconds."""
    if codec in (Compression.NONE, Compression.SNAPPY) or len(data) <= _STEP_BYTES:
        return compress(codec, data, level)  # Snappy and the codec "none" are fast and need no steps.
    stream = _stream(codec, level)
    for start in range(0, len(data), _STEP_BYTES):
        stream.compress(data[start : start + _STEP_BYTES])
        yield NextTurn.NEXT
    return bytes(stream.finish())


def _stream(
    codec: Compression, level: int | None
) -> cramjam.gzip.Compressor | cramjam.zstd.Compressor | cramjam.lz4.Compressor:
    match codec:
        case Compression.GZIP:
            return cramjam.gzip.Compressor(level)
        case Compression.ZSTD:
            return cramjam.zstd.Compressor(3 if level is None else level)
        case _:
            return cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)


def decompress(codec: Compression, data: Buffer, limit: int | None = None) -> bytes:
    """Decompress ``data``.

    Raises :class:`InvalidRecordError` when ``data`` is damaged or incomplete. Raises :class:`OpenedSizeError`
    when the result is larger than ``limit`` bytes. The default limit is :func:`decompressed_bytes_max`.
    """
    if limit is None:
        limit = decompressed_bytes_max(len(data))
    try:
        match codec:
            case Compression.NONE:
                return bytes(data)
            case Compression.GZIP:
                return _decompress_stream(cramjam.gzip.decompress_into, data, limit)
            case Compression.SNAPPY:
                return _decompress_snappy(data, limit)
            case Compression.LZ4:
                return _decompress_stream(cramjam.lz4.decompress_into, data, limit)
            case Compression.ZSTD:
                return _decompress_stream(cramjam.zstd.decompress_into, data, limit)
            case _:
                assert_never(codec)
    except cramjam.DecompressionError as error:
        raise InvalidRecordError(f"{codec.name.lower()} data cannot be decompressed: {error}") from None


def _decompress_stream(into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int) -> bytes:
    """Decompress into a buffer that grows in steps, because a stream's own size field may be wrong."""
    capacity = min(limit, max(_FIRST_GUESS_BYTES, _GROWTH * len(data)))
    while True:
        output = bytearray(capacity)
        try:
            size = into(data, output)
        except cramjam.DecompressionError as error:
            # The buffer is deleted here, because the error's traceback would otherwise keep it in memory.
            del output
            if "whole buffer" not in str(error) or "write" not in str(error):
                raise
            if capacity >= limit:
                raise _too_large(limit) from None
            capacity = min(limit, capacity * _GROWTH)
        else:
            return bytes(memoryview(output)[:size])


def _too_large(limit: int) -> OpenedSizeError:
    return OpenedSizeError(f"the records are larger than {limit} bytes when decompressed")


def _compress_xerial(data: Buffer) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_block(view, limit)
    parts: list[bytes] = []
    total = 0
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < _INT32.size:
            raise InvalidRecordError("snappy data ends inside a block's length")
        (size,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if size < 0 or size > len(view) - position:
            raise InvalidRecordError(f"snappy block of {size} bytes, {len(view) - position} are there")
        part = _decompress_block(view[position : position + size], limit)
        total += len(part)
        if total > limit:
            # The blocks are deleted here, because the error's traceback would otherwise keep them in memory.
            del part, parts
            raise _too_large(limit)
        parts.append(part)
        position += size
    return b"".join(parts)


def _decompress_block(block: memoryview, limit: int) -> bytes:
    # The raw format begins with its decompressed size. This size is checked before memory is allocated.
    if cramjam.snappy.decompress_raw_len(block) > limit:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(block))
