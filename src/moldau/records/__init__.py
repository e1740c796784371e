"""Kafka's record batches, format version 2: headers, checks, records, codecs, control records. Pure."""

from moldau.records.batch import (
    BatchHeader,
    TimestampType,
    check_batch,
    iter_headers,
    parse_header,
    set_base_offset_and_epoch,
    set_log_append_time,
    validate_produce,
)
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.errors import CorruptRecordError, InvalidRecordError, RecordError, RecordsRejectedError
from moldau.records.record import Record, iter_records, read_records

__all__ = [
    "BatchHeader",
    "Compression",
    "CorruptRecordError",
    "InvalidRecordError",
    "Record",
    "RecordError",
    "RecordsRejectedError",
    "TimestampType",
    "build_batch",
    "check_batch",
    "iter_headers",
    "iter_records",
    "parse_header",
    "read_records",
    "set_base_offset_and_epoch",
    "set_log_append_time",
    "validate_produce",
]
