"""The calls of readers: FindBatches finds batches from an offset on, and ListOffsets finds offsets by
timestamp."""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Fields, Lane
from moldau.coordinators.diskless.calls.grouping import (
    LateRows,
    late_rows_of,
    late_topics_of,
    rows_of,
    topics_of,
)
from moldau.protocol.own.diskless import find_batches as find_wire
from moldau.protocol.own.diskless import list_offsets as offsets_wire
from moldau.protocol.own.rights import Right
from moldau.protocol.rows import PARTITIONS


def _topic_ids(request: Any) -> Iterable[UUID]:
    return {topic.topic_id for topic in request.topics}


def _info(batch: calls.BatchCoordinate) -> find_wire.DisklessBatchInfo:
    return find_wire.DisklessBatchInfo(
        object_key=batch.object_key,
        byte_offset=batch.byte_offset,
        byte_size=batch.size_bytes,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        log_append_timestamp=batch.log_append_time_ms,
        batch_max_timestamp=batch.max_timestamp_ms,
        timestamp_type=batch.timestamp_type,
        is_transactional=batch.is_transactional,
        markers=() if batch.marker is None else (find_wire.DisklessMarkerInfo(**batch.marker._asdict()),),
    )


def _end_in(info: Any) -> calls.TransactionEnd | None:
    for row in info.markers:
        return calls.TransactionEnd(row.producer_id, row.producer_epoch, row.coordinator_epoch, row.committed)
    return None


def _coordinates(topic_id: UUID, index: int, infos: Iterable[Any]) -> list[calls.BatchCoordinate]:
    return [
        calls.BatchCoordinate(
            topic_id,
            index,
            info.base_offset,
            info.last_offset,
            info.object_key,
            info.byte_offset,
            info.byte_size,
            info.log_append_timestamp,
            info.batch_max_timestamp,
            info.timestamp_type,
            info.is_transactional,
            _end_in(info) if info.is_transactional else None,
        )
        for info in infos
    ]


# -- find batches ------------------------------------------------------------------------------


def _find_fields(call: calls.FindBatchesCall, version: int) -> Fields:
    topics = topics_of(
        call.partitions,
        find_wire.DisklessFindBatchesTopic,
        lambda row: find_wire.DisklessFindBatchesPartition(
            partition_index=row.partition_index,
            offset=row.offset,
            max_partition_fetch_bytes=row.max_bytes,
        ),
    )
    return {
        **topics,
        "fetch_max_bytes": call.max_bytes,
        "max_batches_per_partition": call.max_batches_per_partition,
        "min_bytes": call.min_bytes,
        "max_wait_ms": call.max_wait_ms,
    }


