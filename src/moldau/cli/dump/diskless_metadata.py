"""Decodes records and snapshots of ``__diskless_metadata``. Some long fields of these records are encoded as
columns.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from moldau.cli.dump.values import plain
from moldau.coordinators.diskless.codecs.codec import DisklessCodec
from moldau.coordinators.diskless.codecs.columns import ColumnError
from moldau.coordinators.diskless.state.producers import opened
from moldau.coordinators.diskless.state.records import (
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
    NO_PRODUCER,
    DisklessRecord,
    FileCommitted,
    TransactionsEnded,
)
from moldau.coordinators.diskless.store.extents import Extent, marker_in, unpack
from moldau.coordinators.diskless.store.schema import TABLE_NAMES
from moldau.coordinators.diskless.store.snapshot_format import decode_rows
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.records.schema import UnknownRecordTypeError
from moldau.records.record import Record

_CODEC: Final = DisklessCodec()
_FILE_FIELDS: Final = (
    "object_key",
    "object_format",
    "size_bytes",
    "uploader_broker_id",
    "owner_ids",
    "created_ms",
    "committed_ms",
)


def decode_record(record: Record) -> dict[str, Any]:
    """A record of the coordinator's log. Raises ``ProtocolError``."""
    if not record.key and record.value:
        return decode_snapshot_record(record)
    try:
        found = _CODEC.decode(record.key, record.value)
    except UnknownRecordTypeError:
        return {"record": "unknown", "key": plain(record.key), "value": plain(record.value)}
    except (ColumnError, ValueError) as error:
        raise ProtocolError(f"the columns cannot be read: {error}") from error
    return {"record": type(found).__name__, "fields": _fields(found)}


def decode_snapshot_record(record: Record) -> dict[str, Any]:
    """A record of a snapshot. It contains rows of one of the store's tables. Raises ``ProtocolError``."""
    try:
        table, rows = decode_rows(bytes(record.value or b""))
        name = TABLE_NAMES[table]
    except (ColumnError, ValueError, IndexError) as error:
        raise ProtocolError(f"the rows cannot be read: {error}") from error
    return {"record": name, "rows": [_row(name, row) for row in rows]}


def _row(table: str, row: tuple[Any, ...]) -> list[Any]:
    values = [plain(value) for value in row]
    if table == "extents":
        end = marker_in(Extent(*row))
        values[-1] = plain(tuple(end)) if end else [list(batch) for batch in unpack(row[2], row[-1])]
    elif table == "producers":
        values[-1] = plain(tuple(opened(row[-1])))
    return values


def _fields(record: DisklessRecord) -> dict[str, Any]:
    if isinstance(record, FileCommitted):
        fields = {name: plain(getattr(record, name)) for name in _FILE_FIELDS}
        fields["batches"] = list(_batches(record))
        fields["rejected"] = [_named(each) for each in record.rejected]
        return fields
    if isinstance(record, TransactionsEnded):
        return {
            "ended_ms": record.ended_ms,
            "markers": [_named(each) for each in record.markers],
        }
    return _named(record)


def _named(values: Any) -> dict[str, Any]:
    return {name: plain(value) for name, value in values._asdict().items()}


def _batches(record: FileCommitted) -> Iterator[dict[str, Any]]:
    """The accepted batches. Each batch is a row."""
    starts = accumulate((run.batches for run in record.runs), initial=0)
    for run, start in zip(record.runs, starts, strict=False):
        offset = run.base_offset
        for at in range(start, start + run.batches):
            last = offset + record.offset_deltas[at]
            batch = {
                "topic_id": plain(run.topic_id),
                "partition": run.partition_index,
                "base_offset": offset,
                "last_offset": last,
                "position": record.byte_offsets[at],
                "size": record.sizes_bytes[at],
                "max_timestamp": record.max_timestamps_ms[at],
                "log_append_time": bool(record.flags[at] & FLAG_LOG_APPEND_TIME),
                "transactional": bool(record.flags[at] & FLAG_TRANSACTIONAL),
            }
            number = record.producer_indexes[at]
            if number != NO_PRODUCER:
                batch["producer_id"], batch["producer_epoch"] = record.producers[number - 1]
                batch["base_sequence"] = record.base_sequences[at]
            yield batch
            offset = last + 1
