"""AlterChunkAssignments begins and cancels moves of inactive chunks to other brokers. Pure.

A move adds the new replicas, which copy the chunk. The old replicas leave when all new replicas have the
chunk.
"""

from dataclasses import replace

from moldau.cluster.decisions.chunks.admission import check_active, original_replicas
from moldau.cluster.decisions.chunks.lookup import FoundChunk, changed, chunk_of, with_replicas
from moldau.cluster.decisions.partitions.placement import check_assignment
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.protocol.own.chunks import alter_chunk_assignments as messages
from moldau.protocol.records.metadata import ChunkChangeRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def alter_chunk_assignments(view: View, request: messages.AlterChunkAssignmentsRequest) -> ControllerResult:
    """Begin moves of chunks, or cancel moves in progress. Each chunk is decided separately."""
    records: list[Message] = []
    results = []
    seen: set[tuple[str, int, int]] = set()
    for row in request.chunks:
        code, message = ErrorCode.none, None
        key = (row.topic_name, row.partition_id, row.start_offset)
        try:
            if key in seen:
                raise KafkaError(ErrorCode.invalid_request, "The chunk is named more than once.")
            seen.add(key)
            record = _change(view, row)
            if record is not None:
                records.append(record)
        except KafkaError as error:
            code, message = error.code, error.message
        results.append(
            messages.AlterChunkAssignmentResult(
                topic_name=row.topic_name,
                partition_id=row.partition_id,
                start_offset=row.start_offset,
                error_code=code,
                error_message=message,
            )
        )
    return ControllerResult(messages.AlterChunkAssignmentsResponse(results=results), records)


def _change(view: View, row: messages.AlterChunkAssignment) -> ChunkChangeRecord | None:
    topic = view.image.topics.get(row.topic_name)
    if topic is None or not 0 <= row.partition_id < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "There is no such partition.")
    found = chunk_of(topic, row.partition_id, row.start_offset)
    chunk = found.chunk
    if row.chunk_epoch not in (-1, chunk.epoch):
        raise KafkaError(
            ErrorCode.invalid_update_version,
            f"The chunk has epoch {chunk.epoch}, not {row.chunk_epoch}: it has changed since.",
        )
    original = original_replicas(chunk.replicas, chunk.adding_replicas)
    if row.broker_ids is None:
        if not chunk.is_moving:
            raise KafkaError(ErrorCode.no_reassignment_in_progress, "No move of the chunk is in progress.")
        return changed(found, _moved(chunk, original, original))
    target = tuple(row.broker_ids)
    _check_target(view, found, original, target)
    return changed(found, _moved(chunk, original, target))


def _check_target(view: View, found: FoundChunk, original: tuple[int, ...], target: tuple[int, ...]) -> None:
    check_assignment(view.image, found.partition_index, target, None)
    partition = found.partition
    count = len(original_replicas(partition.replicas, partition.adding_replicas))
    if len(target) != count:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"A chunk of this partition has {count} replicas, not {len(target)}.",
        )
    check_active(view.image, [each for each in target if each not in original])


def _moved(chunk: ChunkRegistration, original: tuple[int, ...], target: tuple[int, ...]) -> ChunkRegistration:
    """The chunk during its move to ``target``. New replicas of a previous move are removed immediately.

    Raises ``KafkaError(invalid_replica_assignment)`` if these replicas have the only complete copies.
    """
    removing = tuple(each for each in original if each not in target)
    adding = tuple(each for each in target if each not in original)
    moved = with_replicas(chunk, (*target, *removing))
    if chunk.isr and not moved.isr:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment, "No replica that would stay has all of the chunk."
        )
    return replace(moved, adding_replicas=adding, removing_replicas=removing)
