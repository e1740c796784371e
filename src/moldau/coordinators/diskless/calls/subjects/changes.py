"""The calls that change the partitions of a coordinator."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Fields
from moldau.coordinators.diskless.calls.epochs import epochs_of_prunes
from moldau.coordinators.diskless.calls.grouping import rows_of, topics_of
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.protocol.own.diskless import create_partitions as create_wire
from moldau.protocol.own.diskless import delete_records as records_wire
from moldau.protocol.own.diskless import delete_topics as topics_wire
from moldau.protocol.own.diskless import prune as prune_wire
from moldau.protocol.own.rights import Right
from moldau.protocol.rows import PARTITIONS, Cut
from moldau.runtime import ErrorCode, KafkaError

PARTITIONS_MAX: Final = 1_000
"""Maximum number of partitions in one request. Without a limit, a small request could create very many
partitions, because a request contains only their count. The records of one request are replayed in one
iteration of the event loop. With this limit, the iteration takes about 10 ms."""


def _result_rows(row: Callable[..., Any], results: Iterable[calls.TopicResult]) -> list[Any]:
    return [
        row(topic_id=topic_id, error_code=error, error_message=message)
        for topic_id, error, message in results
    ]


def _topic_results(rows: Iterable[Any]) -> list[calls.TopicResult]:
    return [calls.TopicResult(row.topic_id, row.error_code, row.error_message) for row in rows]


# -- create partitions -------------------------------------------------------------------------


def _create_fields(topics: Sequence[calls.PartitionsToCreate], version: int) -> Fields:
    rows = [
        create_wire.DisklessCreatablePartitions(
            topic_id=topic.topic_id,
            name=topic.name,
            num_partitions=-1,
            partition_indexes=list(topic.partition_indexes),
        )
        for topic in topics
    ]
    return {"topics": rows}


def _create_arguments(request: Any) -> Sequence[calls.PartitionsToCreate]:
    if sum(_count(topic) for topic in request.topics) > PARTITIONS_MAX:
        raise KafkaError(ErrorCode.invalid_request, f"more than {PARTITIONS_MAX} partitions in one call")
    return [
        calls.PartitionsToCreate(
            topic.topic_id,
            topic.name,
            range(topic.num_partitions) if topic.partition_indexes is None else topic.partition_indexes,
        )
        for topic in request.topics
    ]


def _count(topic: Any) -> int:
    indexes = topic.partition_indexes
    return max(0, topic.num_partitions) if indexes is None else len(indexes)


def _created_fields(results: Sequence[calls.TopicResult], version: int) -> Fields:
    return {"topics": _result_rows(create_wire.DisklessCreatablePartitionsResult, results)}


CREATE_PARTITIONS: Final = DisklessCall(
    request=create_wire.REQUEST,
    response=create_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, topics: coordinators.create_partitions(coordinator_id, topics),
    request_fields=_create_fields,
    arguments=_create_arguments,
    response_fields=_created_fields,
    result=lambda response: _topic_results(response.topics),
    cuts=(Cut(("topics",), ("topics",)),),
)

# -- delete topics -----------------------------------------------------------------------------


def _topics_fields(topic_ids: Sequence[UUID], version: int) -> Fields:
    return {"topics": [topics_wire.DisklessDeletableTopicState(topic_id=topic_id) for topic_id in topic_ids]}


def _topic_ids(request: Any) -> Sequence[UUID]:
    return [topic.topic_id for topic in request.topics]


def _deleted_topics_fields(results: Sequence[calls.TopicResult], version: int) -> Fields:
    return {"responses": _result_rows(topics_wire.DisklessDeletableTopicResult, results)}


DELETE_TOPICS: Final = DisklessCall(
    request=topics_wire.REQUEST,
    response=topics_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, ids: coordinators.delete_topics(coordinator_id, ids),
    request_fields=_topics_fields,
    arguments=_topic_ids,
    response_fields=_deleted_topics_fields,
    result=lambda response: _topic_results(response.responses),
    cuts=(Cut(("topics",), ("responses",)),),
)

# -- delete records ----------------------------------------------------------------------------


def _records_fields(offsets: Sequence[calls.OffsetToDelete], version: int) -> Fields:
    return topics_of(
        offsets,
        records_wire.DisklessDeleteRecordsTopic,
        lambda row: records_wire.DisklessDeleteRecordsPartition(
            partition_index=row.partition_index, offset=row.offset
        ),
    )


def _records_arguments(request: Any) -> Sequence[calls.OffsetToDelete]:
    return rows_of(
        request,
        lambda topic_id, row: calls.OffsetToDelete(topic_id, row.partition_index, row.offset),
    )


def _deleted_records_fields(results: Sequence[calls.DeletedRecords], version: int) -> Fields:
    return topics_of(
        results,
        records_wire.DisklessDeleteRecordsTopicResult,
        lambda found: records_wire.DisklessDeleteRecordsPartitionResult(
            partition_index=found.partition_index,
            error_code=found.error,
            error_message=found.message,
            low_watermark=found.low_watermark,
        ),
    )


def _deleted_records(response: Any) -> list[calls.DeletedRecords]:
    return rows_of(
        response,
        lambda topic_id, row: calls.DeletedRecords(
            topic_id, row.partition_index, row.error_code, row.error_message, row.low_watermark
        ),
    )


DELETE_RECORDS: Final = DisklessCall(
    request=records_wire.REQUEST,
    response=records_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, offsets: coordinators.delete_records(coordinator_id, offsets),
    request_fields=_records_fields,
    arguments=_records_arguments,
    response_fields=_deleted_records_fields,
    result=_deleted_records,
    cuts=(PARTITIONS,),
)

# -- prune -------------------------------------------------------------------------------------


def _prune_fields(prunes: Sequence[calls.PruneCall], version: int) -> Fields:
    return topics_of(
        prunes,
        prune_wire.DisklessPruneTopic,
        lambda row: prune_wire.DisklessPrunePartition(
            partition_index=row.partition_index,
            from_offset=row.from_offset,
            to_offset=row.to_offset,
            epoch=row.epoch,
            remote_metadata_position=row.remote_metadata_position,
        ),
    )


def _prune_arguments(request: Any) -> Sequence[calls.PruneCall]:
    return rows_of(
        request,
        lambda topic_id, row: calls.PruneCall(
            topic_id,
            row.partition_index,
            row.from_offset,
            row.to_offset,
            row.epoch,
            row.remote_metadata_position,
        ),
    )


async def _prune(
    coordinators: ServedCalls, coordinator_id: int, prunes: Sequence[calls.PruneCall]
) -> Sequence[calls.PrunedPartition]:
    return [await coordinators.prune(coordinator_id, call) for call in prunes]


def _pruned_fields(results: Sequence[calls.PrunedPartition], version: int) -> Fields:
    return topics_of(
        results,
        prune_wire.DisklessPruneTopicResult,
        lambda found: prune_wire.DisklessPrunePartitionResult(
            partition_index=found.partition_index,
            error_code=found.error,
            error_message=found.message,
            log_start_offset=found.log_start_offset,
            wal_start_offset=found.wal_start_offset,
            remote_metadata_position=found.remote_metadata_position,
            wal_size_bytes=found.wal_size_bytes,
            wal_batches=found.wal_batches,
        ),
    )


def _pruned(response: Any) -> Sequence[calls.PrunedPartition]:
    return rows_of(
        response,
        lambda topic_id, row: calls.PrunedPartition(
            topic_id,
            row.partition_index,
            row.error_code,
            row.error_message,
            row.log_start_offset,
            row.wal_start_offset,
            row.remote_metadata_position,
            row.wal_size_bytes,
            row.wal_batches,
        ),
    )


PRUNE: Final = DisklessCall(
    request=prune_wire.REQUEST,
    response=prune_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=_prune,
    request_fields=_prune_fields,
    arguments=_prune_arguments,
    response_fields=_pruned_fields,
    result=_pruned,
    named_epochs=epochs_of_prunes,
    cuts=(PARTITIONS,),
)
