"""Reads a Produce request for a single partition, and packs its response, without message objects.

Nearly every Produce request has this *lone* shape: one topic, one partition, no tagged fields. The reader
takes each field from a computed position in the buffer. The records stay a view of the buffer. The response
is packed by a single ``struct`` call. Reading and packing together take 0.9 µs. The compiled decoder alone
takes 2.1 µs. The compiled decoder handles requests of any other shape, and also raises the errors.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import TypeAlias

from moldau.protocol.fast_paths.named_structs import NAME_BYTES_MAX, StructsByNameSize

FIRST_LONE_VERSION = 9
"""The first version of Produce in which requests can have the lone shape. The shape needs flexible versions
(KIP-482). The general handler serves older clients."""
TOPIC_ID_VERSION = 13

LoneRequest: TypeAlias = tuple[str | None, int, int, bytes, int, memoryview]
"""The values of a request, in this order: transactional id or None, acks, time-out in ms, topic (its
name in UTF-8, or the 16 bytes of its id), number of the partition, records."""
LoneReader: TypeAlias = Callable[[memoryview], LoneRequest | None]
LonePacker: TypeAlias = Callable[[bytes, int, int, int, int], bytes]
"""The function's arguments are, in this order: topic (with the same bytes as in the request), number of the
partition, base offset, append time in ms or -1, log start offset."""

_NO_TAGS = b"\0\0\0"
"""The tagged fields of partition, topic and request at the end of a lone request. All of them are empty."""


# The values of a request, in this order: last byte of the transactional id (or its size, if it is null or
# empty), acks, time-out, number of topics plus one, topic's name, number of partitions plus one, number of
# the partition, size of the records.
_REQUEST_BY_NAME = StructsByNameSize(">BhiBx", "BiBBB")
_REQUEST_BY_ID = Struct(">BhiB16sBiBBB")
# The values of a response, in this order: number of topics plus one, topic's name, number of partitions plus
# one, number of the partition, error code (none), base offset, append time, log start offset. The last nine
# bytes have no information, because there are no record errors, no error message, no throttle time and no
# tags.
_ANSWER_BY_NAME = StructsByNameSize(">BB", "BixxqqqB8x")
_ANSWER_BY_ID = Struct(">B16sBixxqqqB8x")


def lone_reader(version: int) -> LoneReader:
    """Make a reader of request bodies of this version, which is 9 or higher. The reader decodes only lone
    requests, as the module's docstring describes them. For all other requests it returns None."""
    if version >= TOPIC_ID_VERSION:
        return _reader(lambda body, skipped: _REQUEST_BY_ID)
    return _reader(lambda body, skipped: _REQUEST_BY_NAME[body[skipped + 8] - 1])


def _reader(struct_of: Callable[[memoryview, int], Struct]) -> LoneReader:
    def read(body: memoryview) -> LoneRequest | None:
        try:
            name_size = body[0] - 1  # -1 if the transactional id is null
            skipped = name_size if name_size > 0 else 0
            found = struct_of(body, skipped)
            _, acks, timeout_ms, topics, topic, partitions, index, a, b, c = found.unpack_from(body, skipped)
        except (StructError, IndexError):
            return None
        # A varint contains the size of the records plus one. Only varints of two or three bytes
        # are decoded here (sizes from 127 bytes to 2 MiB).
        if name_size > NAME_BYTES_MAX or topics != 2 or partitions != 2 or a < 128:
            return None
        start = skipped + found.size - 1
        size = (a & 127 | b << 7) - 1
        if b >= 128:
            if c >= 128:
                return None
            start += 1
            size = (a & 127 | (b & 127) << 7 | c << 14) - 1
        stop = start + size
        if stop < start or body[stop:] != _NO_TAGS:
            return None
        try:
            name = None if name_size < 0 else str(body[1 : 1 + name_size], "utf-8")
        except UnicodeDecodeError:
            return None
        return name, acks, timeout_ms, topic, index, body[start:stop]

    return read


def lone_packer(version: int) -> LonePacker:
    """Make a packer of the response's body, for a lone request whose batch was appended."""
    pack_by_id = _ANSWER_BY_ID.pack
    by_name = _ANSWER_BY_NAME

    def answer_by_id(
        topic: bytes, index: int, base_offset: int, log_append_time_ms: int, log_start_offset: int
    ) -> bytes:
        return pack_by_id(2, topic, 2, index, base_offset, log_append_time_ms, log_start_offset, 1)

    def answer_by_name(
        topic: bytes, index: int, base_offset: int, log_append_time_ms: int, log_start_offset: int
    ) -> bytes:
        size = len(topic) + 1
        return by_name[size - 1].pack(
            2, size, topic, 2, index, base_offset, log_append_time_ms, log_start_offset, 1
        )

    return answer_by_id if version >= TOPIC_ID_VERSION else answer_by_name
