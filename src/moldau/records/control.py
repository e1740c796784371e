"""Control records. They are markers and metadata that brokers and controllers write into a log.

The key is a version (int16) and a type (int16). The value depends on the type. Transaction markers have a
plain layout (KIP-98). The quorum's records (KIP-595, 630, 853) are flexible-version messages whose first
field repeats their version.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from struct import error as StructError

from moldau.records.builder import build_batch
from moldau.records.errors import InvalidRecordError
from moldau.records.record import Record
from moldau.records.varint import encode_unsigned_varint

__all__ = [
    "ControlType",
    "EndTransactionMarker",
    "KRaftVersion",
    "LeaderChange",
    "RecordedVoter",
    "RecordedVoters",
    "SnapshotFooter",
    "SnapshotHeader",
    "SnapshotOrigin",
    "VoterEndpoint",
    "VotersRecordEntry",
    "build_control_batch",
    "build_end_transaction_marker",
    "control_key",
    "parse_control_record",
    "parse_control_type",
]


class ControlType(IntEnum):
    """The type in a control record's key. Records of types that are not listed here must be ignored."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


NO_DIRECTORY = uuid.UUID(int=0)

_KEY = Struct(">hh")
_MARKER = Struct(">hi")
_INT16 = Struct(">h")
_UINT16 = Struct(">H")
_INT32 = Struct(">i")
_HEADER = Struct(">hq")
_ORIGIN = Struct(">16siqi")
_ORIGIN_TAG = 11640
"""A number for a tag that only Moldau uses. Kafka numbers the tags of a message from 0 on, and will not reach
this number."""
_NO_TAGS = b"\x00"


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The end of a transaction in one partition. The coordinator writes it with its ``coordinator_epoch``."""

    committed: bool
    coordinator_epoch: int

    @property
    def control_type(self) -> ControlType:
        return ControlType.COMMIT if self.committed else ControlType.ABORT

    def encode(self) -> bytes:
        return _MARKER.pack(0, self.coordinator_epoch)


@dataclass(frozen=True, slots=True)
class RecordedVoter:
    """A voter in a leader change. The directory id is written in version 1 and later (KIP-853)."""

    voter_id: int
    directory_id: uuid.UUID = NO_DIRECTORY


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The first record of a leader's epoch.

    Leave ``version`` at 0, because Kafka up to 4.2 reads every leader change as version 0 and fails on
    another version.
    """

    leader_id: int
    voters: tuple[RecordedVoter, ...] = ()
    granting_voters: tuple[RecordedVoter, ...] = ()
    version: int = 0

    @property
    def control_type(self) -> ControlType:
        return ControlType.LEADER_CHANGE

    def encode(self) -> bytes:
        parts = [_INT16.pack(self.version), _INT32.pack(self.leader_id)]
        for voters in (self.voters, self.granting_voters):
            parts.append(encode_unsigned_varint(len(voters) + 1))
            for voter in voters:
                parts.append(_INT32.pack(voter.voter_id))
                if self.version >= 1:
                    parts.append(voter.directory_id.bytes)
                parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class SnapshotOrigin:
    """The log of a snapshot, and the position of the snapshot in this log. Only Moldau's own writers store
    this information.

    ``topic_id`` is zero when it is not known.
    """

    topic: str
    partition: int
    topic_id: uuid.UUID
    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The first record of a snapshot (KIP-630). ``origin`` is Moldau's own tagged field, which Kafka skips. A
    snapshot of another writer has no ``origin``."""

    last_contained_log_timestamp: int
    version: int = 0
    origin: SnapshotOrigin | None = None

    @property
    def control_type(self) -> ControlType:
        return ControlType.SNAPSHOT_HEADER

    def encode(self) -> bytes:
        head = _HEADER.pack(self.version, self.last_contained_log_timestamp)
        if self.origin is None:
            return head + _NO_TAGS
        origin = self.origin
        content = _ORIGIN.pack(origin.topic_id.bytes, origin.partition, origin.end_offset, origin.epoch)
        content += origin.topic.encode()
        tag = encode_unsigned_varint(_ORIGIN_TAG) + encode_unsigned_varint(len(content))
        return head + encode_unsigned_varint(1) + tag + content


@dataclass(frozen=True, slots=True)
class SnapshotFooter:
    """The last record of a snapshot. Without it the snapshot is incomplete."""

    version: int = 0

    @property
    def control_type(self) -> ControlType:
        return ControlType.SNAPSHOT_FOOTER

    def encode(self) -> bytes:
        return _INT16.pack(self.version) + _NO_TAGS


@dataclass(frozen=True, slots=True)
class KRaftVersion:
    """The version of the quorum's protocol: 0 with static voters, 1 with the voters of
    :class:`RecordedVoters`."""

    kraft_version: int
    version: int = 0

    @property
    def control_type(self) -> ControlType:
        return ControlType.KRAFT_VERSION

    def encode(self) -> bytes:
        return _INT16.pack(self.version) + _INT16.pack(self.kraft_version) + _NO_TAGS


@dataclass(frozen=True, slots=True)
class VoterEndpoint:
    """The address at which a voter listens, by listener name."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class VotersRecordEntry:
    """One voter of the set, with its endpoints and the range of kraft.version that it supports."""

    voter_id: int
    directory_id: uuid.UUID
    endpoints: tuple[VoterEndpoint, ...]
    min_supported_version: int = 0
    max_supported_version: int = 1


