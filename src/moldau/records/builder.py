"""Builds record batches for coordinators, the controller, the compactor and tests."""

from collections.abc import Sequence
from struct import Struct

from crc32c import crc32c

from moldau.records.batch import (
    CONTROL_BIT,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    TimestampType,
)
from moldau.records.compression import Compression, compress
from moldau.records.record import Headers, Record
from moldau.records.varint import encode_varint

__all__ = ["build_batch", "encode_record"]

_BEFORE_CRC = Struct(">qiibI")
_AFTER_CRC = Struct(">hiqqqhii")
_NULL = encode_varint(-1)


def encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    """The encoding of one record in a batch. The encoding begins with the length of the record."""
    parts = [
        b"\x00",
        encode_varint(timestamp_delta),
        encode_varint(offset_delta),
        _NULL if key is None else encode_varint(len(key)),
        key or b"",
        _NULL if value is None else encode_varint(len(value)),
        value or b"",
        encode_varint(len(headers)),
    ]
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        parts.append(encode_varint(len(encoded)))
        parts.append(encoded)
        if content is None:
            parts.append(_NULL)
        else:
            parts.append(encode_varint(len(content)))
            parts.append(content)
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    keep_offsets: bool = False,
    last_offset: int | None = None,
) -> bytes:
    """A whole batch.

    Records are numbered from ``base_offset`` in their order, and their own offsets are ignored. The compactor
    passes ``keep_offsets`` and ``last_offset``. With ``keep_offsets``, the deltas come from the records' own
    offsets, and gaps are allowed. ``last_offset`` is the original batch's last offset. It must not change
    when the last records are removed. Raises ``ValueError`` if offsets do not ascend in the batch's range.
    """
    base_timestamp = max_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    encoded = []
    delta = -1
    for index, record in enumerate(records):
        previous, delta = delta, (record.offset - base_offset if keep_offsets else index)
        if delta <= previous:
            raise ValueError(
                f"offset {record.offset} does not ascend in a batch that starts at {base_offset}"
            )
        max_timestamp = max(max_timestamp, record.timestamp)
        encoded.append(
            encode_record(delta, record.timestamp - base_timestamp, record.key, record.value, record.headers)
        )
    last_offset_delta = max(delta, 0) if last_offset is None else last_offset - base_offset
    if last_offset_delta < delta or last_offset_delta < 0:
        raise ValueError(f"last offset {last_offset} lies before a record of the batch")
    payload = b"".join(encoded)
    if compression is not Compression.NONE and records:
        payload = compress(compression, payload, compression_level)
    attributes = (
        compression
        | (TIMESTAMP_TYPE_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
    )
    after_crc = _AFTER_CRC.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    length = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    checksum = crc32c(payload, crc32c(after_crc))
    return _BEFORE_CRC.pack(base_offset, length, leader_epoch, MAGIC, checksum) + after_crc + payload
