"""How a topic wants a client's batch stored: recompressed, stamped, its records checked. Pure.

Most topics take a batch as it is. Where records must be looked at, that takes time by their number and their
size once they are decompressed, of which the batch's own size says little; see :func:`takes_long`.
"""

from typing import Final, NamedTuple

from moldau.records.batch import (
    COMPRESSION_MASK,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
    set_log_append_time,
)
from moldau.records.recompression import recompress
from moldau.records.record import QUICK_BYTES, QUICK_RECORDS
from moldau.records.validation import check_keys, check_timestamps
from moldau.storage.append_info import NO_TIMESTAMP
from moldau.storage.log_config import LogConfig

_INT64_MAX: Final = 2**63 - 1


class Admitted(NamedTuple):
    """A batch as it is to be stored, and the time that it is stamped with, or -1."""

    batch: Buffer
    headers: list[BatchHeader]
    append_time_ms: int


def admit(
    config: LogConfig, batch: Buffer, headers: list[BatchHeader], now_ms: int, limit: int | None = None
) -> Admitted:
    """What a client sent, one batch or several of which the first counts, as the topic wants it stored.

    Raises ``KafkaError`` for what the topic refuses, and ``OpenedSizeError`` for records of more than
    ``limit`` bytes (by default what a batch may hold).
    """
    if config.compression is not None:
        batch, header = recompress(batch, headers[0], config.compression, config.max_message_bytes, limit)
        headers = [header]
    append_time_ms = NO_TIMESTAMP
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        batch, headers = _stamp(batch, headers, now_ms)
        append_time_ms = now_ms
    else:
        check_timestamps(
            batch,
            headers[0],
            now_ms=now_ms,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            limit=limit,
        )
    if config.cleanup_compact:
        check_keys(batch, limit)
    return Admitted(batch, headers, append_time_ms)


def takes_long(config: LogConfig, header: BatchHeader, now_ms: int) -> bool:
    """Whether a batch must be opened and is, by its header, too large for the event loop.

    A compressed one may still turn out to be: :func:`admit` finds out, given ``QUICK_BYTES``.
    """
    if header.records_count <= QUICK_RECORDS and header.batch_length <= QUICK_BYTES:
        return False
    if config.cleanup_compact:
        return True
    if config.compression is not None and header.attributes & COMPRESSION_MASK != config.compression.codec:
        return True
    return config.message_timestamp_type is TimestampType.CREATE_TIME and (
        config.message_timestamp_before_max_ms != _INT64_MAX
        or header.max_timestamp > now_ms + config.message_timestamp_after_max_ms
    )


def _stamp(buffer: Buffer, headers: list[BatchHeader], now_ms: int) -> tuple[Buffer, list[BatchHeader]]:
    """A copy whose records all carry the broker's time."""
    stamped = bytearray(buffer)
    changed: list[BatchHeader] = []
    position = 0
    for header in headers:
        checksum = set_log_append_time(stamped, position, now_ms)
        attributes = header.attributes | TIMESTAMP_TYPE_BIT
        changed.append(header._replace(attributes=attributes, max_timestamp=now_ms, crc=checksum))
        position += header.size_bytes
    return stamped, changed
