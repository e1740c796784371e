"""Between the messages of APIs 11640 to 11655 and the calls.

:func:`answer` is what a broker does with a request. For callers, there is the hot one: ``commit_request``
and ``commit_result``.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.batch_columns import (
    decode_batches,
    decode_results,
    encode_batches,
    encode_results,
)
from moldau.coordinators.diskless.columns import ColumnError
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.protocol.own import diskless_close_files as close_files
from moldau.protocol.own import diskless_commit_file as commit_file
from moldau.protocol.own import diskless_create_partitions as create_partitions
from moldau.protocol.own import diskless_delete_records as delete_records
from moldau.protocol.own import diskless_delete_topics as delete_topics
from moldau.protocol.own import diskless_describe_coordinator as describe_coordinator
from moldau.protocol.own import diskless_describe_files as describe_files
from moldau.protocol.own import diskless_describe_topics as describe_topics
from moldau.protocol.own import diskless_find_batches as find_batches
from moldau.protocol.own import diskless_hand_over as hand_over
from moldau.protocol.own import diskless_list_offsets as list_offsets
from moldau.protocol.own import diskless_oldest_file as oldest_file
from moldau.protocol.own import diskless_prune as prune
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

COMMIT_COLUMNS_VERSION: Final = 1
"""From this version of CommitFile on, batches and results are columns."""


class OfPartition(Protocol):
    """A result that names its partition first."""

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partition_index(self) -> int: ...


R = TypeVar("R", bound=OfPartition)
T = TypeVar("T")


def by_topic(results: Iterable[R]) -> dict[UUID, list[R]]:
    """Results of partitions by topic, as responses have them."""
    found: dict[UUID, list[R]] = {}
    for result in results:
        found.setdefault(result.topic_id, []).append(result)
    return found


# -- batches -----------------------------------------------------------------------------------


def commit_call(request: commit_file.DisklessCommitFileRequest) -> calls.CommitFileCall:
    """Raises INVALID_REQUEST for columns that are none."""
    if request.columns:
        try:
            batches = decode_batches(request.columns)
        except ColumnError as error:
            raise KafkaError(ErrorCode.invalid_request, f"The batches cannot be read: {error}.") from error
    else:
        batches = [
            calls.BatchToCommit(
                batch.topic_id,
                batch.partition_index,
                batch.request_id,
                batch.byte_offset,
                batch.size,
                batch.last_offset - batch.base_offset,
                batch.last_offset - batch.base_offset + 1,
                batch.batch_max_timestamp,
                batch.timestamp_type,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
                calls.TRANSACTIONAL if batch.is_transactional else 0,
            )
            for batch in request.batches
        ]
    return calls.CommitFileCall(
        request.object_key,
        request.file_size,
        request.created_ms,
        request.uploader_broker_id,
        batches,
        tuple(request.owner_ids),
        request.object_format,
    )


def commit_request(coordinator_id: int, call: calls.CommitFileCall) -> commit_file.DisklessCommitFileRequest:
    """In version 1."""
    return commit_file.DisklessCommitFileRequest(
        coordinator_id=coordinator_id,
        object_key=call.object_key,
        object_format=call.object_format,
        file_size=call.size_bytes,
        created_ms=call.created_ms,
        uploader_broker_id=call.uploader_broker_id,
        owner_ids=call.owner_ids,
        columns=encode_batches(call.batches),
    )


def commit_response(result: calls.CommitFileResult, version: int) -> commit_file.DisklessCommitFileResponse:
    if version >= COMMIT_COLUMNS_VERSION:
        return commit_file.DisklessCommitFileResponse(columns=encode_results(result.batches))
    return commit_file.DisklessCommitFileResponse(
        batches=[
            commit_file.DisklessCommitBatchResult(
                error_code=batch.error,
                error_message=batch.message,
                assigned_base_offset=batch.base_offset,
                log_append_time=batch.log_append_time_ms,
                log_start_offset=batch.log_start_offset,
                is_duplicate=batch.is_duplicate,
            )
            for batch in result.batches
        ]
    )


def commit_result(response: commit_file.DisklessCommitFileResponse) -> calls.CommitFileResult:
    """Of version 1."""
    return calls.CommitFileResult(decode_results(response.columns))


def _infos(kind: Callable[..., T], batches: Sequence[calls.BatchCoordinate]) -> list[T]:
    return [
        kind(
            object_key=batch.object_key,
            byte_offset=batch.byte_offset,
            byte_size=batch.size_bytes,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            log_append_timestamp=batch.log_append_time_ms,
            batch_max_timestamp=batch.max_timestamp_ms,
            timestamp_type=batch.timestamp_type,
        )
        for batch in batches
    ]


# -- requests that are answered ----------------------------------------------------------------

Handler = Callable[[DisklessCoordinator, Any, int], Awaitable[Message]]


async def _create_partitions(
    service: DisklessCoordinator, request: create_partitions.DisklessCreatePartitionsRequest, version: int
) -> Message:
    topics = [
        calls.PartitionsToCreate(
            topic.topic_id,
            topic.name,
            range(topic.num_partitions) if topic.partition_indexes is None else topic.partition_indexes,
        )
        for topic in request.topics
    ]
    results = await service.create_partitions(request.coordinator_id, topics)
    return create_partitions.DisklessCreatePartitionsResponse(
        topics=[
            create_partitions.DisklessCreatablePartitionsResult(
                topic_id=topic_id, error_code=error, error_message=message
            )
            for topic_id, error, message in results
        ]
    )


async def _delete_topics(
    service: DisklessCoordinator, request: delete_topics.DisklessDeleteTopicsRequest, version: int
) -> Message:
    topic_ids = [topic.topic_id for topic in request.topics]
    results = await service.delete_topics(request.coordinator_id, topic_ids)
    return delete_topics.DisklessDeleteTopicsResponse(
        responses=[
            delete_topics.DisklessDeletableTopicResult(
                topic_id=topic_id, error_code=error, error_message=message
            )
            for topic_id, error, message in results
        ]
    )


async def _commit_file(
    service: DisklessCoordinator, request: commit_file.DisklessCommitFileRequest, version: int
) -> Message:
    result = await service.commit_file(request.coordinator_id, commit_call(request))
    return commit_response(result, version)


async def _delete_records(
    service: DisklessCoordinator, request: delete_records.DisklessDeleteRecordsRequest, version: int
) -> Message:
    offsets = [
        calls.OffsetToDelete(topic.topic_id, partition.partition_index, partition.offset)
        for topic in request.topics
        for partition in topic.partitions
    ]
    results = await service.delete_records(request.coordinator_id, offsets)
    return delete_records.DisklessDeleteRecordsResponse(
        topics=[
            delete_records.DisklessDeleteRecordsTopicResult(
                topic_id=topic_id,
                partitions=[
                    delete_records.DisklessDeleteRecordsPartitionResult(
                        partition_index=found.partition_index,
                        error_code=found.error,
                        error_message=found.message,
                        low_watermark=found.low_watermark,
                    )
                    for found in partitions
                ],
            )
            for topic_id, partitions in by_topic(results).items()
        ]
    )


async def _list_offsets(
    service: DisklessCoordinator, request: list_offsets.DisklessListOffsetsRequest, version: int
) -> Message:
    timestamps = [
        calls.TimestampToList(topic.topic_id, partition.partition_index, partition.timestamp)
        for topic in request.topics
        for partition in topic.partitions
    ]
    results = await service.list_offsets(request.coordinator_id, timestamps)
    return list_offsets.DisklessListOffsetsResponse(
        topics=[
            list_offsets.DisklessListOffsetsTopicResult(
                topic_id=topic_id,
                partitions=[
                    list_offsets.DisklessListOffsetsPartitionResult(
                        partition_index=found.partition_index,
                        error_code=found.error,
                        error_message=found.message,
                        timestamp=found.timestamp_ms,
                        offset=found.offset,
                        log_start_offset=found.log_start_offset,
                        wal_start_offset=found.wal_start_offset,
                        last_stable_offset=found.last_stable_offset,
                        batches=_infos(
                            list_offsets.DisklessBatchInfo, () if found.batch is None else (found.batch,)
                        ),
                    )
                    for found in partitions
                ],
            )
            for topic_id, partitions in by_topic(results).items()
        ]
    )


async def _find_batches(
    service: DisklessCoordinator, request: find_batches.DisklessFindBatchesRequest, version: int
) -> Message:
    call = calls.FindBatchesCall(
        [
            calls.PartitionToFind(
                topic.topic_id,
                partition.partition_index,
                partition.offset,
                partition.max_partition_fetch_bytes,
            )
            for topic in request.topics
            for partition in topic.partitions
        ],
        request.fetch_max_bytes,
        request.max_batches_per_partition,
        request.min_bytes,
        request.max_wait_ms,
    )
    results = await service.find_batches(request.coordinator_id, call)
    return find_batches.DisklessFindBatchesResponse(
        topics=[
            find_batches.DisklessFindBatchesTopicResult(
                topic_id=topic_id,
                partitions=[
                    find_batches.DisklessFindBatchesPartitionResult(
                        partition_index=found.partition_index,
                        error_code=found.error,
                        error_message=found.message,
                        log_start_offset=found.log_start_offset,
                        high_watermark=found.high_watermark,
                        wal_start_offset=found.wal_start_offset,
                        moved_to_tier=found.moved_to_tier,
                        batches=_infos(find_batches.DisklessBatchInfo, found.batches),
                        last_stable_offset=found.last_stable_offset,
                        aborted=[
                            find_batches.DisklessAbortedRange(**each._asdict()) for each in found.aborted
                        ],
                    )
                    for found in partitions
                ],
            )
            for topic_id, partitions in by_topic(results).items()
        ]
    )


async def _describe_files(
    service: DisklessCoordinator, request: describe_files.DisklessDescribeFilesRequest, version: int
) -> Message:
    if request.files is None:
        found = await service.list_files(request.coordinator_id, request.after_key, request.limit)
    else:
        keys = [entry.object_key for entry in request.files]
        found = await service.describe_files(request.coordinator_id, keys)
    return describe_files.DisklessDescribeFilesResponse(
        files=[
            describe_files.DisklessDescribeFileResult(
                object_key=file.object_key,
                has_live_batches=file.has_live_batches,
                is_known=file.is_known,
                is_closed=file.is_closed,
                file_size=file.size_bytes,
                used_bytes=file.used_bytes,
                live_batches=file.live_batches,
                created_ms=file.created_ms,
                is_owned=file.is_owned,
                next_owner_ids=file.next_owner_ids,
                unused_since_ms=file.unused_since_ms,
            )
            for file in found
        ]
    )


async def _oldest_file(
    service: DisklessCoordinator, request: oldest_file.DisklessOldestFileRequest, version: int
) -> Message:
    created_ms = await service.oldest_file(request.coordinator_id)
    return oldest_file.DisklessOldestFileResponse(created_ms=-1 if created_ms is None else created_ms)


async def _close_files(
    service: DisklessCoordinator, request: close_files.DisklessCloseFilesRequest, version: int
) -> Message:
    results = await service.close_files(request.coordinator_id, request.object_keys)
    return close_files.DisklessCloseFilesResponse(
        files=[
            close_files.DisklessClosedFile(
                object_key=file.object_key, error_code=file.error, error_message=file.message
            )
            for file in results
        ]
    )


async def _hand_over(
    service: DisklessCoordinator, request: hand_over.DisklessHandOverRequest, version: int
) -> Message:
    results = []
    for file in request.files:
        handed = calls.FileToHandOver(
            file.object_key, file.remaining_owner_ids, file.file_size, file.created_ms
        )
        await service.take_over(request.coordinator_id, handed)
        results.append(hand_over.DisklessHandedOverResult(object_key=file.object_key))
    return hand_over.DisklessHandOverResponse(files=results)


async def _prune(service: DisklessCoordinator, request: prune.DisklessPruneRequest, version: int) -> Message:
    results = [
        await service.prune(
            request.coordinator_id,
            calls.PruneCall(
                topic.topic_id,
                partition.partition_index,
                partition.from_offset,
                partition.to_offset,
                partition.epoch,
                partition.remote_metadata_position,
            ),
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    return prune.DisklessPruneResponse(
        topics=[
            prune.DisklessPruneTopicResult(
                topic_id=topic_id,
                partitions=[
                    prune.DisklessPrunePartitionResult(
                        partition_index=found.partition_index,
                        error_code=found.error,
                        error_message=found.message,
                        log_start_offset=found.log_start_offset,
                        wal_start_offset=found.wal_start_offset,
                        remote_metadata_position=found.remote_metadata_position,
                        wal_size_bytes=found.wal_size_bytes,
                        wal_batches=found.wal_batches,
                    )
                    for found in partitions
                ],
            )
            for topic_id, partitions in by_topic(results).items()
        ]
    )


async def _describe_topics(
    service: DisklessCoordinator, request: describe_topics.DisklessDescribeTopicsRequest, version: int
) -> Message:
    found = by_topic(await service.describe_topics(request.coordinator_id, request.topic_ids))
    objects = {
        topic_id: service.describe_objects(request.coordinator_id, topic_id, request.with_object_keys)
        for topic_id in found
    }
    return describe_topics.DisklessDescribeTopicsResponse(
        topics=[
            describe_topics.DisklessDescribedTopic(
                topic_id=topic_id,
                name=partitions[0].topic_name,
                objects=objects[topic_id].objects,
                objects_bytes=objects[topic_id].size_bytes,
                deleted_bytes=objects[topic_id].deleted_bytes,
                object_keys=objects[topic_id].object_keys,
                partitions=[
                    describe_topics.DisklessDescribedPartition(
                        partition_index=partition.partition_index,
                        log_start_offset=partition.log_start_offset,
                        wal_start_offset=partition.wal_start_offset,
                        high_watermark=partition.high_watermark,
                        size_bytes=partition.size_bytes,
                        batches=partition.batches,
                        objects_bytes=partition.objects_bytes,
                        deleted_bytes=partition.deleted_bytes,
                    )
                    for partition in partitions
                ],
            )
            for topic_id, partitions in found.items()
        ]
    )


async def _describe_coordinator(
    service: DisklessCoordinator,
    request: describe_coordinator.DisklessDescribeCoordinatorRequest,
    version: int,
) -> Message:
    found = await service.describe_coordinator(request.coordinator_id)
    return describe_coordinator.DisklessDescribeCoordinatorResponse(
        epoch=found.epoch,
        partitions=found.partitions,
        live_batches=found.live_batches,
        files=found.files,
        applied_offset=found.applied_offset,
        log_start_offset=found.log_start_offset,
        log_end_offset=found.log_end_offset,
        snapshot_offset=found.snapshot_offset,
        snapshot_epoch=found.snapshot_epoch,
    )


_HANDLERS: Final[dict[int, tuple[Handler, Callable[..., Message]]]] = {
    11640: (_create_partitions, create_partitions.RESPONSE),
    11641: (_delete_topics, delete_topics.RESPONSE),
    11642: (_commit_file, commit_file.RESPONSE),
    11643: (_delete_records, delete_records.RESPONSE),
    11644: (_list_offsets, list_offsets.RESPONSE),
    11645: (_find_batches, find_batches.RESPONSE),
    11647: (_describe_files, describe_files.RESPONSE),
    11650: (_oldest_file, oldest_file.RESPONSE),
    11651: (_close_files, close_files.RESPONSE),
    11652: (_hand_over, hand_over.RESPONSE),
    11653: (_prune, prune.RESPONSE),
    11654: (_describe_topics, describe_topics.RESPONSE),
    11655: (_describe_coordinator, describe_coordinator.RESPONSE),
}

API_KEYS: Final = tuple(_HANDLERS)
"""All APIs that :func:`answer` serves; they ask for CLUSTER_ACTION."""


async def answer(service: DisklessCoordinator, api_key: int, version: int, request: Message) -> Message:
    """The response; an error of the whole call is in it. The operation runs before the first suspension."""
    handler, response = _HANDLERS[api_key]
    try:
        return await handler(service, request, version)
    except KafkaError as error:
        return response(error_code=error.code, error_message=error.message)
