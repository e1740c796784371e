"""The header of a record batch, format version 2 (magic 2), and the checks that need no records.

The layout is big endian (KIP-98); the CRC-32C covers everything from the attributes to the end:

====== ==== ======================
offset size field
====== ==== ======================
0      8    base offset
8      4    batch length: bytes after this field
12     4    partition leader epoch
16     1    magic
17     4    CRC-32C
21     2    attributes
23     4    last offset delta
27     8    base timestamp (delete horizon when attribute bit 6 is set)
35     8    max timestamp
43     8    producer id
51     2    producer epoch
53     4    base sequence
57     4    record count
====== ==== ======================

The CRC does not cover the base offset and the leader epoch. A broker can therefore set these two fields and
leave the CRC unchanged.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from moldau.records.compression import Compression
from moldau.records.errors import CorruptRecordError, InvalidRecordError, OpenedSizeError
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.buffers import Buffer

__all__ = [
    "HEADER_SIZE_BYTES",
    "LOG_OVERHEAD_BYTES",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "RECORDS_PER_BATCH_MAX",
    "BatchHeader",
    "MutableBuffer",
    "TimestampType",
    "check_batch",
    "checked_headers",
    "claims_zstd",
    "is_transactional",
    "iter_headers",
    "next_sequence",
    "parse_header",
    "set_base_offset_and_epoch",
    "set_log_append_time",
    "validate_produce",
    "with_producer",
]

MutableBuffer: TypeAlias = bytearray | memoryview

HEADER_SIZE_BYTES = 61
LOG_OVERHEAD_BYTES = 12
"""Size of the base offset and the length field. The value of the length field counts only the bytes after
these two fields."""

RECORD_BYTES_MIN = 7
"""Minimum size of a record in bytes. Such a record has a length, attributes, two deltas, two more lengths and
the header count, with one byte each."""

RECORDS_PER_BATCH_MAX = 1_000_000
"""Maximum number of records in a batch, which is librdkafka's limit. It limits the work of opening a batch.
"""

MAGIC = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1

COMPRESSION_MASK = 0x07
CODEC_MAX = 4
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_HEADER = Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = Struct(">qi")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_PRODUCER = Struct(">qhi")

_LENGTH_AT = 8
_EPOCH_AT = 12
_MAGIC_AT = 16
_CRC_AT = 17
CHECKED_FROM = 21
_MAX_TIMESTAMP_AT = 35
_PRODUCER_AT = 43

_unpack_header = _HEADER.unpack_from
_new = tuple.__new__


class TimestampType(IntEnum):
    """The source of the records' timestamps. It is the producer, or the broker when the batch is appended."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def next_sequence(sequence: int, increment: int) -> int:
    """``sequence + increment``. After 2^31-1 the sequence continues at 0."""
    return (sequence + increment) & SEQUENCE_MAX


