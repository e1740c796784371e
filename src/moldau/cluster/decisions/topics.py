"""The decisions to create and delete topics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from uuid import UUID

from moldau.cluster.decisions.kinds.table import check_removal, kind_of_new
from moldau.cluster.decisions.partitions.placement import check_assignment, default_directory, place
from moldau.cluster.decisions.topic_names import check_new_name
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.directories import RESERVED_DIRECTORY_COUNT
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.image.partition import NO_OWNER
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.metadata_topic import CLUSTER_METADATA_TOPIC
from moldau.protocol.records.metadata import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from moldau.protocol.schema import ZERO_UUID, Message
from moldau.runtime import ErrorCode, KafkaError

USE_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class _NewTopic:
    records: list[Message]
    result: CreatableTopicResult


def create_topics(view: View, request: CreateTopicsRequest) -> ControllerResult:
    """Create topics. Each topic is decided separately. With ``validate_only``, nothing is created.

    Raises ``KafkaError(policy_violation)`` if the request creates more partitions than allowed.
    """
    counts = Counter(topic.name for topic in request.topics)
    _check_request_size(view, [topic for topic in request.topics if counts[topic.name] == 1])
    results: list[CreatableTopicResult] = []
    records: list[Message] = []
    for topic in request.topics:
        if counts[topic.name] > 1:
            if not any(result.name == topic.name for result in results):
                results.append(_refused(topic.name, ErrorCode.invalid_request, "Duplicate topic name."))
            continue
        try:
            new = _create(view, topic)
        except KafkaError as error:
            results.append(_refused(topic.name, error.code, error.message))
            continue
        if topic is not request.topics[-1]:
            view = replace(view, image=image_of(new.records, view.image))
        records += new.records
        results.append(new.result)
    if request.validate_only:
        results = [_without_id(result) for result in results]
        records = []
    return ControllerResult(CreateTopicsResponse(topics=results), records)


def _check_request_size(view: View, topics: Sequence[CreatableTopic]) -> None:
    partitions_max, default = view.settings.partitions_per_request_max, view.settings.default_partition_count
    total = 0
    for topic in topics:
        asked = default if topic.num_partitions == USE_DEFAULT else max(0, topic.num_partitions)
        total += len(topic.assignments) or asked
    check_partition_limit(partitions_max, partitions_max, total)


def _create(view: View, topic: CreatableTopic) -> _NewTopic:
    if topic.name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(ErrorCode.invalid_request, f"Creation of internal topic {topic.name} is prohibited.")
    check_new_name(view.image.topics, topic.name)
    kind, configs = kind_of_new(view, topic.name, _requested_configs(topic))
    view.configs.validate(ResourceType.TOPIC, topic.name, configs)
    assignments = _assignments(view, topic)
    check_room(view, assignments)
    replication_factor = len(assignments[0])
    if view.topic_policy is not None:
        view.topic_policy.check(topic.name, len(assignments), replication_factor, configs)
    topic_id = new_topic_id(view)
    records: list[Message] = [TopicRecord(name=topic.name, topic_id=topic_id, kind=kind.mark)]
    records += [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=key, value=value)
        for key, value in sorted(configs.items())
    ]
    owners = kind.owners(view, len(assignments))
    records += [
        new_partition(view, topic_id, index, replicas, owner)
        for index, (replicas, owner) in enumerate(zip(assignments, owners, strict=True))
    ]
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(assignments),
        replication_factor=replication_factor,
        configs=_described(view, configs),
    )
    return _NewTopic(records, result)


def _requested_configs(topic: CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise KafkaError(
                ErrorCode.invalid_config, f"Null value not supported for topic config {config.name}."
            )
        configs[config.name] = config.value
    return configs


def _assignments(view: View, topic: CreatableTopic) -> list[tuple[int, ...]]:
    if topic.assignments:
        return _manual_assignments(view, topic)
    if topic.num_partitions < USE_DEFAULT or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            "Number of partitions must be larger than 0, or -1 to use the default value.",
        )
    if topic.replication_factor < USE_DEFAULT or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    settings = view.settings
    count = settings.default_partition_count if topic.num_partitions == USE_DEFAULT else topic.num_partitions
    factor = (
        settings.default_replication_factor
        if topic.replication_factor == USE_DEFAULT
        else topic.replication_factor
    )
    return place(view.image.brokers.values(), count, factor, view.entropy)


def check_partition_limit(partitions_max: int, partitions_left: int, count: int) -> None:
    """Raise ``KafkaError(policy_violation)`` if a request creates too many partitions. The number is limited
    because the records of one request become one atomic batch of the metadata log."""
    if count > partitions_left:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"One request can create at most {partitions_max} partitions; ask again for the rest.",
        )


def check_room(view: View, assignments: Sequence[tuple[int, ...]]) -> None:
    """Raise ``KafkaError(policy_violation)`` when a broker would have more partitions than allowed."""
    limit, held = view.settings.partitions_per_broker_max, view.image.topics.replica_load
    added = Counter(chain.from_iterable(assignments))
    for broker_id, count in sorted(added.items()):
        existing = held.get(broker_id, 0)
        if existing + count > limit:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"Broker {broker_id} holds {existing} partitions and may hold {limit} "
                f"(max.broker.partitions); {count} more do not fit.",
            )


def _manual_assignments(view: View, topic: CreatableTopic) -> list[tuple[int, ...]]:
    if topic.replication_factor != USE_DEFAULT or topic.num_partitions != USE_DEFAULT:
        field = "replication factor" if topic.replication_factor != USE_DEFAULT else "partition count"
        raise KafkaError(
            ErrorCode.invalid_request,
            f"A manual partition assignment was specified, but the {field} was not set to -1.",
        )
    by_index: dict[int, tuple[int, ...]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in by_index:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"Partition {assignment.partition_index} was assigned more than once.",
            )
        by_index[assignment.partition_index] = tuple(assignment.broker_ids)
    if sorted(by_index) != list(range(len(by_index))):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment, "Partitions must be numbered from 0 without a gap."
        )
    assignments = [by_index[index] for index in range(len(by_index))]
    for index, replicas in enumerate(assignments):
        check_assignment(view.image, index, replicas, len(assignments[0]))
        check_any_active(view, index, replicas)
    return assignments


def check_any_active(view: View, index: int, replicas: tuple[int, ...]) -> None:
    """Raise ``KafkaError(invalid_replica_assignment)`` if none of the ``replicas`` is on an active broker,
    because the partition would then have no leader."""
    if not any(view.is_active(broker_id) for broker_id in replicas):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"All brokers assigned to partition {index} are fenced or in controlled shutdown.",
        )


def new_topic_id(view: View) -> UUID:
    """Return an id that no topic has and that is not reserved by KIP-516."""
    while True:
        topic_id = view.entropy.uuid4()
        if topic_id.int >= RESERVED_DIRECTORY_COUNT and view.image.topics.get_by_id(topic_id) is None:
            return topic_id


def new_partition(
    view: View,
    topic_id: UUID,
    index: int,
    replicas: tuple[int, ...],
    owner: int = NO_OWNER,
) -> PartitionRecord:
    """A new partition. Its in-sync replicas are the active replicas. At least one replica must be active."""
    isr = tuple(broker_id for broker_id in replicas if view.is_active(broker_id))
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        removing_replicas=(),
        adding_replicas=(),
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(default_directory(view.image, broker_id) for broker_id in replicas),
        owner=owner,
    )


def _described(view: View, configs: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=config.name,
            value=None if config.is_sensitive else config.value,
            read_only=config.read_only,
            config_source=config.source,
            is_sensitive=config.is_sensitive,
        )
        for config in view.configs.describe_topic(configs)
    ]


def _refused(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message, configs=None)


def _without_id(result: CreatableTopicResult) -> CreatableTopicResult:
    """Return the result without a topic id, because the topic was not created."""
    return CreatableTopicResult(
        name=result.name,
        error_code=result.error_code,
        error_message=result.error_message,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=result.configs,
    )


def delete_topics(view: View, request: DeleteTopicsRequest) -> ControllerResult:
    """Delete topics by name or by id. Versions below 6 have only names."""
    states = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
    counts = Counter(_identity(view.image, state) for state in states)
    records: list[Message] = []
    responses: list[DeletableTopicResult] = []
    image = view.image
    for identity, state in {_identity(view.image, state): state for state in states}.items():
        try:
            if counts[identity] > 1 and identity is not None:
                raise KafkaError(ErrorCode.invalid_request, "The topic is named more than once.")
            if not view.settings.delete_topic_enable:
                raise KafkaError(ErrorCode.topic_deletion_disabled, "delete.topic.enable is false.")
            record, name = _delete(image, state)
        except KafkaError as error:
            responses.append(
                DeletableTopicResult(
                    name=state.name,
                    topic_id=state.topic_id,
                    error_code=error.code,
                    error_message=error.message,
                )
            )
            continue
        image = image_of([record], image)
        records.append(record)
        responses.append(DeletableTopicResult(name=name, topic_id=record.topic_id))
    return ControllerResult(DeleteTopicsResponse(responses=responses), records)


def _identity(image: MetadataImage, state: DeleteTopicState) -> str | UUID | None:
    """Return a value that identifies the topic: its name if the name is known, otherwise its topic id. If two
    entries of a request have equal values, the request names a topic twice."""
    if state.name is not None or state.topic_id == ZERO_UUID:
        return state.name
    topic = image.topics.get_by_id(state.topic_id)
    return state.topic_id if topic is None else topic.name


def _delete(image: MetadataImage, state: DeleteTopicState) -> tuple[RemoveTopicRecord, str]:
    if state.name is not None and state.topic_id != ZERO_UUID:
        raise KafkaError(ErrorCode.invalid_request, "A topic is deleted by name or by id, not by both.")
    if state.name is None and state.topic_id == ZERO_UUID:
        raise KafkaError(ErrorCode.invalid_request, "Neither a topic name nor an id was given.")
    if state.name is not None:
        topic = image.topics.get(state.name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{state.name}' does not exist.")
    else:
        topic = image.topics.get_by_id(state.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id, f"No topic has the id {state.topic_id}.")
    check_removal(image, topic)
    return RemoveTopicRecord(topic_id=topic.topic_id), topic.name
