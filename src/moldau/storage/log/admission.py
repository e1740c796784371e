"""Converts a client's batch to the form in which a topic stores the batch. It checks the records,
recompresses the batch and sets its time. Pure.

Most topics store a batch unchanged. The time for checking records grows with their number and their
decompressed size. The size of a compressed batch does not show how long the check takes; see
:func:`is_slow_to_admit`. Records are decompressed once and read once for all requirements of the topic. A
batch may have several errors. As in Kafka's broker, the first error of this list is reported: records that
cannot be parsed, timestamps, keys, and the size of the result.
"""

from typing import NamedTuple

from moldau.records.batch import (
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    TimestampType,
    parse_header,
    set_log_append_time,
)
from moldau.records.errors import RecordError, RecordsRejectedError
from moldau.records.recompression import recompressed
from moldau.records.record import QUICK_BYTES, QUICK_RECORDS, open_batch
from moldau.records.unpacking import RECORDS_A_STEP, open_in_turn
from moldau.records.walk import RecordWalk, TimestampBounds
from moldau.runtime import ErrorCode
from moldau.runtime.buffers import Buffer
from moldau.runtime.steps import NextTurn, Steps, exhaust
from moldau.storage.log.config import LogConfig


class Admitted(NamedTuple):
    """A batch in the form in which it is stored, and the append time in its header. The time is -1 if the
    header has no append time."""

    batch: Buffer
    headers: list[BatchHeader]
    append_time_ms: int


def admit(
    config: LogConfig, batch: Buffer, headers: list[BatchHeader], now_ms: int, limit: int | None = None
) -> Admitted:
    """Convert a client's batch to the form in which the topic stores it. Only the first of several batches is
    converted.

    Raises ``KafkaError`` for a batch that the topic refuses, and ``OpenedSizeError`` for records of more than
    ``limit`` bytes (by default the largest size of a batch's records).
    """
    if must_open(config, headers[0], now_ms):
        batch, header = exhaust(_opened(config, batch, headers[0], now_ms, limit))
        headers = [header]
    return _as_admitted(config, batch, headers, now_ms)


def admission(config: LogConfig, batch: Buffer, headers: list[BatchHeader], now_ms: int) -> Steps[Admitted]:
    """Does the same as :func:`admit`, but in steps."""
    batch, header = yield from checked(config, batch, headers[0], now_ms)
    return _as_admitted(config, batch, [header], now_ms)


def checked(
    config: LogConfig, batch: Buffer, header: BatchHeader, now_ms: int, limit: int | None = None
) -> Steps[tuple[Buffer, BatchHeader]]:
    """Return the original batch, or the same batch in the topic's codec. Its records are checked, but its
    append time is not set."""
    if not must_open(config, header, now_ms):
        return batch, header
    return (yield from _opened(config, batch, header, now_ms, limit))


def must_open(config: LogConfig, header: BatchHeader, now_ms: int) -> bool:
    """Whether a topic's configs require that the records of a batch are read.

    This is true if the topic is compacted or stores the batch in another codec. With CreateTime, it is also
    true if the max timestamp in the header is above the upper limit. If a lower limit is set, the records are
    also read when the batch has several records, or when its base timestamp is below the limit (KIP-937).
    """
    if config.cleanup_compact or (config.compression is not None and config.compression.changes(header)):
        return True
    if config.message_timestamp_type is not TimestampType.CREATE_TIME:
        return False
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    return header.max_timestamp > now_ms + config.message_timestamp_after_max_ms or (
        oldest_ms > 0 and (header.records_count > 1 or header.base_timestamp < oldest_ms)
    )


def is_slow_to_admit(config: LogConfig, header: BatchHeader, now_ms: int) -> bool:
    """Whether a batch must be opened and its header shows that it is too large for the event loop.

    A compressed batch may still be too large after decompression. :func:`admit` detects this when ``limit``
    is ``QUICK_BYTES``.
    """
    if header.records_count <= QUICK_RECORDS and header.batch_length <= QUICK_BYTES:
        return False
    return must_open(config, header, now_ms)


def _opened(
    config: LogConfig, batch: Buffer, header: BatchHeader, now_ms: int, limit: int | None
) -> Steps[tuple[Buffer, BatchHeader]]:
    bounds = None
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        bounds = TimestampBounds(
            now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        )
    target = config.compression
    if target is not None and not target.changes(header):
        target = None
    _, payload = (yield from open_in_turn(batch)) if limit is None else open_batch(batch, limit)
    walk = RecordWalk(header, payload, bounds, renumbers=target is not None)
    while walk.advance(RECORDS_A_STEP):
        yield NextTurn.NEXT
    if target is None:
        _refuse(config, walk, bounds, header.max_timestamp)
        return batch, header
    _refuse(config, walk, bounds, walk.max_timestamp)
    yield NextTurn.NEXT
    changed = yield from recompressed(
        header, walk.payload, walk.max_timestamp, target, config.max_message_bytes
    )
    return changed, parse_header(changed)


def _refuse(config: LogConfig, walk: RecordWalk, bounds: TimestampBounds | None, max_timestamp: int) -> None:
    """Raise :class:`RecordsRejectedError` if a timestamp is out of range, or if a record has no key in a
    topic that needs keys."""
    errors: list[RecordError] = []
    if bounds is not None:
        within = f"is not within [{bounds.oldest_ms}, {bounds.newest_ms}]"
        errors = [RecordError(index, f"timestamp {found} {within}") for index, found in walk.misdated]
        if not errors and max_timestamp > bounds.newest_ms:
            errors = [
                RecordError(0, f"the batch's max timestamp {max_timestamp} is later than {bounds.newest_ms}")
            ]
    if errors:
        raise RecordsRejectedError(
            ErrorCode.invalid_timestamp,
            "one or more records have been rejected due to invalid timestamp",
            tuple(errors),
        )
    if config.cleanup_compact and walk.keyless:
        sentence = "a compacted topic cannot accept a record without a key"
        raise RecordsRejectedError(
            ErrorCode.invalid_record,
            f"{len(walk.keyless)} records have been rejected: {sentence}",
            tuple(RecordError(index, sentence) for index in walk.keyless),
        )


def _as_admitted(config: LogConfig, batch: Buffer, headers: list[BatchHeader], now_ms: int) -> Admitted:
    if config.message_timestamp_type is not TimestampType.LOG_APPEND_TIME:
        return Admitted(batch, headers, NO_TIMESTAMP)
    batch, headers = _stamp(batch, headers, now_ms)
    return Admitted(batch, headers, now_ms)


def _stamp(buffer: Buffer, headers: list[BatchHeader], now_ms: int) -> tuple[Buffer, list[BatchHeader]]:
    """Return a copy of the batches in which all records have the broker's time, and the copy's headers."""
    stamped = bytearray(buffer)
    changed: list[BatchHeader] = []
    position = 0
    for header in headers:
        checksum = set_log_append_time(stamped, position, now_ms)
        attributes = header.attributes | TIMESTAMP_TYPE_BIT
        changed.append(header._replace(attributes=attributes, max_timestamp=now_ms, crc=checksum))
        position += header.size_bytes
    return stamped, changed
