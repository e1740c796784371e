"""Dumps WAL objects of diskless topics. The objects are files: either they are in a folder that is used as an
object store, or they were downloaded from an object store.
"""

from collections.abc import Iterator

from moldau.cli.dump.decoders import decoder_for
from moldau.cli.dump.file_kind import PROBLEM, DumpedFile, DumpRow, FileKind
from moldau.cli.dump.segments import batch_row, record_rows
from moldau.cli.dump.values import plain
from moldau.diskless.object_keys import parse_object_key
from moldau.diskless.wal import parse_object
from moldau.records.batch import check_batch
from moldau.runtime.errors import KafkaError


def dump_wal_object(file: DumpedFile) -> Iterator[DumpRow]:
    """The footer and each batch. An object contains no offsets, so offsets are counted from 0."""
    found = parse_object(file.content, len(file.content))
    yield {
        "type": "object",
        "created": found.created_ms,
        "broker": found.broker_id,
        "data_bytes": found.data_size_bytes,
        "partitions": len(found.runs),
    }
    decoder = decoder_for("", file.decoder)
    for entry in found.batches():
        batch = file.content[entry.byte_offset : entry.byte_offset + entry.size_bytes]
        place = {"topic_id": plain(entry.topic_id), "partition": entry.partition_index}
        try:
            header = check_batch(batch)
        except KafkaError as error:
            yield {"type": "batch", **place, "position": entry.byte_offset, PROBLEM: str(error)}
            continue
        row = {**batch_row(entry.byte_offset, header), **place}
        if header.crc != entry.crc:
            row[PROBLEM] = "the footer describes another batch"
        yield row
        if file.deep:
            yield from record_rows(batch, header, decoder)


WAL_OBJECT = FileKind("WAL object", lambda name: parse_object_key(name) is not None, dump_wal_object)
