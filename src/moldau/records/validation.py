"""Checks that must open a batch, or that depend on a topic's configuration.

A broker calls them only where a topic asks for it: they cost a microsecond a record, and more where
the batch is compressed.
"""

from moldau.records.batch import NO_TIMESTAMP, BatchHeader, Buffer
from moldau.records.errors import RecordError, RecordsRejectedError
from moldau.records.record import iter_records
from moldau.records.timestamps import iter_positions_in_time
from moldau.runtime import ErrorCode

__all__ = ["RECORD_ERRORS_MAX", "check_keys", "check_timestamps"]

RECORD_ERRORS_MAX = 100
"""How many bad records a refusal names: enough to find the fault, and bounded."""


def check_timestamps(
    batch: Buffer,
    header: BatchHeader,
    *,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    limit: int | None = None,
) -> None:
    """Refuse CreateTime timestamps outside ``[now - before, now + after]`` (KIP-937).

    The two bounds are the topic's message.timestamp.before.max.ms and .after.max.ms; a record without a
    timestamp passes. The header's own max timestamp answers for the upper bound; the batch is
    opened only when the lower bound is set and the batch is near it or has several records.
    Raises :class:`RecordsRejectedError` with INVALID_TIMESTAMP. Not for topics with LogAppendTime.
    ``limit`` is that of :func:`moldau.records.record.open_batch`.
    """
    oldest = now_ms - before_max_ms
    newest = now_ms + after_max_ms
    too_new = header.max_timestamp > newest
    may_be_too_old = oldest > 0 and (header.records_count > 1 or header.base_timestamp < oldest)
    if not too_new and not may_be_too_old:
        return
    errors = []
    for index, (_, timestamp) in enumerate(iter_positions_in_time(batch, limit)):
        if timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest:
            errors.append(RecordError(index, f"timestamp {timestamp} is not within [{oldest}, {newest}]"))
            if len(errors) == RECORD_ERRORS_MAX:
                break
    if not errors and too_new:
        errors.append(
            RecordError(0, f"the batch's max timestamp {header.max_timestamp} is later than {newest}")
        )
    if errors:
        raise RecordsRejectedError(
            ErrorCode.invalid_timestamp,
            "one or more records have been rejected due to invalid timestamp",
            tuple(errors),
        )


def check_keys(batch: Buffer, limit: int | None = None) -> None:
    """Refuse records without a key, which a compacted topic cannot hold; ``limit`` as above.

    Raises :class:`RecordsRejectedError` with INVALID_RECORD.
    """
    errors = []
    for index, record in enumerate(iter_records(batch, limit)):
        if record.key is None:
            errors.append(RecordError(index, "a compacted topic cannot accept a record without a key"))
            if len(errors) == RECORD_ERRORS_MAX:
                break
    if errors:
        raise RecordsRejectedError(
            ErrorCode.invalid_record,
            f"{len(errors)} records have been rejected: {errors[0].message}",
            tuple(errors),
        )
