"""The form in which committed offsets are kept in memory: one ``bytes`` object for each offset. Pure.

A coordinator may have millions of committed offsets, and reads each of them rarely. Such an object takes 64
or 80 bytes, a third of the memory that the same values take as Python objects. The garbage collector does not
visit it.

The forms are distinguished by their sizes:

====== ==== ================== ==========================================================
offset size field
====== ==== ================== ==========================================================
0      8    record offset      the log offset of the record that committed the offset
8      8    offset             the committed offset
16     8    commit timestamp   in milliseconds since the epoch
24     4    leader epoch
28     16   topic id           missing or zero if the commit has none
44     8    expire timestamp   missing if it is -1 and there is no metadata
52     any  metadata           UTF-8; missing with the expire timestamp
====== ==== ================== ==========================================================
"""

from struct import Struct
from typing import Final

from moldau.coordinators.groups.records import CommittedOffset
from moldau.protocol.compiler.primitives import UUIDS

NO_EXPIRY: Final = -1
NO_TOPIC_ID: Final = bytes(16)
_FIXED: Final = Struct(">qqqi")
_EXPIRY: Final = Struct(">q")
_TIMESTAMP_AT: Final = 16
_TOPIC_ID_AT: Final = 28
_EXPIRY_AT: Final = 44
_METADATA_AT: Final = 52

_unpack_fixed = _FIXED.unpack_from
pack_fixed = _FIXED.pack
"""Packs the fields that each form has: record offset, offset, commit timestamp and leader epoch."""
WITHOUT_EXPIRY: Final = _EXPIRY.pack(NO_EXPIRY)


def pack(value: CommittedOffset, record_offset: int) -> bytes:
    """Pack an offset that the record at ``record_offset`` committed."""
    packed = pack_fixed(record_offset, value.offset, value.commit_timestamp_ms, value.leader_epoch)
    topic_id = None if value.topic_id is None else value.topic_id.bytes
    if value.metadata or value.expire_timestamp_ms != NO_EXPIRY:
        expiry = _EXPIRY.pack(value.expire_timestamp_ms)
        return b"".join((packed, topic_id or NO_TOPIC_ID, expiry, value.metadata.encode()))
    return packed if topic_id is None else packed + topic_id


def unpack(packed: bytes) -> CommittedOffset:
    """Return the committed offset without the offset of its record."""
    _, offset, commit_timestamp_ms, leader_epoch = _unpack_fixed(packed)
    raw_id = packed[_TOPIC_ID_AT:_EXPIRY_AT]
    topic_id = None if not raw_id or raw_id == NO_TOPIC_ID else UUIDS[raw_id]
    if len(packed) < _METADATA_AT:
        return CommittedOffset(offset, leader_epoch, "", commit_timestamp_ms, NO_EXPIRY, topic_id)
    metadata = packed[_METADATA_AT:].decode()
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp_ms, _expiry_ms(packed), topic_id)


def is_later(packed: bytes, other: bytes) -> bool:
    """Whether the record of ``packed`` is later in the log than the record of ``other``."""
    return packed[:8] > other[:8]


def times_ms(packed: bytes) -> tuple[int, int]:
    """Return the commit timestamp, and the expire timestamp or -1."""
    return _EXPIRY.unpack_from(packed, _TIMESTAMP_AT)[0], _expiry_ms(packed)


def _expiry_ms(packed: bytes) -> int:
    if len(packed) < _METADATA_AT:
        return NO_EXPIRY
    expire_timestamp_ms: int = _EXPIRY.unpack_from(packed, _EXPIRY_AT)[0]
    return expire_timestamp_ms
