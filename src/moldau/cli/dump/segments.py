"""Files of record batches: segments, and the snapshots of the metadata log."""

from collections.abc import Iterator
from struct import Struct

from moldau.cli.dump.decoders import RecordDecoder, decoder_for
from moldau.cli.dump.file_kind import DETAIL, PROBLEM, DumpedFile, DumpRow, FileKind, by_suffix
from moldau.cli.dump.values import plain, text_of
from moldau.cluster.internal_topics import SNAPSHOT_TOPICS
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.records.batch import LOG_OVERHEAD_BYTES, BatchHeader, check_batch, parse_header
from moldau.records.control import parse_control_record, parse_control_type
from moldau.records.record import Record, iter_records
from moldau.runtime.errors import KafkaError

_LENGTH_AT = 8
_unpack_length = Struct(">i").unpack_from
BATCH_BYTES_MIN = 61


def dump_segment(file: DumpedFile) -> Iterator[DumpRow]:
    """Batch headers with their positions. With ``deep``, also the batches' records."""
    yield from _dump(file, decoder_for(file.topic, file.decoder))


def dump_metadata_snapshot(file: DumpedFile) -> Iterator[DumpRow]:
    """Dump a snapshot like a segment. Usually its records are metadata of the cluster. In the folder of a
    coordinator that takes snapshots, they are the state of the coordinator.
    """
    topic = file.topic if file.topic in SNAPSHOT_TOPICS else CLUSTER_METADATA_TOPIC
    yield from _dump(file, decoder_for(topic, file.decoder))


def _dump(file: DumpedFile, decoder: RecordDecoder) -> Iterator[DumpRow]:
    content, position, next_offset = file.content, 0, 0
    while position < len(content):
        size = _whole_batch_size(content, position)
        if size is None:
            yield _end(content, position)
            return
        batch = content[position : position + size]
        header = parse_header(batch)
        row = batch_row(position, header)
        problem = _problem(batch, header, next_offset)
        if problem is not None:
            row[PROBLEM] = problem
        yield row
        if file.deep:
            yield from record_rows(batch, header, decoder)
        next_offset = max(next_offset, header.next_offset)
        position += size


def _whole_batch_size(content: memoryview, position: int) -> int | None:
    """Return the size of the batch at a position, in bytes; ``None`` if no whole batch begins there."""
    left = len(content) - position
    if left < BATCH_BYTES_MIN:
        return None
    size: int = LOG_OVERHEAD_BYTES + _unpack_length(content, position + _LENGTH_AT)[0]
    return size if BATCH_BYTES_MIN <= size <= left else None


def _end(content: memoryview, position: int) -> DumpRow:
    rest = content[position:]
    row: DumpRow = {"type": "end", "position": position, "bytes": len(rest)}
    if any(rest):
        return {**row, PROBLEM: "the next bytes are not a whole batch"}
    return {**row, "note": "preallocated, not written"}


def _problem(batch: memoryview, header: BatchHeader, next_offset: int) -> str | None:
    try:
        check_batch(batch)
    except KafkaError as error:
        return str(error)
    if header.base_offset < next_offset:
        return f"base offset {header.base_offset} is below {next_offset}, the expected next offset"
    return None


def batch_row(position: int, header: BatchHeader) -> DumpRow:
    """A batch's header."""
    row: DumpRow = {
        "type": "batch",
        "position": position,
        "size": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count,
        "leader_epoch": header.partition_leader_epoch,
        "timestamp_type": header.timestamp_type.name.lower(),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "compression": _compression(header),
        "magic": header.magic,
        "crc": header.crc,
    }
    if header.producer_id >= 0:
        row["producer_id"] = header.producer_id
        row["producer_epoch"] = header.producer_epoch
        row["base_sequence"] = header.base_sequence
    row["transactional"] = header.is_transactional
    row["control"] = header.is_control
    return row


def _compression(header: BatchHeader) -> str:
    try:
        return header.compression.name.lower()
    except KafkaError as error:
        return str(error)


def record_rows(batch: memoryview, header: BatchHeader, decoder: RecordDecoder) -> Iterator[DumpRow]:
    """Yield the records of a batch. The decoder decodes their keys and values."""
    try:
        for record in iter_records(batch):
            yield _control_row(record) if header.is_control else _record_row(record, decoder)
    except KafkaError as error:
        yield {"type": f"{DETAIL}record", PROBLEM: f"the batch cannot be opened: {error}"}


def _record_row(record: Record, decoder: RecordDecoder) -> DumpRow:
    row: DumpRow = {"type": f"{DETAIL}record", "offset": record.offset, "timestamp": record.timestamp}
    try:
        row |= decoder(record)
    except ProtocolError as error:
        row |= {"key": text_of(record.key), "value": text_of(record.value), PROBLEM: str(error)}
    if record.headers:
        row["headers"] = [[name, text_of(value)] for name, value in record.headers]
    return row


def _control_row(record: Record) -> DumpRow:
    kind = parse_control_type(record.key)
    content = parse_control_record(record)
    return {
        "type": f"{DETAIL}control",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "record": kind.name.lower(),
        "fields": plain(content),
    }


SEGMENT = FileKind("record segment", by_suffix(".log"), dump_segment)
METADATA_SNAPSHOT = FileKind("metadata snapshot", by_suffix(".checkpoint"), dump_metadata_snapshot)