@dataclass(frozen=True, slots=True)
class RecordedVoters:
    """The quorum's voters (KIP-853). This set of voters is valid from the offset of this record on."""

    voters: tuple[VotersRecordEntry, ...]
    version: int = 0

    @property
    def control_type(self) -> ControlType:
        return ControlType.KRAFT_VOTERS

    def encode(self) -> bytes:
        parts = [_INT16.pack(self.version), encode_unsigned_varint(len(self.voters) + 1)]
        for voter in self.voters:
            parts += [_INT32.pack(voter.voter_id), voter.directory_id.bytes]
            parts.append(encode_unsigned_varint(len(voter.endpoints) + 1))
            for endpoint in voter.endpoints:
                parts += [
                    _string(endpoint.name),
                    _string(endpoint.host),
                    _UINT16.pack(endpoint.port),
                    _NO_TAGS,
                ]
            parts += [_INT16.pack(voter.min_supported_version), _INT16.pack(voter.max_supported_version)]
            # The range of versions and the voter end with empty lists of tagged fields.
            parts += [_NO_TAGS, _NO_TAGS]
        parts.append(_NO_TAGS)
        return b"".join(parts)


ControlRecord = (
    EndTransactionMarker | LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | RecordedVoters
)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return encode_unsigned_varint(len(encoded) + 1) + encoded


def control_key(content: ControlRecord) -> bytes:
    """The key of a control record."""
    return _KEY.pack(0, content.control_type)


def build_control_batch(
    contents: list[ControlRecord],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    transactional: bool = False,
) -> bytes:
    """A control batch of the given records. It is uncompressed, as in Kafka."""
    records = [Record(0, timestamp, control_key(content), content.encode()) for content in contents]
    return build_batch(
        records,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
        control=True,
    )


