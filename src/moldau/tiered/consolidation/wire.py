"""Converts plans to and from the messages of APIs 11656 to 11658. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from moldau.cluster.image.log_generations import LogGenerations
from moldau.coordinators.diskless.codecs.columns import ColumnError, ColumnReader, put_column, put_varint
from moldau.protocol.own.consolidation.lease import ConsolidationLeasePartition
from moldau.protocol.own.consolidation.plan import (
    ConsolidationHeldPlan,
    ConsolidationPlanResponse,
    ConsolidationSegment,
)
from moldau.protocol.own.consolidation.publish import ConsolidationCopy, ConsolidationPublished
from moldau.tiered.consolidation.plan import PlannedRun, PlannedSegment, epochs_of
from moldau.tiered.consolidation.work import BuiltCopy, HeldPlan, Plan, PlannedWork, PublishedSegment
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

__all__ = [
    "as_copy",
    "as_partition",
    "as_plan",
    "as_published",
    "copy_message",
    "partition_message",
    "plan_fields",
    "published_message",
]


def plan_fields(plan: Plan) -> Mapping[str, Any]:
    """Return the values of a plan for the fields of a response."""
    numbers: dict[str, int] = {}
    segments = [_segment_message(work, numbers) for work in plan.work]
    return {
        "lease_id": plan.lease_id,
        "lease_until_ms": plan.until_ms,
        "object_keys": list(numbers),
        "segments": segments,
        "held": [
            ConsolidationHeldPlan(engine=one.engine, until_ms=one.until_ms, partitions=one.partitions)
            for one in plan.held
        ],
    }


def _segment_message(work: PlannedWork, numbers: dict[str, int]) -> ConsolidationSegment:
    segment, metadata = work.segment, work.segment.metadata
    runs = segment.runs
    columns = bytearray()
    put_varint(columns, len(runs))
    put_column(columns, [numbers.setdefault(run.object_key, len(numbers)) for run in runs])
    put_column(columns, [run.byte_offset for run in runs])
    put_column(columns, [run.size_bytes for run in runs])
    put_column(columns, [run.last_offset - run.base_offset for run in runs])
    put_column(columns, [run.append_time_ms for run in runs])
    return ConsolidationSegment(
        topic_id=metadata.id.topic_id,
        topic=metadata.id.topic,
        partition_index=metadata.id.partition,
        leader_epoch=work.epoch,
        segment_id=metadata.id.id,
        base_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        size_bytes=metadata.segment_size_bytes,
        max_timestamp_ms=metadata.max_timestamp_ms,
        event_timestamp_ms=metadata.event_timestamp_ms,
        broker_id=metadata.broker_id,
        txn_index_empty=metadata.txn_index_empty,
        index_interval_bytes=segment.index_interval_bytes,
        runs=bytes(columns),
        generation_starts=segment.generations.starts,
    )


def as_plan(message: ConsolidationPlanResponse) -> Plan:
    """Read a plan from a response. Raises :class:`ColumnError` if the runs of a segment are invalid. A run is
    a group of adjacent batches in one object, or a single marker."""
    keys = list(message.object_keys)
    work = [PlannedWork(_segment(one, keys), one.leader_epoch) for one in message.segments]
    held = [HeldPlan(one.engine, one.until_ms, one.partitions) for one in message.held]
    return Plan(message.lease_id, message.lease_until_ms, work, held)


def _segment(message: ConsolidationSegment, keys: Sequence[str]) -> PlannedSegment:
    reader = ColumnReader(message.runs)
    count = reader.count(max(0, message.size_bytes))  # A run has at least one byte.
    objects, starts, sizes, deltas, times = (reader.column(count) for _ in range(5))
    reader.end()
    runs: list[PlannedRun] = []
    offset = message.base_offset
    for at in range(count):
        if not 0 <= objects[at] < len(keys):
            raise ColumnError(f"there is no object number {objects[at]}")
        last_offset = offset + deltas[at]
        runs.append(PlannedRun(keys[objects[at]], starts[at], sizes[at], offset, last_offset, times[at]))
        offset = last_offset + 1
    if offset != message.end_offset + 1 or sum(sizes) != message.size_bytes:
        raise ColumnError("the runs are not those of the segment")
    generations = LogGenerations(tuple(message.generation_starts))
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(message.topic_id, message.topic, message.partition_index, message.segment_id),
        start_offset=message.base_offset,
        end_offset=message.end_offset,
        max_timestamp_ms=message.max_timestamp_ms,
        broker_id=message.broker_id,
        event_timestamp_ms=message.event_timestamp_ms,
        segment_size_bytes=message.size_bytes,
        leader_epochs=epochs_of(generations, message.base_offset, message.end_offset),
        txn_index_empty=message.txn_index_empty,
    )
    return PlannedSegment(metadata, tuple(runs), message.index_interval_bytes, generations)


def copy_message(copy: BuiltCopy) -> ConsolidationCopy:
    topic_id, topic, index = copy.partition
    return ConsolidationCopy(
        topic_id=topic_id,
        topic=topic,
        partition_index=index,
        leader_epoch=copy.epoch,
        segment_id=copy.segment_id,
        custom_metadata=copy.custom_metadata,
    )


def as_copy(message: ConsolidationCopy) -> BuiltCopy:
    return BuiltCopy(
        TopicIdPartition(message.topic_id, message.topic, message.partition_index),
        message.segment_id,
        message.leader_epoch,
        message.custom_metadata,
    )


def published_message(published: PublishedSegment) -> ConsolidationPublished:
    return ConsolidationPublished(
        segment_id=published.segment_id,
        error_code=published.error,
        error_message=published.message,
        is_waiting=published.is_waiting,
    )


def as_published(message: ConsolidationPublished) -> PublishedSegment:
    segment_id: UUID = message.segment_id
    return PublishedSegment(segment_id, message.error_code, message.error_message, message.is_waiting)


def partition_message(partition: TopicIdPartition) -> ConsolidationLeasePartition:
    topic_id, topic, index = partition
    return ConsolidationLeasePartition(topic_id=topic_id, topic=topic, partition_index=index)


def as_partition(message: ConsolidationLeasePartition) -> TopicIdPartition:
    return TopicIdPartition(message.topic_id, message.topic, message.partition_index)
