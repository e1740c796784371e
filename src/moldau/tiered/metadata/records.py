"""Records of ``__remote_log_metadata`` in Kafka's released format, and the events in these records. Pure.

A record has no key. Its value is a frame (version 1, type, version: unsigned varints) and the body. Type 3
does not occur in a log. It is a segment inside the stored state of its partition, and the rows of the local
cache contain it.
"""

from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.records.schema import FramedRecords
from moldau.protocol.schema import ZERO_UUID, Message, message, wire
from moldau.runtime.buffers import Buffer
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState, RemotePartitionDeleteState
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

__all__ = [
    "RECORDS",
    "RemoteLogSegmentMetadataRecord",
    "RemoteLogSegmentMetadataSnapshotRecord",
    "RemoteLogSegmentMetadataUpdateRecord",
    "RemotePartitionDeleteMetadataRecord",
    "decode_event",
    "decode_snapshot",
    "encode_event",
    "encode_snapshot",
]


@message
class TopicIdPartitionEntry(Message):
    name: str = wire("string", default="")
    id: UUID = wire("uuid", default=ZERO_UUID)
    partition: int = wire("int32", default=0)


@message
class RemoteLogSegmentIdEntry(Message):
    topic_id_partition: TopicIdPartitionEntry = wire(TopicIdPartitionEntry)
    id: UUID = wire("uuid", default=ZERO_UUID)


@message
class SegmentLeaderEpochEntry(Message):
    leader_epoch: int = wire("int32", default=0)
    offset: int = wire("int64", default=0)


@message
class RemoteLogSegmentMetadataRecord(Message):
    API_KEY = 0
    VERSIONS = "0"
    FLEXIBLE = "0+"
    remote_log_segment_id: RemoteLogSegmentIdEntry = wire(RemoteLogSegmentIdEntry)
    start_offset: int = wire("int64", default=0)
    end_offset: int = wire("int64", default=0)
    broker_id: int = wire("int32", default=0)
    max_timestamp_ms: int = wire("int64", default=0)
    event_timestamp_ms: int = wire("int64", default=0)
    segment_leader_epochs: Sequence[SegmentLeaderEpochEntry] = wire([SegmentLeaderEpochEntry], default=())
    segment_size_in_bytes: int = wire("int32", default=0)
    custom_metadata: bytes | None = wire("bytes", default=None, nullable="0+")
    remote_log_segment_state: int = wire("int8", default=0)
    txn_index_empty: bool = wire("bool", default=False, tag=0)


@message
class RemoteLogSegmentMetadataUpdateRecord(Message):
    API_KEY = 1
    VERSIONS = "0"
    FLEXIBLE = "0+"
    remote_log_segment_id: RemoteLogSegmentIdEntry = wire(RemoteLogSegmentIdEntry)
    broker_id: int = wire("int32", default=0)
    event_timestamp_ms: int = wire("int64", default=0)
    custom_metadata: bytes | None = wire("bytes", default=None, nullable="0+")
    remote_log_segment_state: int = wire("int8", default=0)


@message
class RemotePartitionDeleteMetadataRecord(Message):
    API_KEY = 2
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id_partition: TopicIdPartitionEntry = wire(TopicIdPartitionEntry)
    broker_id: int = wire("int32", default=0)
    event_timestamp_ms: int = wire("int64", default=0)
    remote_partition_delete_state: int = wire("int8", default=0)


@message
class RemoteLogSegmentMetadataSnapshotRecord(Message):
    API_KEY = 3
    VERSIONS = "0"
    FLEXIBLE = "0+"
    segment_id: UUID = wire("uuid", default=ZERO_UUID)
    start_offset: int = wire("int64", default=0)
    end_offset: int = wire("int64", default=0)
    broker_id: int = wire("int32", default=0)
    max_timestamp_ms: int = wire("int64", default=0)
    event_timestamp_ms: int = wire("int64", default=0)
    segment_leader_epochs: Sequence[SegmentLeaderEpochEntry] = wire([SegmentLeaderEpochEntry], default=())
    segment_size_in_bytes: int = wire("int32", default=0)
    custom_metadata: bytes | None = wire("bytes", default=None, nullable="0+")
    remote_log_segment_state: int = wire("int8", default=0)
    txn_index_empty: bool = wire("bool", default=False, tag=0)


RECORDS = FramedRecords(
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
)
"""All record types; Kafka's ``RemoteLogMetadataSerde`` reads and writes the same bytes."""

_SegmentRecord: TypeAlias = RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataSnapshotRecord


def encode_event(event: RemoteLogMetadata) -> bytes:
    """The value of the record of an event."""
    match event:
        case RemoteLogSegmentMetadata():
            record: Message = RemoteLogSegmentMetadataRecord(
                remote_log_segment_id=_id_entry(event.id),
                start_offset=event.start_offset,
                end_offset=event.end_offset,
                broker_id=event.broker_id,
                max_timestamp_ms=event.max_timestamp_ms,
                event_timestamp_ms=event.event_timestamp_ms,
                segment_leader_epochs=_epoch_entries(event),
                segment_size_in_bytes=event.segment_size_bytes,
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=event.state,
                txn_index_empty=event.txn_index_empty,
            )
        case RemoteLogSegmentMetadataUpdate():
            record = RemoteLogSegmentMetadataUpdateRecord(
                remote_log_segment_id=_id_entry(event.id),
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=event.state,
            )
        case RemotePartitionDeleteMetadata():
            record = RemotePartitionDeleteMetadataRecord(
                topic_id_partition=_partition_entry(event.partition),
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                remote_partition_delete_state=event.state,
            )
    return RECORDS.encode(record)


def decode_event(value: Buffer) -> RemoteLogMetadata:
    """Read an event. Raises ``ProtocolError`` for malformed bytes, an unknown type or an unknown state."""
    record = RECORDS.decode(value)
    try:
        match record:
            case RemoteLogSegmentMetadataRecord():
                return _segment(_id(record.remote_log_segment_id), record)
            case RemoteLogSegmentMetadataUpdateRecord():
                return RemoteLogSegmentMetadataUpdate(
                    _id(record.remote_log_segment_id),
                    record.event_timestamp_ms,
                    RemoteLogSegmentState(record.remote_log_segment_state),
                    record.broker_id,
                    record.custom_metadata,
                )
            case RemotePartitionDeleteMetadataRecord():
                return RemotePartitionDeleteMetadata(
                    _partition(record.topic_id_partition),
                    RemotePartitionDeleteState(record.remote_partition_delete_state),
                    record.event_timestamp_ms,
                    record.broker_id,
                )
    except ValueError as error:
        raise ProtocolError(f"{type(record).__name__}: {error}") from error
    raise ProtocolError(f"{type(record).__name__} is no event")


def encode_snapshot(metadata: RemoteLogSegmentMetadata) -> bytes:
    """Encode a segment as a part of the stored state of its partition. The bytes do not name the partition,
    because the stored state names it."""
    return RECORDS.encode(
        RemoteLogSegmentMetadataSnapshotRecord(
            segment_id=metadata.id.id,
            start_offset=metadata.start_offset,
            end_offset=metadata.end_offset,
            broker_id=metadata.broker_id,
            max_timestamp_ms=metadata.max_timestamp_ms,
            event_timestamp_ms=metadata.event_timestamp_ms,
            segment_leader_epochs=_epoch_entries(metadata),
            segment_size_in_bytes=metadata.segment_size_bytes,
            custom_metadata=metadata.custom_metadata,
            remote_log_segment_state=metadata.state,
            txn_index_empty=metadata.txn_index_empty,
        )
    )


def decode_snapshot(partition: TopicIdPartition, value: Buffer) -> RemoteLogSegmentMetadata:
    """Decode the result of :func:`encode_snapshot`. Raises ``ProtocolError`` if the bytes are malformed."""
    record = RECORDS.decode(value)
    if not isinstance(record, RemoteLogSegmentMetadataSnapshotRecord):
        raise ProtocolError(f"{type(record).__name__} is no segment of a snapshot")
    try:
        return _segment(RemoteLogSegmentId.of(partition, record.segment_id), record)
    except ValueError as error:
        raise ProtocolError(f"{type(record).__name__}: {error}") from error


def _segment(id: RemoteLogSegmentId, record: _SegmentRecord) -> RemoteLogSegmentMetadata:
    epochs = sorted(EpochStart(each.leader_epoch, each.offset) for each in record.segment_leader_epochs)
    return RemoteLogSegmentMetadata(
        id,
        record.start_offset,
        record.end_offset,
        record.max_timestamp_ms,
        record.broker_id,
        record.event_timestamp_ms,
        record.segment_size_in_bytes,
        tuple(epochs),  # Kafka writes these fields in the order of a hash map.
        record.custom_metadata,
        RemoteLogSegmentState(record.remote_log_segment_state),
        record.txn_index_empty,
    )


def _epoch_entries(metadata: RemoteLogSegmentMetadata) -> list[SegmentLeaderEpochEntry]:
    return [
        SegmentLeaderEpochEntry(leader_epoch=epoch, offset=offset) for epoch, offset in metadata.leader_epochs
    ]


def _id_entry(id: RemoteLogSegmentId) -> RemoteLogSegmentIdEntry:
    return RemoteLogSegmentIdEntry(topic_id_partition=_partition_entry(id.topic_id_partition), id=id.id)


def _partition_entry(partition: TopicIdPartition) -> TopicIdPartitionEntry:
    topic_id, topic, number = partition
    return TopicIdPartitionEntry(name=topic, id=topic_id, partition=number)


def _id(entry: RemoteLogSegmentIdEntry) -> RemoteLogSegmentId:
    return RemoteLogSegmentId.of(_partition(entry.topic_id_partition), entry.id)


def _partition(entry: TopicIdPartitionEntry) -> TopicIdPartition:
    return TopicIdPartition(entry.id, entry.name, entry.partition)