def build_end_transaction_marker(
    producer_id: int,
    producer_epoch: int,
    *,
    committed: bool,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The batch that ends a producer's transaction in a partition."""
    return build_control_batch(
        [EndTransactionMarker(committed, coordinator_epoch)],
        timestamp=timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
    )


def parse_control_type(key: bytes | None) -> ControlType:
    """The type in a control record's key. It is UNKNOWN for a type of a newer version.

    Raises :class:`InvalidRecordError` if the key is not the key of a control record.
    """
    if key is None or len(key) < _KEY.size:
        raise InvalidRecordError(f"the key of a control record has {_KEY.size} bytes, not {len(key or b'')}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordError(f"version {version} in the key of a control record")
    if ControlType.ABORT <= number <= ControlType.KRAFT_VOTERS:
        return ControlType(number)
    return ControlType.UNKNOWN


def parse_control_record(record: Record) -> ControlRecord | None:
    """Parse a control record. Returns None for a type that this version does not support, because such a type
    must be ignored.

    Raises :class:`InvalidRecordError` for a value that does not fit its type.
    """
    control_type = parse_control_type(record.key)
    value = record.value or b""
    try:
        return _PARSERS[control_type](_FieldReader(value)) if control_type in _PARSERS else None
    except (StructError, IndexError, ValueError) as error:
        raise InvalidRecordError(
            f"value of a {control_type.name} control record is malformed: {error}"
        ) from None


class _FieldReader:
    """Reads the fields of a value. A field beyond the end raises IndexError, ValueError or struct.error."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        (version,) = _INT16.unpack_from(data)
        if version < 0:
            raise ValueError(f"version {version}")
        self.version: int = version
        self._position = _INT16.size

    def number(self, layout: Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return int(value)

    def unsigned_varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("varint of more than 32 bits")

    def read(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes wanted, {len(self._data) - self._position} left")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def string(self) -> str:
        return self.read(self.unsigned_varint() - 1).decode()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.read(16))

    def count(self) -> int:
        """Length of a compact array. Each of its elements takes at least a byte."""
        count = self.unsigned_varint() - 1
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError(f"array of {count} elements")
        return count

    def skip_tags(self) -> None:
        self.tag(-1)

    def tag(self, wanted: int) -> bytes | None:
        """Read all tagged fields. Returns the content of the field with the tag ``wanted``, or None if there
        is no such field."""
        content = None
        for _ in range(self.unsigned_varint()):
            number = self.unsigned_varint()
            found = self.read(self.unsigned_varint())
            content = found if number == wanted else content
        return content


def _read_leader_change(reader: _FieldReader) -> LeaderChange:
    leader_id = reader.number(_INT32)
    groups = []
    for _ in range(2):
        voters = []
        for _ in range(reader.count()):
            voter_id = reader.number(_INT32)
            voters.append(RecordedVoter(voter_id, reader.uuid() if reader.version >= 1 else NO_DIRECTORY))
            reader.skip_tags()
        groups.append(tuple(voters))
    reader.skip_tags()
    return LeaderChange(leader_id, groups[0], groups[1], reader.version)


def _read_snapshot_header(reader: _FieldReader) -> SnapshotHeader:
    timestamp_ms = reader.number(_INT64)
    content = reader.tag(_ORIGIN_TAG)
    if content is None:
        return SnapshotHeader(timestamp_ms, reader.version)
    topic_id, partition, end_offset, epoch = _ORIGIN.unpack_from(content)
    topic = content[_ORIGIN.size :].decode()
    origin = SnapshotOrigin(topic, partition, uuid.UUID(bytes=topic_id), end_offset, epoch)
    return SnapshotHeader(timestamp_ms, reader.version, origin)


def _read_voters(reader: _FieldReader) -> RecordedVoters:
    voters = []
    for _ in range(reader.count()):
        voter_id = reader.number(_INT32)
        directory_id = reader.uuid()
        endpoints = []
        for _ in range(reader.count()):
            endpoints.append(VoterEndpoint(reader.string(), reader.string(), reader.number(_UINT16)))
            reader.skip_tags()
        low = reader.number(_INT16)
        high = reader.number(_INT16)
        reader.skip_tags()
        reader.skip_tags()
        voters.append(VotersRecordEntry(voter_id, directory_id, tuple(endpoints), low, high))
    reader.skip_tags()
    return RecordedVoters(tuple(voters), reader.version)


_INT64 = Struct(">q")
_PARSERS: dict[ControlType, Callable[[_FieldReader], ControlRecord]] = {
    ControlType.ABORT: lambda reader: EndTransactionMarker(False, reader.number(_INT32)),
    ControlType.COMMIT: lambda reader: EndTransactionMarker(True, reader.number(_INT32)),
    ControlType.LEADER_CHANGE: _read_leader_change,
    ControlType.SNAPSHOT_HEADER: _read_snapshot_header,
    ControlType.SNAPSHOT_FOOTER: lambda reader: SnapshotFooter(reader.version),
    ControlType.KRAFT_VERSION: lambda reader: KRaftVersion(reader.number(_INT16), reader.version),
    ControlType.KRAFT_VOTERS: _read_voters,
}
