"""Storing what producers send in a codec that the topic names (``compression.type``).

The records survive byte for byte; so does everything that the header tells but the codec, the length, the
checksum and, where the producer had it wrong, the max timestamp and the records' numbering.
"""

from typing import NamedTuple

from moldau.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    parse_header,
)
from moldau.records.builder import encode_record
from moldau.records.compression import Compression, compress
from moldau.records.record import iter_opened, open_batch
from moldau.records.rewriting import assemble_batch
from moldau.runtime import ErrorCode, KafkaError

__all__ = ["TargetCompression", "recompress"]


class TargetCompression(NamedTuple):
    """The codec of a topic, and its level as :func:`moldau.records.compression.compress` counts it."""

    codec: Compression
    level: int | None = None


def recompress(
    batch: Buffer,
    header: BatchHeader,
    target: TargetCompression,
    max_batch_bytes: int,
    limit: int | None = None,
) -> tuple[Buffer, BatchHeader]:
    """``batch``, which has passed ``validate_produce`` with ``header``, in the codec of ``target``.

    A batch that has that codec already, at whatever level, is returned as it is, unopened. Raises
    :class:`InvalidRecordError` for records that do not parse or are not as many as the header says, and
    ``MESSAGE_TOO_LARGE`` when the result is larger than ``max_batch_bytes``. ``limit`` is that of
    :func:`moldau.records.record.open_batch`.
    """
    if header.attributes & COMPRESSION_MASK == target.codec:
        return batch, header
    _, payload = open_batch(batch, limit)
    payload, max_timestamp = _checked(header, payload)
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT) | target.codec
    changed = assemble_batch(
        header,
        attributes,
        header.base_timestamp,
        max_timestamp,
        header.records_count,
        compress(target.codec, payload, target.level),
    )
    if len(changed) > max_batch_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"the batch has {len(changed)} bytes once it is stored as {target.codec.name.lower()},"
            f" the topic allows {max_batch_bytes}",
        )
    return changed, parse_header(changed)


def _checked(header: BatchHeader, payload: bytes) -> tuple[bytes, int]:
    """The records with consecutive offsets, and their max timestamp."""
    max_timestamp = NO_TIMESTAMP
    expected_offset = header.base_offset
    is_numbered = True
    for record in iter_opened(header, payload):
        max_timestamp = max(max_timestamp, record.timestamp)
        is_numbered = is_numbered and record.offset == expected_offset
        expected_offset += 1
    if is_numbered:
        return payload, max_timestamp
    # As Kafka's brokers do for clients that number the records of a compressed batch wrongly.
    renumbered = bytearray()
    for delta, record in enumerate(iter_opened(header, payload)):
        renumbered += encode_record(
            delta, record.timestamp - header.base_timestamp, record.key, record.value, record.headers
        )
    return bytes(renumbered), max_timestamp