def _find_arguments(request: Any) -> calls.FindBatchesCall:
    return calls.FindBatchesCall(
        late_rows_of(
            request,
            lambda topic_id, row: calls.PartitionToFind(
                topic_id, row.partition_index, row.offset, row.max_partition_fetch_bytes
            ),
        ),
        request.fetch_max_bytes,
        request.max_batches_per_partition,
        request.min_bytes,
        # The wait is limited to half of the caller's time-out. Therefore the caller gets the available
        # batches before its time-out ends.
        min(request.max_wait_ms, request.timeout_ms // 2),
    )


def _found_fields(results: Sequence[calls.FoundPartition], version: int) -> Fields:
    return late_topics_of(
        results,
        find_wire.DisklessFindBatchesTopicResult,
        lambda found: find_wire.DisklessFindBatchesPartitionResult(
            partition_index=found.partition_index,
            error_code=found.error,
            error_message=found.message,
            log_start_offset=found.log_start_offset,
            high_watermark=found.high_watermark,
            wal_start_offset=found.wal_start_offset,
            moved_to_tier=found.moved_to_tier,
            batches=LateRows(found.batches, _info),
            last_stable_offset=found.last_stable_offset,
            aborted=[find_wire.DisklessAbortedRange(**each._asdict()) for each in found.aborted],
            remote_metadata_position=found.remote_metadata_position,
        ),
    )


def _found(response: Any) -> list[calls.FoundPartition]:
    return rows_of(
        response,
        lambda topic_id, row: calls.FoundPartition(
            topic_id,
            row.partition_index,
            row.error_code,
            row.error_message,
            row.log_start_offset,
            row.wal_start_offset,
            row.high_watermark,
            row.moved_to_tier,
            _coordinates(topic_id, row.partition_index, row.batches),
            row.last_stable_offset,
            [calls.AbortedRange(one.producer_id, one.first_offset, one.last_offset) for one in row.aborted],
            row.remote_metadata_position,
        ),
    )


# A request is never divided into slices, because ``min_bytes`` applies to all its partitions together. The
# memory limit allows about 95,000 partitions.
FIND_BATCHES: Final = DisklessCall(
    request=find_wire.REQUEST,
    response=find_wire.RESPONSE,
    right=Right.READ_TOPIC,
    topic_ids=_topic_ids,
    serve=lambda coordinators, coordinator_id, call: coordinators.find_batches(coordinator_id, call),
    request_fields=_find_fields,
    arguments=_find_arguments,
    response_fields=_found_fields,
    result=_found,
    lane=lambda call: Lane.WAITING if call.max_wait_ms else Lane.SHARED,
    long_answers=(("topics", "partitions"), ("topics", "partitions", "batches")),
    parsed_bytes_max=16 * 1024 * 1024,
)

# -- list offsets ------------------------------------------------------------------------------


def _offsets_fields(timestamps: Sequence[calls.TimestampToList], version: int) -> Fields:
    return topics_of(
        timestamps,
        offsets_wire.DisklessListOffsetsTopic,
        lambda row: offsets_wire.DisklessListOffsetsPartition(
            partition_index=row.partition_index, timestamp=row.timestamp_ms
        ),
    )


def _offsets_arguments(request: Any) -> Sequence[calls.TimestampToList]:
    return rows_of(
        request,
        lambda topic_id, row: calls.TimestampToList(topic_id, row.partition_index, row.timestamp),
    )


def _listed_fields(results: Sequence[calls.ListedOffset], version: int) -> Fields:
    return topics_of(
        results,
        offsets_wire.DisklessListOffsetsTopicResult,
        lambda found: offsets_wire.DisklessListOffsetsPartitionResult(
            partition_index=found.partition_index,
            error_code=found.error,
            error_message=found.message,
            timestamp=found.timestamp_ms,
            offset=found.offset,
            log_start_offset=found.log_start_offset,
            wal_start_offset=found.wal_start_offset,
            last_stable_offset=found.last_stable_offset,
            batches=[] if found.batch is None else [_info(found.batch)],
            remote_metadata_position=found.remote_metadata_position,
        ),
    )


def _listed(response: Any) -> list[calls.ListedOffset]:
    return rows_of(
        response,
        lambda topic_id, row: calls.ListedOffset(
            topic_id,
            row.partition_index,
            row.error_code,
            row.error_message,
            row.timestamp,
            row.offset,
            row.log_start_offset,
            row.wal_start_offset,
            next(iter(_coordinates(topic_id, row.partition_index, row.batches)), None),
            row.last_stable_offset,
            row.remote_metadata_position,
        ),
    )


LIST_OFFSETS: Final = DisklessCall(
    request=offsets_wire.REQUEST,
    response=offsets_wire.RESPONSE,
    right=Right.READ_TOPIC,
    topic_ids=_topic_ids,
    serve=lambda coordinators, coordinator_id, times: coordinators.list_offsets(coordinator_id, times),
    request_fields=_offsets_fields,
    arguments=_offsets_arguments,
    response_fields=_listed_fields,
    result=_listed,
    cuts=(PARTITIONS,),
)
