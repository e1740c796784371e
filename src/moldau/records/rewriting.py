"""Rewrites a batch after compaction has removed some of its records.

The fields that describe the whole batch are kept: its offsets, its leader epoch, its producer's id, epoch and
sequence, its codec and flags. The records, the record count and the max timestamp change. If there are
tombstones, the delete horizon (KIP-534) changes, too.
"""

from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from moldau.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
)
from moldau.records.builder import encode_record
from moldau.records.compression import Compression, compress
from moldau.records.record import Record

__all__ = ["assemble_batch", "empty_batch", "rewrite_batch"]

_BEFORE_CRC = Struct(">qiibI")
_AFTER_CRC = Struct(">hiqqqhii")


def rewrite_batch(header: BatchHeader, records: Iterable[Record], delete_horizon_ms: int | None) -> bytes:
    """Return a batch with the fields of ``header`` and only the given records, in their order. There must be
    at least one record.

    If ``delete_horizon_ms`` is not None, it replaces the base timestamp. The records keep their own
    timestamps.
    """
    base_timestamp = delete_horizon_ms
    base_offset, max_timestamp, count = header.base_offset, NO_TIMESTAMP, 0
    encoded = bytearray()
    for record in records:
        if base_timestamp is None:
            base_timestamp = record.timestamp
        max_timestamp = max(max_timestamp, record.timestamp)
        count += 1
        encoded += encode_record(
            record.offset - base_offset,
            record.timestamp - base_timestamp,
            record.key,
            record.value,
            record.headers,
        )
    assert base_timestamp is not None, "a batch without records is an empty_batch"
    payload = bytes(encoded)
    codec = header.compression
    if codec is not Compression.NONE:
        payload = compress(codec, payload)
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    return assemble_batch(header, attributes, base_timestamp, max_timestamp, count, payload)


def empty_batch(header: BatchHeader) -> bytes:
    """Return a batch without records. It has the offsets and the producer of ``header``."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return assemble_batch(header, attributes, NO_TIMESTAMP, header.max_timestamp, 0, b"")


def assemble_batch(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    """A batch with another payload. It has the offsets, the epoch and the producer of ``header``."""
    after_crc = _AFTER_CRC.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    length = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    checksum = crc32c(payload, crc32c(after_crc))
    before_crc = _BEFORE_CRC.pack(header.base_offset, length, header.partition_leader_epoch, MAGIC, checksum)
    return before_crc + after_crc + payload
