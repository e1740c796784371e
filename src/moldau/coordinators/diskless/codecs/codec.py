"""Converts between :data:`DisklessRecord` and the keys and values of ``__diskless_metadata``. Pure."""

from typing import assert_never

from moldau.coordinators.diskless.codecs.file_codec import decode_file, encode_file
from moldau.coordinators.diskless.codecs.kip_form import decode_kip_file
from moldau.coordinators.diskless.state.records import (
    DisklessRecord,
    Expired,
    FileCommitted,
    FilesClosed,
    FilesReleased,
    FileTakenOver,
    MarkerExtent,
    PartitionCreated,
    Pruned,
    RecordsDeleted,
    TopicDeleted,
    TransactionsEnded,
)
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.records import diskless as wire
from moldau.protocol.schema import Message

_FILE_KEY = wire.RECORDS.encode_key(wire.DisklessFileCommittedKey())


def _message(record: DisklessRecord) -> tuple[Message, Message]:
    match record:
        case FileCommitted():
            return wire.DisklessFileCommittedKey(), encode_file(record)
        case PartitionCreated(topic_id, name, index):
            return wire.DisklessPartitionCreatedKey(), wire.DisklessPartitionCreatedRecord(
                topic_id=topic_id, name=name, partition_index=index
            )
        case TopicDeleted(topic_id):
            return wire.DisklessTopicDeletedKey(), wire.DisklessTopicDeletedRecord(topic_id=topic_id)
        case RecordsDeleted(topic_id, index, offset):
            return wire.DisklessRecordsDeletedKey(), wire.DisklessRecordsDeletedRecord(
                topic_id=topic_id, partition_index=index, new_log_start_offset=offset
            )
        case FilesClosed(closed_ms, keys):
            return wire.DisklessFilesClosedKey(), wire.DisklessFilesClosedRecord(
                closed_ms=closed_ms, object_keys=keys
            )
        case FileTakenOver(key, size_bytes, created_ms, taken_ms, owners):
            return wire.DisklessFileTakenOverKey(), wire.DisklessFileTakenOverRecord(
                object_key=key,
                file_size=size_bytes,
                created_ms=created_ms,
                taken_ms=taken_ms,
                remaining_owner_ids=owners,
            )
        case FilesReleased(keys):
            return wire.DisklessFilesReleasedKey(), wire.DisklessFilesReleasedRecord(object_keys=keys)
        case Pruned(topic_id, index, from_offset, to_offset, epoch, position):
            return wire.DisklessPrunedKey(), wire.DisklessPrunedRecord(
                topic_id=topic_id,
                partition_index=index,
                from_offset=from_offset,
                to_offset=to_offset,
                epoch=epoch,
                remote_metadata_position=position,
            )
        case Expired(files_before_ms, producers_before_ms):
            return wire.DisklessExpiredKey(), wire.DisklessExpiredRecord(
                files_before_ms=files_before_ms, producers_before_ms=producers_before_ms
            )
        case TransactionsEnded(ended_ms, markers):
            return wire.DisklessTransactionsEndedKey(), wire.DisklessTransactionsEndedRecord(
                ended_ms=ended_ms,
                markers=[wire.DisklessTransactionMarker(**marker._asdict()) for marker in markers],
            )
        case _:
            assert_never(record)


class DisklessCodec:
    """Writes the newest version of each record and reads all versions."""

    def encode(self, record: DisklessRecord) -> tuple[bytes | None, bytes | None]:
        """Encode a record as key and value."""
        if type(record) is FileCommitted:
            return _FILE_KEY, wire.RECORDS.encode_value(encode_file(record))
        key, value = _message(record)
        return wire.RECORDS.encode_key(key), wire.RECORDS.encode_value(value)

    def decode(self, key: bytes | None, value: bytes | None) -> DisklessRecord:
        """Decode a record. Raises ``ProtocolError`` or ``ColumnError``.

        A record type of a later version is also an error, because each record depends on the earlier records.
        """
        if key is None or value is None:
            raise ProtocolError("the record has no key or no value")
        message = wire.RECORDS.decode(key, value)[1]
        match message:
            case wire.DisklessFileCommittedRecord():
                return decode_file(message) if message.receipt else decode_kip_file(message)
            case wire.DisklessPartitionCreatedRecord():
                return PartitionCreated(message.topic_id, message.name, message.partition_index)
            case wire.DisklessTopicDeletedRecord():
                return TopicDeleted(message.topic_id)
            case wire.DisklessRecordsDeletedRecord():
                return RecordsDeleted(message.topic_id, message.partition_index, message.new_log_start_offset)
            case wire.DisklessFilesClosedRecord():
                return FilesClosed(message.closed_ms, tuple(message.object_keys))
            case wire.DisklessFileTakenOverRecord():
                return FileTakenOver(
                    message.object_key,
                    message.file_size,
                    message.created_ms,
                    message.taken_ms,
                    tuple(message.remaining_owner_ids),
                )
            case wire.DisklessFilesReleasedRecord():
                return FilesReleased(tuple(message.object_keys))
            case wire.DisklessPrunedRecord():
                return Pruned(
                    message.topic_id,
                    message.partition_index,
                    message.from_offset,
                    message.to_offset,
                    message.epoch,
                    message.remote_metadata_position,
                )
            case wire.DisklessExpiredRecord():
                return Expired(message.files_before_ms, message.producers_before_ms)
            case wire.DisklessTransactionsEndedRecord():
                return TransactionsEnded(
                    message.ended_ms,
                    tuple(
                        MarkerExtent(
                            each.topic_id,
                            each.partition_index,
                            each.base_offset,
                            each.producer_id,
                            each.producer_epoch,
                            each.coordinator_epoch,
                            each.committed,
                            each.decision_partition,
                            each.decision_offset,
                        )
                        for each in message.markers
                    ),
                )
        raise ProtocolError(f"{type(message).__name__} is no record of a diskless coordinator")
