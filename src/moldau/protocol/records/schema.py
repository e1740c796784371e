"""Records whose bodies are messages: KRaft's framed records, and the coordinators' keys and values.

Records of these two kinds are declared as message classes (see ``schema``) with ``API_KEY`` as their type:

* ``FramedRecords``: a record value of unsigned varints (frame version 1, type, version) and the body. Kafka's
  metadata records have this form, and so do the records of some of Moldau's own logs.
* ``KeyedRecords``: a key of int16 type and body, and a value of int16 version and body. They are records of
  the coordinators' logs (``__consumer_offsets``, ``__transaction_state``, ...), which are compacted by key.
"""

from moldau.protocol.compiler.decoding import decode_from
from moldau.protocol.compiler.encoding import encoder
from moldau.protocol.compiler.primitives import read_uvarint, uvarint
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.schema import Message, VersionRange, parse_versions
from moldau.runtime.buffers import Buffer

FRAME_VERSION = 1


def latest_version(cls: type[Message]) -> int:
    """The highest version that a class declares."""
    return parse_versions(cls.VERSIONS).max


def _encode(record: Message, version: int) -> bytes:
    if version not in parse_versions(record.VERSIONS):
        raise ValueError(f"{type(record).__name__} has no version {version}")
    return b"".join(encoder(type(record), version)(record))


def _decode(cls: type[Message], version: int, buffer: Buffer, position: int) -> Message:
    if version not in parse_versions(cls.VERSIONS):
        raise ProtocolError(f"{cls.__name__} has no version {version} (it has {cls.VERSIONS})")
    record, end = decode_from(cls, version, buffer, position)
    if end != len(buffer):
        raise ProtocolError(f"{cls.__name__} v{version}: {len(buffer) - end} bytes are left over")
    return record


class FramedRecords:
    """Encodes and decodes a family of framed records."""

    def __init__(self, *classes: type[Message]) -> None:
        self._classes: dict[int, type[Message]] = {}
        for cls in classes:
            self.register(cls)

    def register(self, cls: type[Message]) -> None:
        """Add a type of record. Its number must not be in use yet."""
        if cls.API_KEY in self._classes:
            raise ValueError(f"record type {cls.API_KEY} is taken by {self._classes[cls.API_KEY].__name__}")
        self._classes[cls.API_KEY] = cls

    @property
    def classes(self) -> tuple[type[Message], ...]:
        """All types of record."""
        return tuple(self._classes.values())

    def encode(self, record: Message, version: int | None = None) -> bytes:
        """The record's value. It has the newest version unless ``version`` is given."""
        version = latest_version(type(record)) if version is None else version
        frame = uvarint(FRAME_VERSION) + uvarint(record.API_KEY) + uvarint(version)
        return frame + _encode(record, version)

    def decode(self, value: Buffer) -> Message:
        """Read a record's value. Raises ProtocolError for malformed bytes, and for an unknown type
        or version."""
        record, _ = self.decode_versioned(value)
        return record

    def decode_versioned(self, value: Buffer) -> tuple[Message, int]:
        """Read a record's value. Returns the record and the version in which it was written."""
        try:
            frame_version, position = read_uvarint(value, 0)
            record_type, position = read_uvarint(value, position)
            version, position = read_uvarint(value, position)
        except IndexError as error:
            raise ProtocolError("a record is shorter than its frame") from error
        if frame_version != FRAME_VERSION:
            raise ProtocolError(f"a record has frame version {frame_version}, not {FRAME_VERSION}")
        cls = self._classes.get(record_type)
        if cls is None:
            raise ProtocolError(f"record type {record_type} is not known")
        return _decode(cls, version, value, position), version


class UnknownRecordTypeError(ProtocolError):
    """The key has a type that this version does not know. A reader skips the record, as Kafka does."""


class KeyedRecords:
    """Encodes and decodes a coordinator's records: pairs of a key class and its value class."""

    def __init__(self, *pairs: tuple[type[Message], type[Message]]) -> None:
        self._pairs = {key.API_KEY: (key, value) for key, value in pairs}

    @property
    def pairs(self) -> tuple[tuple[type[Message], type[Message]], ...]:
        """All types of record: (key class, value class)."""
        return tuple(self._pairs.values())

    def encode_key(self, key: Message) -> bytes:
        """Encode int16 type and body. Keys have only one version."""
        return key.API_KEY.to_bytes(2, "big") + _encode(key, 0)

    def encode_value(self, value: Message, version: int | None = None) -> bytes:
        """Encode int16 version and body. The version is the newest unless ``version`` is given."""
        version = latest_version(type(value)) if version is None else version
        return version.to_bytes(2, "big") + _encode(value, version)

    def decode_key(self, key: Buffer) -> Message:
        """Read a key. Raises UnknownRecordTypeError for an unknown type, and ProtocolError for malformed
        bytes.
        """
        return _decode(self._of(key)[0], 0, key, 2)

    def decode_value(self, key: Buffer | Message, value: Buffer) -> Message:
        """Read the value that belongs to ``key``. The key is given as bytes or decoded."""
        number = key.API_KEY if isinstance(key, Message) else self._of(key)[0].API_KEY
        if len(value) < 2:
            raise ProtocolError("a record value is shorter than its version")
        version = int.from_bytes(value[:2], "big", signed=True)
        return _decode(self._pairs[number][1], version, value, 2)

    def decode(self, key: Buffer, value: Buffer | None) -> tuple[Message, Message | None]:
        """Read a record. The value is None for a tombstone."""
        decoded = self.decode_key(key)
        return decoded, None if value is None else self.decode_value(decoded, value)

    def _of(self, key: Buffer) -> tuple[type[Message], type[Message]]:
        if len(key) < 2:
            raise ProtocolError("a record key is shorter than its type")
        number = int.from_bytes(key[:2], "big", signed=True)
        pair = self._pairs.get(number)
        if pair is None:
            raise UnknownRecordTypeError(f"record type {number} is not known")
        return pair


def encode_versioned(data: Message, version: int | None = None) -> bytes:
    """Encode int16 version and body. The consumer protocol's subscriptions and assignments have this form."""
    version = latest_version(type(data)) if version is None else version
    return version.to_bytes(2, "big") + _encode(data, version)


def decode_versioned(cls: type[Message], buffer: Buffer, *, lenient: bool = True) -> Message:
    """Read int16 version and body.

    With ``lenient``, a version above the newest version is read as the newest version, and trailing bytes are
    ignored. The consumer protocol requires this, because its later versions only append fields.
    """
    if len(buffer) < 2:
        raise ProtocolError(f"{cls.__name__}: shorter than its version")
    version = int.from_bytes(buffer[:2], "big", signed=True)
    known: VersionRange = parse_versions(cls.VERSIONS)
    if not lenient:
        return _decode(cls, version, buffer, 2)
    if version < known.min:
        raise ProtocolError(f"{cls.__name__} has no version {version}")
    return decode_from(cls, min(version, known.max), buffer, 2)[0]
