"""CreatePartitions: adds partitions to existing topics."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.decisions.partitions.placement import check_assignment, place
from moldau.cluster.decisions.topics import (
    check_any_active,
    check_partition_limit,
    check_room,
    new_partition,
)
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.delta import image_of
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def create_partitions(view: View, request: CreatePartitionsRequest) -> ControllerResult:
    """Raise partition counts. Each topic is decided separately."""
    counts = Counter(topic.name for topic in request.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    records: list[Message] = []
    limit = view.settings.partitions_per_request_max
    for topic in request.topics:
        code, message = ErrorCode.none, None
        try:
            if counts[topic.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            new = _add_partitions(view, topic, limit, limit - len(records))
            if topic is not request.topics[-1]:
                view = replace(view, image=image_of(new, view.image))
            records += new
        except KafkaError as error:
            code, message = error.code, error.message
        results[topic.name] = CreatePartitionsTopicResult(
            name=topic.name, error_code=code, error_message=message
        )
    response = CreatePartitionsResponse(results=list(results.values()))
    return ControllerResult(response, () if request.validate_only else records)


def _add_partitions(view: View, request: CreatePartitionsTopic, limit: int, left: int) -> list[Message]:
    topic = view.image.topics.get(request.name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{request.name}' does not exist.")
    current = len(topic.partitions)
    if request.count == current:
        raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {current} partition(s).")
    if request.count < current:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"The topic {topic.name} currently has {current} partition(s); "
            f"{request.count} would not be an increase.",
        )
    added = request.count - current
    check_partition_limit(limit, left, added)
    replication_factor = len(topic.partitions[0].replicas)
    if request.assignments is not None:
        assignments = [tuple(assignment.broker_ids) for assignment in request.assignments]
        _check_assignments(view, current, added, assignments, replication_factor)
    else:
        assignments = place(view.image.brokers.values(), added, replication_factor, view.entropy)
    check_room(view, assignments)
    owners = kind_of(topic).owners(view, added)
    return [
        new_partition(view, topic.topic_id, current + index, replicas, owner)
        for index, (replicas, owner) in enumerate(zip(assignments, owners, strict=True))
    ]


def _check_assignments(
    view: View, first: int, count: int, assignments: Sequence[tuple[int, ...]], replication_factor: int
) -> None:
    if len(assignments) != count:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {count} partition(s), but {len(assignments)} assignment(s) were specified.",
        )
    for index, replicas in enumerate(assignments, first):
        check_assignment(view.image, index, replicas, replication_factor)
        check_any_active(view, index, replicas)
