"""Replays committed offsets while a coordinator loads its log, without an object for each record. Pure.

A log may have a million records of committed offsets, and nearly all of them have one of a few forms. The
records of a commit follow each other, and usually differ only in the partition, the numbers, and the offset
delta. :class:`OffsetRuns` finds the form of the first record, and reads the following records with one
``Struct`` while they have the same form. Records of all other forms (tombstones, groups, older versions,
unreadable records) are left to the codec.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

from moldau.coordinators.groups.offsets.packing import NO_TOPIC_ID, WITHOUT_EXPIRY, pack_fixed
from moldau.coordinators.groups.offsets.store import OffsetStore, PackedByPartition
from moldau.coordinators.shard import ReplayedRun
from moldau.records.batch import BatchHeader
from moldau.records.errors import InvalidRecordError
from moldau.records.varint import read_varlong

_KEY_TYPES: Final = (b"\0\0", b"\0\1")
"""Types of keys of committed offsets."""
_VERSION_3: Final = b"\0\3"
_VERSION_4: Final = b"\0\4"
_METADATA_SIZE_AT: Final = 14
"""The position of the metadata's size in values of these versions."""
_TEXT_BYTES_MAX: Final = 32767
_COMPACT_BYTES_MAX: Final = 126
"""Maximum size of metadata whose size takes one byte in version 4."""
_TIMESTAMP_BYTES_MAX: Final = 9
_DELTA_BYTES_MAX: Final = 3
_TOPIC_ID_TAG: Final = b"\1\0\x10"
"""One tagged field with the number 0 and 16 bytes."""
_DELTAS_MAX: Final = 1 << 14


class _Form(NamedTuple):
    """The form of a record. All records of a form have the same size, and the same bytes in these fields."""

    struct: Struct
    head: bytes
    """The record's length, attributes and timestamp delta."""
    key_size: bytes
    """The length of the key."""
    group_size: int
    topic_size: int
    value_head: bytes
    """The value's length and version."""
    metadata_size: bytes
    tail: bytes
    """The tagged fields of the value, and the number of headers."""
    topic_id: bytes