class BatchHeader(NamedTuple):
    """The header of a batch, which has a fixed size. Timestamps are in milliseconds since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, from its base offset to its last record."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record. It is -1 when the batch has no sequence number."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def compression(self) -> Compression:
        """Raises :class:`InvalidRecordError` for a codec number that Kafka does not define."""
        return Compression.of_id(self.attributes & COMPRESSION_MASK)

    @property
    def is_compressed(self) -> bool:
        """Whether the batch names a codec, known or unknown."""
        return bool(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(self.attributes >> 3 & 1)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """The earliest time to drop tombstones (KIP-534). If bit 6 is set, this time is in the field of the
        base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def unchecked_header(buffer: Buffer, position: int) -> BatchHeader:
    """Return the header at ``position`` without any check. At least 61 bytes must follow. This function is
    for loops over many batches.
    """
    return _new(BatchHeader, _unpack_header(buffer, position))


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``. The only check is that a whole header is present.

    Raises :class:`CorruptRecordError` when fewer than 61 bytes follow.
    """
    if position < 0 or len(buffer) - position < HEADER_SIZE_BYTES:
        raise CorruptRecordError(
            f"a batch header needs {HEADER_SIZE_BYTES} bytes, {max(0, len(buffer) - position)} are there"
        )
    return _new(BatchHeader, _unpack_header(buffer, position))


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Pairs ``(position, header)`` of each whole batch. An incomplete batch at the end ends the iteration.

    Raises :class:`CorruptRecordError` at a length or magic that no batch has. Checksums are not checked: see
    :func:`check_batch`.
    """
    size = len(buffer)
    while size - position >= LOG_OVERHEAD_BYTES:
        _, length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)
        if length < HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES:
            raise CorruptRecordError(f"batch length {length} at byte {position} is below the header's size")
        end = position + LOG_OVERHEAD_BYTES + length
        if end > size:
            return
        header = _new(BatchHeader, _unpack_header(buffer, position))
        if header.magic != MAGIC:
            raise CorruptRecordError(f"batch at byte {position} has magic {header.magic}, not {MAGIC}")
        yield position, header
        position = end


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at ``position`` after checking length, magic and CRC.

    Use it for bytes from another broker or from a disk. Raises :class:`CorruptRecordError` if one of these
    checks fails.
    """
    header = parse_header(buffer, position)
    length = header.batch_length
    end = position + LOG_OVERHEAD_BYTES + length
    if length < HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES or end > len(buffer):
        raise CorruptRecordError(
            f"batch at byte {position} says {length} bytes, {len(buffer) - position} are there"
        )
    if header.magic != MAGIC:
        raise CorruptRecordError(f"batch at byte {position} has magic {header.magic}, not {MAGIC}")
    computed = crc32c(memoryview(buffer)[position + CHECKED_FROM : end])
    if computed != header.crc:
        raise CorruptRecordError(
            f"batch at byte {position} (offset {header.base_offset}):"
            f" stored CRC {header.crc}, computed {computed}"
        )
    return header


def checked_headers(buffer: Buffer) -> list[BatchHeader]:
    """The headers of all whole batches, which follow each other without gaps. An incomplete batch at the end
    is ignored.

    Each batch is checked as :func:`check_batch` checks it, in half of the time. Raises
    :class:`CorruptRecordError`.
    """
    view = memoryview(buffer)
    size, position = len(view), 0
    headers: list[BatchHeader] = []
    while size - position >= HEADER_SIZE_BYTES:
        header = _new(BatchHeader, _unpack_header(view, position))
        end = position + LOG_OVERHEAD_BYTES + header.batch_length
        if not position + HEADER_SIZE_BYTES <= end <= size:
            break
        if header.magic != MAGIC or crc32c(view[position + CHECKED_FROM : end]) != header.crc:
            break
        headers.append(header)
        position = end
    # The other functions find out whether the remaining bytes are an incomplete batch or a wrong one.
    headers += [check_batch(view, at) for at, _ in iter_headers(view, position)]
    return headers


def validate_produce(buffer: Buffer, *, max_batch_bytes: int) -> list[BatchHeader]:
    """Check the bytes that a producer sent for one partition; return the headers (always one, as in Kafka).

    The table has the rules of Kafka's broker for the fields of the header, and the codes of refusals:

    ====================== =====================================================================
    field                  rule
    ====================== =====================================================================
    base offset            0, else ``INVALID_RECORD``
    batch length           exactly one whole batch, else ``INVALID_RECORD``; below the header's own
                           size ``CORRUPT_MESSAGE``; with the 12 bytes before it at most
                           ``max_batch_bytes`` (max.message.bytes), else ``MESSAGE_TOO_LARGE``
    partition leader epoch any; the leader writes its own
    magic                  2; 0 and 1 are ``INVALID_RECORD``, others ``CORRUPT_MESSAGE``
    CRC                    that of the bytes after it, else ``CORRUPT_MESSAGE``
    attributes 0-2         a codec that Kafka defines, else ``INVALID_RECORD``
    attributes 3           not LogAppendTime, else ``INVALID_TIMESTAMP``
    attributes 4           any; the partition decides whether a transaction may be appended
    attributes 5           no control batch, else ``INVALID_RECORD``
    attributes 6           any; the base timestamp is then read as the delete horizon
    attributes 7-15        any: unused bits are ignored, stored and given to consumers
    last offset delta      record count - 1, else ``INVALID_RECORD``
    base timestamp         any; the records' own timestamps are checked if the topic requires it
    max timestamp          by message.timestamp.after.max.ms (``storage/log/admission.py``)
    producer id            any; a negative one means no producer id
    producer epoch         at least -1 with a producer id, else ``INVALID_PRODUCER_EPOCH``
    base sequence          not negative with a producer id, else ``INVALID_RECORD``; else any
    record count           positive, else ``INVALID_RECORD``; in an uncompressed batch no more than
                           fit into its bytes; beyond a million ``MESSAGE_TOO_LARGE``
    ====================== =====================================================================

    Kafka differs in five points. It has no limit on the number of records. If a partial batch follows the
    first batch, Kafka drops the partial batch; this function raises ``INVALID_RECORD``, so that callers may
    append ``buffer`` unchanged. Kafka opens every batch and compares the count with the records; Moldau opens
    a batch only if the configuration of the topic requires this. Kafka answers an undefined codec with
    ``UNKNOWN_SERVER_ERROR``. In a topic with CreateTime, Kafka accepts LogAppendTime from a producer and
    clears the bit. The records would then get timestamps that their producer never set.
    """
    if len(buffer) < HEADER_SIZE_BYTES:
        raise _too_short(buffer)
    header = _new(BatchHeader, _unpack_header(buffer))
    size = header[1] + LOG_OVERHEAD_BYTES
    count = header[12]
    attributes = header[5]
    # These checks are a single expression, which is fast. They run for each produced batch.
    if (
        size != len(buffer)
        or header[3] != MAGIC
        or header[0] != 0
        or size > max_batch_bytes
        or crc32c(memoryview(buffer)[CHECKED_FROM:]) != header[4]
        or not 0 < count <= RECORDS_PER_BATCH_MAX
        or header[6] != count - 1
        or attributes & (CONTROL_BIT | TIMESTAMP_TYPE_BIT)
        or (header[9] >= 0 and (header[11] < 0 or header[10] < NO_PRODUCER_EPOCH))
        or attributes & COMPRESSION_MASK > CODEC_MAX
        or (count * RECORD_BYTES_MIN > size - HEADER_SIZE_BYTES and not attributes & COMPRESSION_MASK)
    ):
        _explain_refusal(buffer, header, max_batch_bytes)
    return [header]


def is_transactional(batch: Buffer) -> bool:
    """Whether the bit of transactions is set in the batch header in these bytes. The bytes were not checked,
    so possibly they are not a batch."""
    return len(batch) >= HEADER_SIZE_BYTES and bool(batch[CHECKED_FROM + 1] & TRANSACTIONAL_BIT)


def claims_zstd(batch: Buffer) -> bool:
    """Whether the batch header in these bytes names the codec zstd, which clients support since KIP-110. The
    bytes were not checked, so possibly they are not a batch."""
    return len(batch) >= HEADER_SIZE_BYTES and batch[CHECKED_FROM + 1] & COMPRESSION_MASK == CODEC_MAX


def _too_short(buffer: Buffer) -> KafkaError:
    size = len(buffer)
    if size > _MAGIC_AT:
        magic = memoryview(buffer)[_MAGIC_AT]
        if magic < MAGIC:
            return InvalidRecordError(f"only batches of magic {MAGIC} are accepted, this one has {magic}")
        if magic > MAGIC:
            return CorruptRecordError(f"unknown magic {magic}")
    if size >= LOG_OVERHEAD_BYTES:
        _, length = _OFFSET_AND_LENGTH.unpack_from(buffer)
        if length < HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES:
            return CorruptRecordError(f"batch length {length} is below the header's size")
    return InvalidRecordError(f"{size} bytes hold no whole record batch; a partition needs one")


def _explain_refusal(buffer: Buffer, header: BatchHeader, max_batch_bytes: int) -> None:
    """Raise the error for a batch that failed the fast check. The rules are checked in Kafka's order."""
    _refuse_framing(buffer, header, max_batch_bytes)
    count = header.records_count
    if header.last_offset_delta < 0 or count <= 0 or header.last_offset_delta != count - 1:
        raise InvalidRecordError(
            f"{count} records do not fit offsets 0 to {header.last_offset_delta} of the batch"
        )
    if count > RECORDS_PER_BATCH_MAX:
        raise OpenedSizeError(f"the batch has {count} records, {RECORDS_PER_BATCH_MAX} are allowed")
    if header.is_control:
        raise InvalidRecordError("clients are not allowed to write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise InvalidRecordError(
            f"producer {header.producer_id} sent a batch with sequence number {header.base_sequence}"
        )
    if header.has_producer_id and header.producer_epoch < NO_PRODUCER_EPOCH:
        raise KafkaError(
            ErrorCode.invalid_producer_epoch,
            f"producer {header.producer_id} sent a batch with epoch {header.producer_epoch}",
        )
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise KafkaError(
            ErrorCode.invalid_timestamp, "producers must not set the timestamp type LogAppendTime"
        )
    # The property ``header.compression`` raises the error for a codec that Kafka does not define.
    if header.compression is Compression.NONE and count * RECORD_BYTES_MIN > len(buffer) - HEADER_SIZE_BYTES:
        raise InvalidRecordError(
            f"{count} records do not fit in the {len(buffer) - HEADER_SIZE_BYTES} bytes of the batch"
        )
    raise AssertionError(f"the fast check refused a batch that breaks no rule: {header}")


