"""The calls of command-line tools: the topics and the state of a coordinator."""

from typing import Any, Final

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Fields
from moldau.coordinators.diskless.calls.grouping import by_topic
from moldau.protocol.own.diskless import describe_coordinator as coordinator_wire
from moldau.protocol.own.diskless import describe_topics as topics_wire
from moldau.protocol.own.rights import Right

# -- describe topics ---------------------------------------------------------------------------


def _topics_fields(call: calls.DescribeTopicsCall, version: int) -> Fields:
    topic_ids = None if call.topic_ids is None else list(call.topic_ids)
    return {"topic_ids": topic_ids, "with_object_keys": call.with_object_keys}


def _topics_arguments(request: Any) -> calls.DescribeTopicsCall:
    return calls.DescribeTopicsCall(request.topic_ids, request.with_object_keys)


def _described_topics_fields(found: calls.DescribedTopics, version: int) -> Fields:
    topics = []
    for topic_id, partitions in by_topic(found.partitions):
        objects = found.objects[topic_id]
        rows = [
            topics_wire.DisklessDescribedPartition(
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
        ]
        topics.append(
            topics_wire.DisklessDescribedTopic(
                topic_id=topic_id,
                name=partitions[0].topic_name,
                objects=objects.objects,
                objects_bytes=objects.size_bytes,
                deleted_bytes=objects.deleted_bytes,
                object_keys=objects.object_keys,
                partitions=rows,
            )
        )
    return {"topics": topics}


def _described_topics(response: Any) -> calls.DescribedTopics:
    partitions = [
        calls.DescribedPartition(
            topic.topic_id,
            row.partition_index,
            topic.name,
            row.log_start_offset,
            row.wal_start_offset,
            row.high_watermark,
            row.size_bytes,
            row.batches,
            row.objects_bytes,
            row.deleted_bytes,
        )
        for topic in response.topics
        for row in topic.partitions
    ]
    objects = {
        topic.topic_id: calls.DescribedObjects(
            topic.objects, topic.objects_bytes, topic.deleted_bytes, topic.object_keys
        )
        for topic in response.topics
    }
    return calls.DescribedTopics(partitions, objects)


DESCRIBE_TOPICS: Final = DisklessCall(
    request=topics_wire.REQUEST,
    response=topics_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, call: coordinators.describe_topics_and_objects(
        coordinator_id, call
    ),
    request_fields=_topics_fields,
    arguments=_topics_arguments,
    response_fields=_described_topics_fields,
    result=_described_topics,
)

# -- describe coordinator ----------------------------------------------------------------------


def _state_fields(found: calls.DescribedCoordinator, version: int) -> Fields:
    fields = found._asdict()
    del fields["coordinator_id"]
    return fields


def _state(response: Any) -> calls.DescribedCoordinator:
    """The description of a coordinator. The caller sets the coordinator's number."""
    return calls.DescribedCoordinator(
        -1,
        response.epoch,
        response.partitions,
        response.live_batches,
        response.files,
        response.applied_offset,
        response.log_start_offset,
        response.log_end_offset,
        response.snapshot_offset,
        response.snapshot_epoch,
    )


DESCRIBE_COORDINATOR: Final = DisklessCall(
    request=coordinator_wire.REQUEST,
    response=coordinator_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, nothing: coordinators.describe_coordinator(coordinator_id),
    request_fields=lambda nothing, version: {},
    arguments=lambda request: None,
    response_fields=_state_fields,
    result=_state,
)
