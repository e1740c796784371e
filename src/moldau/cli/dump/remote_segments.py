"""Dumps files of tiered storage: the records of ``__remote_log_metadata``, and the index objects of remote
segments."""

from collections.abc import Iterator
from typing import Any

from moldau.cli.dump.file_kind import DETAIL, DumpedFile, DumpRow, FileKind, by_suffix
from moldau.cli.dump.values import message_fields, plain
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.schema import Message
from moldau.records.record import Record
from moldau.storage.segments.offset_index import OffsetIndex
from moldau.storage.segments.time_index import TimeIndex
from moldau.storage.segments.transaction_index import decode_transactions
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState, RemotePartitionDeleteState
from moldau.tiered.metadata.records import RECORDS, RemotePartitionDeleteMetadataRecord
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.storage.object_layout import decode_location, unpack_indexes
from moldau.tiered.storage.storage_manager import IndexType


def decode_record(record: Record) -> dict[str, Any]:
    """A record of the topic. Raises ``ProtocolError``."""
    message, version = RECORDS.decode_versioned(record.value or b"")
    return {"record": type(message).__name__, "version": version, "fields": _fields(message)}


def _fields(message: Message) -> dict[str, Any]:
    fields = message_fields(message)
    name, states = "remote_log_segment_state", [(each.value, each.name) for each in RemoteLogSegmentState]
    if isinstance(message, RemotePartitionDeleteMetadataRecord):
        name = "remote_partition_delete_state"
        states = [(each.value, each.name) for each in RemotePartitionDeleteState]
    fields[name] = dict(states).get(fields[name], fields[name])
    custom = getattr(message, "custom_metadata", None)
    if custom is not None:
        fields["custom_metadata"] = _custom(bytes(custom))
    return fields


def _custom(content: bytes) -> Any:
    """Decode the custom metadata of the built-in storage manager. The bytes of other managers are not
    decoded.
    """
    try:
        return plain(decode_location(content))
    except ProtocolError:
        return plain(content)


def dump_indexes(file: DumpedFile) -> Iterator[DumpRow]:
    """Yield a row for the segment, and a row for each of its indexes. With ``deep``, also yield the entries
    of the indexes. Checksums are verified."""
    metadata, indexes = unpack_indexes(file.content)
    yield {
        "type": "remote segment",
        "topic": metadata.id.topic,
        "topic_id": plain(metadata.id.topic_id),
        "partition": metadata.id.partition,
        "segment_id": str(metadata.id.id),
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset,
        "size_bytes": metadata.segment_size_bytes,
        "max_timestamp": metadata.max_timestamp_ms,
        "leader_epochs": [list(each) for each in metadata.leader_epochs],
        "broker": metadata.broker_id,
    }
    for kind, content in indexes.items():
        yield {"type": "index", "index": kind.value, "size_bytes": len(content)}
        if file.deep:
            yield from _entries(metadata, kind, content)


def _entries(metadata: RemoteLogSegmentMetadata, kind: IndexType, content: memoryview) -> Iterator[DumpRow]:
    base_offset = metadata.start_offset
    match kind:
        case IndexType.OFFSET:
            for relative, position in OffsetIndex.entry.iter_unpack(content):
                yield {"type": f"{DETAIL}entry", "offset": base_offset + relative, "position": position}
        case IndexType.TIMESTAMP:
            for timestamp, relative in TimeIndex.entry.iter_unpack(content):
                yield {"type": f"{DETAIL}entry", "timestamp": timestamp, "offset": base_offset + relative}
        case IndexType.TRANSACTION:
            for transaction in decode_transactions(content, str(metadata.id)):
                yield {"type": f"{DETAIL}aborted transaction", **transaction._asdict()}
        case IndexType.LEADER_EPOCH:
            for line in bytes(content).decode("ascii", "replace").splitlines()[2:]:
                epoch, _, offset = line.partition(" ")
                yield {"type": f"{DETAIL}leader epoch", "epoch": epoch, "start_offset": offset}
        case IndexType.PRODUCER_SNAPSHOT:
            return  # The entries of a producer snapshot are shown only if the snapshot is in a separate file.


REMOTE_INDEXES = FileKind("indexes of a remote segment", by_suffix(".indexes"), dump_indexes)
