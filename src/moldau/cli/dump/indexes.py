"""Dumps the index files of a segment."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from moldau.cli.dump.file_kind import PROBLEM, DumpedFile, DumpRow, FileKind, by_suffix, opened
from moldau.records.batch import BatchHeader, iter_headers
from moldau.runtime.errors import KafkaError
from moldau.storage.producers.producer_snapshot import decode_producer_snapshot
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.time_index import TimeIndex
from moldau.storage.segments.transaction_index import decode_transactions


def dump_offset_index(file: DumpedFile) -> Iterator[DumpRow]:
    """Rows of offset and position. They are compared with the segment if it exists in the same folder."""
    batches = _batches_beside(file.path)
    previous = (-1, -1)
    for index, (relative, position) in enumerate(_entries(file, OffsetIndex.entry)):
        if index and (relative, position) == (0, 0):
            return  # Kafka maps an active index at its full size, so zeros follow the last entry.
        offset = file.base_offset + relative
        row: DumpRow = {"type": "entry", "offset": offset, "position": position}
        if relative <= previous[0] or position <= previous[1]:
            row[PROBLEM] = "the entries are not in ascending order"
        elif batches is not None:
            batch = batches.get(position)
            if batch is None:
                row[PROBLEM] = "no batch begins there"
            elif batch.last_offset != offset:
                row[PROBLEM] = f"the batch there ends with offset {batch.last_offset}"
        previous = (relative, position)
        yield row


def dump_time_index(file: DumpedFile) -> Iterator[DumpRow]:
    """Rows of timestamp and offset. They are compared with the segment if it exists in the same folder."""
    batches = _batches_beside(file.path)
    latest = _latest_timestamps(batches) if batches is not None else None
    previous = (-1, -1)
    for index, (timestamp, relative) in enumerate(_entries(file, TimeIndex.entry)):
        if index and (timestamp, relative) == (0, 0):
            return
        offset = file.base_offset + relative
        row: DumpRow = {"type": "entry", "timestamp": timestamp, "offset": offset}
        if timestamp <= previous[0] or relative < previous[1]:
            row[PROBLEM] = "the entries are not in ascending order"
        elif latest is not None and offset not in latest:
            row[PROBLEM] = "no batch ends with that offset"
        elif latest is not None and latest[offset] > timestamp:
            row[PROBLEM] = f"a record up to there has the later timestamp {latest[offset]}"
        previous = (timestamp, relative)
        yield row


def _entries(file: DumpedFile, layout: Struct) -> Iterator[tuple[int, int]]:
    whole = len(file.content) - len(file.content) % layout.size
    yield from layout.iter_unpack(file.content[:whole])
    if whole != len(file.content):
        raise ValueError(f"{len(file.content) - whole} bytes at the end are not a whole entry")


def _batches_beside(index: Path) -> dict[int, BatchHeader] | None:
    """The batches of the segment to which an index belongs, by position. The result is ``None`` when the
    segment does not exist."""
    segment = index.with_suffix(".log")
    if not segment.is_file():
        return None
    with opened(segment, deep=False, decoder=None) as file:
        found = {}
        # Damage of the segment is reported when the segment itself is dumped. Preallocated zeros are not
        # damage.
        with contextlib.suppress(KafkaError):
            for position, header in iter_headers(file.content):
                found[position] = header
        return found


def _latest_timestamps(batches: dict[int, BatchHeader]) -> dict[int, int]:
    """Return, for each batch, the latest timestamp of this batch and all earlier batches. The keys are the
    last offsets of the batches."""
    found, latest = {}, -1
    for header in batches.values():
        latest = max(latest, header.max_timestamp)
        found[header.last_offset] = latest
    return found


def dump_transaction_index(file: DumpedFile) -> Iterator[DumpRow]:
    """The aborted transactions of a segment."""
    for transaction in decode_transactions(file.content, str(file.path)):
        yield {"type": "aborted transaction", **transaction._asdict()}


def dump_producer_snapshot(file: DumpedFile) -> Iterator[DumpRow]:
    """The last batch of each producer."""
    for entry in decode_producer_snapshot(bytes(file.content), str(file.path)):
        last = entry.batches[-1] if entry.batches else None
        yield {
            "type": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.producer_epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_timestamp": entry.last_timestamp,
            "current_transaction_first_offset": entry.current_txn_first_offset,
            "last_sequence": None if last is None else last.last_sequence,
            "last_offset": None if last is None else last.last_offset,
            "offset_delta": None if last is None else last.offset_delta,
        }


OFFSET_INDEX = FileKind("offset index", by_suffix(".index"), dump_offset_index)
TIME_INDEX = FileKind("time index", by_suffix(".timeindex"), dump_time_index)
TRANSACTION_INDEX = FileKind("transaction index", by_suffix(".txnindex"), dump_transaction_index)
PRODUCER_SNAPSHOT = FileKind("producer snapshot", by_suffix(".snapshot"), dump_producer_snapshot)
