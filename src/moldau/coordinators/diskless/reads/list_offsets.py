"""ListOffsets. For special timestamps it returns the partition's offsets. For other timestamps it returns the
batch that may contain the timestamp."""

from collections.abc import Sequence

from moldau.coordinators.diskless.calls import (
    LOG_APPEND_TIME,
    BatchCoordinate,
    ListedOffset,
    TimestampToList,
)
from moldau.coordinators.diskless.reads.store_reader import StoreReader
from moldau.protocol.special_timestamps import (
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau.runtime import ErrorCode


class StoredOffsetLister:
    """Finds offsets by timestamp in a store."""

    def list(self, reader: StoreReader, timestamps: Sequence[TimestampToList]) -> list[ListedOffset]:
        return [self._one(reader, wanted) for wanted in timestamps]

    def _one(self, reader: StoreReader, wanted: TimestampToList) -> ListedOffset:
        topic_id, index, timestamp_ms = wanted
        partition = reader.partition(topic_id, index)
        if partition is None:
            message = "This coordinator has no such partition."
            return ListedOffset(topic_id, index, ErrorCode.unknown_topic_or_partition, message)
        listed = ListedOffset(
            topic_id,
            index,
            log_start_offset=partition.log_start,
            wal_start_offset=partition.wal_start,
            last_stable_offset=partition.last_stable,
            remote_metadata_position=partition.remote_position,
        )
        if timestamp_ms == LATEST_TIMESTAMP:
            return listed._replace(offset=partition.next)
        if timestamp_ms == EARLIEST_TIMESTAMP:
            return listed._replace(offset=partition.log_start)
        if timestamp_ms == LATEST_TIERED_TIMESTAMP:
            tiered = partition.wal_start > partition.log_start
            return listed._replace(offset=partition.wal_start - 1 if tiered else -1)
        if timestamp_ms == MAX_TIMESTAMP:
            return _of_batch(listed, reader.latest_timestamp(partition))
        if timestamp_ms < 0:
            message = f"Timestamp {timestamp_ms} has no meaning here."
            return listed._replace(error=ErrorCode.unsupported_version, message=message)
        return _of_batch(listed, reader.first_at_or_after(partition, timestamp_ms))


def _of_batch(listed: ListedOffset, batch: BatchCoordinate | None) -> ListedOffset:
    if batch is None:
        return listed
    offset = max(batch.base_offset, listed.log_start_offset)
    timestamp_ms = batch.max_timestamp_ms
    # All records of a LogAppendTime batch have the same timestamp, so the batch need not be read.
    if batch.timestamp_type == LOG_APPEND_TIME:
        return listed._replace(offset=offset, timestamp_ms=timestamp_ms)
    return listed._replace(offset=batch.base_offset, timestamp_ms=timestamp_ms, batch=batch)
