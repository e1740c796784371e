"""The keys and the content of a segment's objects in an object store. Pure.

Each segment has two objects, in the folder of its partition::

    <prefix>/<topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>[.<attempt>].log
    <prefix>/<topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>[.<attempt>].indexes

The first object is the segment's log file, byte for byte. The second object contains the other files of the
segment, one after another. A record that identifies the segment (type 0 of ``__remote_log_metadata``), a
table and a trailer follow::

    contents | table: (kind u8, CRC-32C u32, length u32) for each
             | CRC-32C of the table u32, its length u16, version u8, b"MLDIX"

Therefore a bucket can be understood without brokers. Numbers are big-endian. A reader with a segment's custom
metadata does not need the table and the trailer, because the custom metadata contain the lengths. Such a
reader fetches an index by a single ranged read. An attempt's name is present when several builders may work
on the same segment. Each builder then writes its own objects, and the custom metadata of
COPY_SEGMENT_FINISHED name the valid attempt.
"""

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import crc32c

from moldau.protocol.compiler.primitives import read_uvarint, uvarint
from moldau.protocol.decoding_errors import ProtocolError
from moldau.runtime.buffers import Buffer
from moldau.tiered.metadata.records import decode_event, encode_event
from moldau.tiered.metadata.segments import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.storage.segment_files import IndexType, LogSegmentData

__all__ = [
    "ATTEMPT_LENGTH_MAX",
    "ObjectLocation",
    "PackedIndexes",
    "SegmentKeys",
    "decode_location",
    "encode_location",
    "pack_container",
    "pack_indexes",
    "parse_segment_key",
    "partition_folder",
    "segment_keys",
    "segment_stem",
    "unpack_indexes",
]

ATTEMPT_LENGTH_MAX: Final = 40
_ATTEMPT: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{ATTEMPT_LENGTH_MAX}}}")
_KEY: Final = re.compile(
    r"(?:.*/)?(?P<topic>[^/]+)-(?P<topic_id>[A-Za-z0-9_-]{22})/(?P<partition>\d+)/(?P<base>\d{20})-(?P<id>[0-9a-f-]{36})"
    r"(?:\.(?P<attempt>[A-Za-z0-9_-]+))?\.(?P<kind>log|indexes)"
)
_LOCATION_VERSION: Final = 1
_CONTAINER_VERSION: Final = 1
_MAGIC: Final = b"MLDIX"
_TRAILER: Final = struct.Struct(">IHB5s")
_ENTRY: Final = struct.Struct(">BII")
_METADATA_KIND: Final = 5
ORDER: Final = (
    IndexType.OFFSET,
    IndexType.TIMESTAMP,
    IndexType.TRANSACTION,
    IndexType.PRODUCER_SNAPSHOT,
    IndexType.LEADER_EPOCH,
)
"""The order of the files in a ``.indexes`` object. The index of a file in this order is the number of the
file in the table. The number 5 stands for the record that identifies the segment."""


class SegmentKeys(NamedTuple):
    """The keys of a segment's two objects."""

    log: str
    indexes: str


class ParsedKey(NamedTuple):
    """The parts of an object key."""

    id: RemoteLogSegmentId
    start_offset: int
    attempt: str
    is_log: bool


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The custom metadata of a segment: the attempt that wrote its objects, and the sizes of its indexes.

    ``index_sizes`` are the sizes in bytes, in the order of :data:`ORDER`; ``None`` for a missing transaction
    index.
    """

    attempt: str
    index_sizes: Sequence[int | None]

    def range_of(self, index_type: IndexType) -> tuple[int, int] | None:
        """``(position, size)`` of an index; ``None`` when there is no such index."""
        place = ORDER.index(index_type)
        size = self.index_sizes[place]
        return None if size is None else (sum(each or 0 for each in self.index_sizes[:place]), size)


@dataclass(frozen=True, slots=True)
class PackedIndexes:
    """The content of a ``.indexes`` object, and the sizes of the indexes in it."""

    content: bytes
    index_sizes: Sequence[int | None]


def partition_folder(prefix: str, partition: TopicIdPartition) -> str:
    """The folder of a partition's objects, ending in ``/``."""
    topic_id, topic, number = partition
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"{prefix}/{topic}-{text}/{number}/"


def segment_stem(prefix: str, id: RemoteLogSegmentId, start_offset: int) -> str:
    """Common prefix of the keys of a segment's objects, for all attempts."""
    return f"{partition_folder(prefix, id.topic_id_partition)}{start_offset:020d}-{id.id}"


def segment_keys(prefix: str, id: RemoteLogSegmentId, start_offset: int, attempt: str = "") -> SegmentKeys:
    """The keys of a segment's objects. Raises ValueError for an invalid attempt name."""
    if attempt and not _ATTEMPT.fullmatch(attempt):
        raise ValueError(f"{attempt!r} cannot name an attempt: at most {ATTEMPT_LENGTH_MAX} of A-Za-z0-9_-")
    stem = segment_stem(prefix, id, start_offset) + (f".{attempt}" if attempt else "")
    return SegmentKeys(f"{stem}.log", f"{stem}.indexes")