def _refuse_framing(buffer: Buffer, header: BatchHeader, max_batch_bytes: int) -> None:
    size = header.size_bytes
    if size < HEADER_SIZE_BYTES:
        raise CorruptRecordError(f"batch length {header.batch_length} is below the header's size")
    if header.magic != MAGIC:
        if 0 <= header.magic < MAGIC:
            raise InvalidRecordError(
                f"only batches of magic {MAGIC} are accepted, this one has {header.magic}"
            )
        raise CorruptRecordError(f"unknown magic {header.magic}")
    if size > len(buffer):
        raise InvalidRecordError(f"the batch says {size} bytes, {len(buffer)} are there")
    if size < len(buffer):
        raise InvalidRecordError("a partition takes exactly one record batch in a produce request")
    if header.base_offset != 0:
        raise InvalidRecordError(f"base offset of a produced batch must be 0, not {header.base_offset}")
    if size > max_batch_bytes:
        raise KafkaError(
            ErrorCode.message_too_large, f"the batch has {size} bytes, the topic allows {max_batch_bytes}"
        )
    computed = crc32c(memoryview(buffer)[CHECKED_FROM:size])
    if computed != header.crc:
        raise CorruptRecordError(f"stored CRC {header.crc}, computed {computed}")


def set_base_offset_and_epoch(
    buffer: MutableBuffer, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Write the two fields that a leader assigns. The CRC does not cover them, so it stays valid."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + _EPOCH_AT, leader_epoch)


def set_log_append_time(buffer: MutableBuffer, position: int, append_time_ms: int) -> int:
    """Make ``append_time_ms`` the timestamp of every record. Returns the new CRC.

    Sets the timestamp type bit and the max timestamp. The max timestamp is then the timestamp of all records.
    The batch must be whole (checked by ``parse_header`` or ``iter_headers``).
    """
    (length,) = _EPOCH.unpack_from(buffer, position + _LENGTH_AT)
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + CHECKED_FROM)
    _ATTRIBUTES.pack_into(buffer, position + CHECKED_FROM, attributes | TIMESTAMP_TYPE_BIT)
    _OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_AT, append_time_ms)
    end = position + LOG_OVERHEAD_BYTES + length
    checksum: int = crc32c(memoryview(buffer)[position + CHECKED_FROM : end])
    _CRC.pack_into(buffer, position + _CRC_AT, checksum)
    return checksum


def with_producer(batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """A copy of a whole batch as a transactional batch of this producer. The CRC is computed again."""
    copy = bytearray(batch)
    (attributes,) = _ATTRIBUTES.unpack_from(copy, CHECKED_FROM)
    _ATTRIBUTES.pack_into(copy, CHECKED_FROM, attributes | TRANSACTIONAL_BIT)
    _PRODUCER.pack_into(copy, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(copy, _CRC_AT, crc32c(memoryview(copy)[CHECKED_FROM:]))
    return bytes(copy)
