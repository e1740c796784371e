"""Reads a consumer's Fetch request for a single partition, and packs its response, without message objects.

A consumer sends such a *lone* request when it reads one partition of a broker: the request has one topic, one
partition, no rack and no tagged fields. The reader and the packer need one ``struct`` call each. The compiled
decoder and encoder handle all other requests and responses.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, TypeAlias

from moldau.protocol.compiler.primitives import uvarint
from moldau.protocol.fast_paths.named_structs import StructsByNameSize
from moldau.runtime.buffers import Buffer

FIRST_LONE_VERSION = 11
"""The first version of Fetch in which requests can have the lone shape. It is the first version with a rack,
and older clients are rare."""
FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
REPLICA_STATE_VERSION = 15
"""From this version on, a consumer's request has no replica id (KIP-903)."""

LoneFetchRequest: TypeAlias = tuple[int, int, int, int, int, int, bytes, int, int, int, int, int]
"""The values of a request, in this order: maximum wait in ms, minimum of bytes, maximum of bytes, isolation
level, session id, session epoch, topic (its name in UTF-8, or the 16 bytes of its id), number of the
partition, epoch of its leader or -1, offset, epoch of the last fetched batch or -1, maximum of bytes of the
partition."""
LoneFetchReader: TypeAlias = Callable[[memoryview], LoneFetchRequest | None]
LoneFetchPacker: TypeAlias = Callable[
    [int, bytes, int, int, int, int, bool, Sequence[memoryview | bytes], int], list[Buffer]
]
"""The function's arguments are, in this order: session id, topic (with the same bytes as in the request),
number of the partition, high watermark, last stable offset, log start offset, whether the response has an
empty list of aborted transactions (and not null), records, size of the records in bytes."""

_CONSUMER = -1
_NO_LOG_START = -1

# The first values of a request: replica id, maximum wait, minimum of bytes, maximum of bytes, isolation
# level, session id, session epoch.
_START = ">iiiibii"
_START_WITHOUT_REPLICA = ">iiibii"
# The values of a partition: number, leader epoch, offset, epoch of the last fetched batch (not in version
# 11), start of the log, maximum of bytes. The last bytes of the request are a string here.
_PARTITION = "iiqiqi5s"
_OLD_PARTITION = "iiqqi6s"
_END = b"\0\0\1\1\0"
"""No tags of the partition, no tags of the topic, no forgotten topics, an empty rack, no tags."""
_OLD_END = b"\0\0\0\0\0\0"
"""No forgotten topics, an empty rack."""
_TAGS_OF_RESPONSE = b"\0\0\0"
"""No tags of the partition, of the topic and of the response."""


def lone_reader(version: int) -> LoneFetchReader:
    """Make a reader of request bodies of this version, which is 11 or higher. The reader decodes only lone
    requests, as the module's docstring describes them. For all other requests it returns None."""
    if version >= REPLICA_STATE_VERSION:
        latest = Struct(f"{_START_WITHOUT_REPLICA}B16sB{_PARTITION}")
        return _reader(lambda _: latest, lambda values: (_CONSUMER, *values), 2, _END)
    if version >= TOPIC_ID_VERSION:
        by_id = Struct(f"{_START}B16sB{_PARTITION}")
        return _reader(lambda _: by_id, lambda values: values, 2, _END)
    if version >= FLEXIBLE_VERSION:
        by_name = StructsByNameSize(f"{_START}Bx", f"B{_PARTITION}")
        return _reader(lambda body: by_name[body[26] - 1], lambda values: values, 2, _END)
    old = StructsByNameSize(f"{_START}ixx", f"i{_OLD_PARTITION}")
    return _reader(lambda body: old[_old_name_size(body)], _with_last_epoch, 1, _OLD_END)


def _old_name_size(body: memoryview) -> int:
    return body[29] << 8 | body[30]


def _with_last_epoch(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Version 11 has no epoch of the last fetched batch."""
    return (*values[:13], -1, *values[13:])


def _reader(
    struct_of: Callable[[memoryview], Struct],
    complete: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    one: int,
    expected_end: bytes,
) -> LoneFetchReader:
    """``complete`` adds the values that a version does not have. ``one`` is the encoded count of an array
    with one element."""

    def read(body: memoryview) -> LoneFetchRequest | None:
        try:
            values = complete(struct_of(body).unpack(body))
        except (StructError, IndexError):
            return None
        replica, max_wait_ms, min_bytes, max_bytes, isolation, session, epoch = values[:7]
        topics, topic, partitions, index, leader, offset, last, log_start, limit, end = values[7:]
        if (
            replica != _CONSUMER
            or topics != one
            or partitions != one
            or log_start != _NO_LOG_START
            or end != expected_end
        ):
            return None
        return (
            *(max_wait_ms, min_bytes, max_bytes, isolation, session, epoch),
            *(topic, index, leader, offset, last, limit),
        )

    return read


def lone_packer(version: int) -> LoneFetchPacker:
    """Make a packer of the response's body, for a lone request whose partition has no error. The records are
    passed on unchanged, and never copied or joined."""
    # The values of a response, in this order: throttle time and error code (none), session id, number of
    # topics plus one, topic, number of partitions plus one, number of the partition, error code (none), high
    # watermark, last stable offset, log start offset, number of aborted transactions plus one, preferred
    # replica (none). In version 11, counts and sizes have four bytes without "plus one", and the size of the
    # records is the last value.
    is_flexible, by_id = version >= FLEXIBLE_VERSION, version >= TOPIC_ID_VERSION
    pack_by_id = Struct(">6xiB16sBixxqqqBi").pack
    by_name = StructsByNameSize(">6xiBB", "BixxqqqBi")
    old = StructsByNameSize(">6xiih", "iixxqqqiii")

    def pack(
        session_id: int,
        topic: bytes,
        index: int,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        has_aborted: bool,
        records: Sequence[memoryview | bytes],
        size_bytes: int,
    ) -> list[Buffer]:
        offsets = (high_watermark, last_stable_offset, log_start_offset)
        size = len(topic)
        if not is_flexible:
            aborted = 0 if has_aborted else -1
            head = old[size].pack(session_id, 1, size, topic, 1, index, *offsets, aborted, -1, size_bytes)
            return [head, *records]
        if by_id:
            head = pack_by_id(session_id, 2, topic, 2, index, *offsets, has_aborted, -1)
        else:
            head = by_name[size].pack(session_id, 2, size + 1, topic, 2, index, *offsets, has_aborted, -1)
        if not size_bytes:
            return [head + b"\1" + _TAGS_OF_RESPONSE]
        return [head + uvarint(size_bytes + 1), *records, _TAGS_OF_RESPONSE]

    return pack