def parse_segment_key(key: str) -> ParsedKey | None:
    """Parse the key of a segment's object; ``None`` for any other key."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    try:
        topic_id = UUID(bytes=base64.urlsafe_b64decode(found["topic_id"] + "=="))
        id = RemoteLogSegmentId(topic_id, found["topic"], int(found["partition"]), UUID(found["id"]))
    except ValueError:
        return None
    return ParsedKey(id, int(found["base"]), found["attempt"] or "", found["kind"] == "log")


def encode_location(attempt: str, index_sizes: Sequence[int | None]) -> bytes:
    """Custom metadata: version, attempt, then each size plus one, or 0 if the index does not exist (unsigned
    varints)."""
    name = attempt.encode()
    sizes = (uvarint(0 if size is None else size + 1) for size in index_sizes)
    return b"".join((uvarint(_LOCATION_VERSION), uvarint(len(name)), name, *sizes))


def decode_location(custom_metadata: bytes) -> ObjectLocation:
    """Read custom metadata. Raises ``ProtocolError`` if the bytes are malformed."""
    try:
        version, position = read_uvarint(custom_metadata, 0)
        if version != _LOCATION_VERSION:
            raise ProtocolError(f"custom metadata has version {version}, not {_LOCATION_VERSION}")
        length, position = read_uvarint(custom_metadata, position)
        attempt = custom_metadata[position : position + length].decode("ascii")
        position += length
        sizes: list[int | None] = []
        for _ in ORDER:
            size, position = read_uvarint(custom_metadata, position)
            sizes.append(size - 1 if size else None)
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError("this storage manager did not write the custom metadata") from error
    if position != len(custom_metadata) or (attempt and not _ATTEMPT.fullmatch(attempt)):
        raise ProtocolError("this storage manager did not write the custom metadata")
    return ObjectLocation(attempt, tuple(sizes))


def pack_indexes(metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> PackedIndexes:
    """Make the ``.indexes`` object of a segment. The result also has the sizes of the indexes, for the custom
    metadata."""
    contents: dict[IndexType, Buffer] = {}
    sizes: list[int | None] = []
    for index_type in ORDER:
        content = data.index(index_type)
        sizes.append(None if content is None else memoryview(content).nbytes)
        if content is not None:
            contents[index_type] = content
    return PackedIndexes(pack_container(metadata, contents), tuple(sizes))


def pack_container(metadata: RemoteLogSegmentMetadata, contents: Mapping[IndexType, Buffer]) -> bytes:
    """Some files of a segment in the form of a ``.indexes`` object. :func:`unpack_indexes` reads it."""
    parts: list[Buffer] = []
    table = bytearray()
    for kind, index_type in enumerate(ORDER):
        content = contents.get(index_type)
        if content is not None:
            parts.append(content)
            table += _entry(kind, content)
    record = encode_event(metadata)
    parts.append(record)
    table += _entry(_METADATA_KIND, record)
    parts += (table, _TRAILER.pack(crc32c.crc32c(table), len(table), _CONTAINER_VERSION, _MAGIC))
    return b"".join(parts)


def _entry(kind: int, content: Buffer) -> bytes:
    return _ENTRY.pack(kind, crc32c.crc32c(content), memoryview(content).nbytes)


def unpack_indexes(content: Buffer) -> tuple[RemoteLogSegmentMetadata, Mapping[IndexType, memoryview]]:
    """Read a ``.indexes`` object by its table. Raises ``ProtocolError`` when it is damaged."""
    view = memoryview(content)
    if len(view) < _TRAILER.size:
        raise ProtocolError("shorter than its trailer")
    table_crc, table_size, version, magic = _TRAILER.unpack(view[-_TRAILER.size :])
    if magic != _MAGIC or version != _CONTAINER_VERSION:
        raise ProtocolError(f"it ends in {magic!r} version {version}, not {_MAGIC!r} {_CONTAINER_VERSION}")
    end = len(view) - _TRAILER.size - table_size
    if end < 0 or table_size % _ENTRY.size:
        raise ProtocolError(f"a table of {table_size} bytes cannot be")
    table = view[end : end + table_size]
    if crc32c.crc32c(table) != table_crc:
        raise ProtocolError("the checksum of its table is wrong")
    found: dict[IndexType, memoryview] = {}
    metadata: RemoteLogSegmentMetadata | None = None
    position = 0
    for kind, crc, size in _ENTRY.iter_unpack(table):
        part = view[position : position + size]
        position += size
        if position > end or crc32c.crc32c(part) != crc:
            raise ProtocolError(f"the checksum of content {kind} is wrong")
        if kind < len(ORDER):
            found[ORDER[kind]] = part
        elif kind == _METADATA_KIND:
            event = decode_event(part)
            metadata = event if isinstance(event, RemoteLogSegmentMetadata) else None
    if metadata is None or position != end:
        raise ProtocolError("it does not say which segment it is")
    return metadata, found