class OffsetRuns:
    """Replays runs of records of committed offsets into a store."""

    def __init__(self, store: OffsetStore, ensure_group: Callable[[str], None]) -> None:
        """``ensure_group`` is called with the group of each commit."""
        self._store = store
        self._ensure_group = ensure_group
        self._form: _Form | None = None
        """The form of the last run. The next run often has the same form."""
        self._deltas: dict[bytes, int] = {}
        """Offset deltas by their encodings."""
        self._partitions: dict[int, int] = {}
        """Numbers of partitions. Equal numbers of all groups are one object, which saves memory."""

    def replay_run(
        self, header: BatchHeader, data: bytes, position: int, count_max: int
    ) -> ReplayedRun | None:
        """Replay records of one form; see ``RunReplay``."""
        run = None
        if self._form is not None:
            run = self._replay(self._form, header, data, position, count_max)
        if run is None:
            form = _form_at(data, position)
            if form is not None and form != self._form:
                self._form = form
                run = self._replay(form, header, data, position, count_max)
        return run

    def _replay(
        self, form: _Form, header: BatchHeader, data: bytes, position: int, count_max: int
    ) -> ReplayedRun | None:
        form_head, form_value_head, form_tail = form.head, form.value_head, form.tail
        form_metadata_size, topic_id, size = form.metadata_size, form.topic_id, form.struct.size
        base_offset, deltas, partitions = header.base_offset, self._deltas, self._partitions
        count, record_offset, key_head = 0, -1, b""
        offsets: PackedByPartition = {}
        records = min(count_max, (len(data) - position) // size)
        rows: Iterator[tuple[Any, ...]] = form.struct.iter_unpack(
            memoryview(data)[position : position + records * size]
        )
        for (
            head, delta, record_key_head, partition, value_head, offset, leader_epoch,
            metadata_size, metadata, timestamp, tail,
        ) in rows:  # fmt: skip
            if (
                head != form_head
                or value_head != form_value_head
                or tail != form_tail
                or metadata_size != form_metadata_size
            ):
                break
            number = deltas.get(delta)
            if number is None and (number := self._delta(delta)) is None:
                break
            if metadata and not _is_text(metadata):
                break
            if record_key_head != key_head:
                names = _names(form, record_key_head)
                if names is None:
                    break
                key_head = record_key_head
                self._ensure_group(names[0])
                offsets = self._store.offsets_for(*names, header.producer_id, header.is_transactional)
            record_offset = base_offset + number
            packed = pack_fixed(record_offset, offset, timestamp, leader_epoch) + topic_id
            if metadata:
                packed = b"".join((packed, b"" if topic_id else NO_TOPIC_ID, WITHOUT_EXPIRY, metadata))
            offsets[partitions.setdefault(partition, partition)] = packed
            count += 1
        return ReplayedRun(count, position + count * size, record_offset) if count else None

    def _delta(self, encoded: bytes) -> int | None:
        try:
            number, end = read_varlong(encoded, 0, 32)
        except (IndexError, InvalidRecordError):
            return None
        if end != len(encoded) or number < 0:
            return None
        if len(self._deltas) >= _DELTAS_MAX:
            self._deltas.clear()
        self._deltas[encoded] = number
        return number


def _is_text(metadata: bytes) -> bool:
    try:
        metadata.decode()
    except UnicodeDecodeError:
        return False
    return True


def _names(form: _Form, key_head: bytes) -> tuple[str, str] | None:
    """The group and the topic of a key. ``key_head`` is the key with its length and without its partition.
    The result is ``None`` if the key does not have the form."""
    type_at = len(form.key_size)
    group_at = type_at + 4
    topic_at = group_at + form.group_size + 2
    if (
        key_head[:type_at] != form.key_size
        or key_head[type_at : type_at + 2] not in _KEY_TYPES
        or int.from_bytes(key_head[type_at + 2 : group_at], "big") != form.group_size
        or int.from_bytes(key_head[topic_at - 2 : topic_at], "big") != form.topic_size
    ):
        return None
    try:
        return key_head[group_at : topic_at - 2].decode(), key_head[topic_at:].decode()
    except UnicodeDecodeError:
        return None


def _form_at(data: bytes, position: int) -> _Form | None:
    """Return the form of the record at ``position``; ``None`` if it is not a frequent form."""
    try:
        return _read_form(data, position)
    except (IndexError, InvalidRecordError):
        return None


def _read_form(data: bytes, start: int) -> _Form | None:
    size, attributes_at = read_varlong(data, start, 32)
    delta_at = _after_varint(data, attributes_at + 1)
    key_size_at = _after_varint(data, delta_at)
    key_size, key_at = read_varlong(data, key_size_at, 32)
    if data[key_at : key_at + 2] not in _KEY_TYPES:
        return None
    group_size = int.from_bytes(data[key_at + 2 : key_at + 4], "big")
    topic_at = key_at + 4 + group_size + 2
    topic_size = int.from_bytes(data[topic_at - 2 : topic_at], "big")
    partition_at = topic_at + topic_size
    value_size, value_at = read_varlong(data, partition_at + 4, 32)
    value_end = value_at + value_size
    version, metadata_size_at = data[value_at : value_at + 2], value_at + _METADATA_SIZE_AT
    if version == _VERSION_3:
        metadata_at = metadata_size_at + 2
        metadata_size = int.from_bytes(data[metadata_size_at:metadata_at], "big")
        is_short = metadata_size <= _TEXT_BYTES_MAX
    else:
        metadata_at = metadata_size_at + 1
        metadata_size = data[metadata_size_at] - 1
        is_short = 0 <= metadata_size <= _COMPACT_BYTES_MAX
    if not (
        is_short
        and max(group_size, topic_size) <= _TEXT_BYTES_MAX
        and delta_at - attributes_at - 1 <= _TIMESTAMP_BYTES_MAX
        and key_size_at - delta_at <= _DELTA_BYTES_MAX
        and key_size == partition_at + 4 - key_at
        and size == value_end + 1 - attributes_at
    ):
        return None
    tags_at = metadata_at + metadata_size + 8
    tail = data[tags_at : value_end + 1]
    topic_id = _topic_id(version, tail[:-1])
    if topic_id is None or tail[-1]:
        return None
    return _Form(
        _struct(
            delta_at - start,
            key_size_at - delta_at,
            partition_at - key_size_at,
            value_at + 2 - partition_at - 4,
            metadata_at - metadata_size_at,
            metadata_size,
            len(tail),
        ),
        data[start:delta_at],
        data[key_size_at:key_at],
        group_size,
        topic_size,
        data[partition_at + 4 : value_at + 2],
        data[metadata_size_at:metadata_at],
        tail,
        topic_id,
    )


@lru_cache(1024)
def _struct(head: int, delta: int, key: int, value_head: int, size: int, metadata: int, tail: int) -> Struct:
    """Unpacks the records of a form. The arguments are the sizes of its fields in bytes, except numbers."""
    return Struct(f">{head}s{delta}s{key}si{value_head}sqi{size}s{metadata}sq{tail}s")


def _after_varint(data: bytes, position: int) -> int:
    while data[position] >= 0x80:
        position += 1
    return position + 1


def _topic_id(version: bytes, tags: bytes) -> bytes | None:
    """The topic id in the tagged fields of a value, or no bytes. The result is ``None`` if the fields are not
    those of a frequent form."""
    if (version, tags) in ((_VERSION_3, b""), (_VERSION_4, b"\0")):
        return b""
    if version != _VERSION_4 or len(tags) != len(_TOPIC_ID_TAG) + 16 or tags[:3] != _TOPIC_ID_TAG:
        return None
    return tags[len(_TOPIC_ID_TAG) :]
