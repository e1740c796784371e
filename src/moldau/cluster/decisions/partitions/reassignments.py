"""Begins, replaces, cancels and lists reassignments of partitions to other brokers (KIP-455).

A reassignment adds the new replicas to the old replicas. It ends when all target replicas are in the in-sync
set; see :mod:`.partition_change`.
"""

from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.decisions.partitions.decisive_minimum import minima_after
from moldau.cluster.decisions.partitions.leader_choice import Election, recovery_election
from moldau.cluster.decisions.partitions.partition_change import Wanted, change_partition
from moldau.cluster.decisions.partitions.placement import check_assignment
from moldau.cluster.decisions.partitions.topic_rules import rules_of
from moldau.cluster.decisions.topics import check_room
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.messages import alter_partition_reassignments as alter
from moldau.protocol.messages import list_partition_reassignments as listing
from moldau.protocol.records.metadata import PartitionChangeRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def alter_partition_reassignments(
    view: View, request: alter.AlterPartitionReassignmentsRequest
) -> ControllerResult:
    """Begin reassignments, or cancel reassignments in progress. Each partition is decided separately."""
    records: list[Message] = []
    responses = []
    seen: dict[str, set[int]] = {}
    for wanted in request.topics:
        topic = view.image.topics.get(wanted.name)
        answers = []
        indexes = seen.setdefault(wanted.name, set())
        for each in wanted.partitions:
            code, message = ErrorCode.none, None
            try:
                if each.partition_index in indexes:
                    raise KafkaError(ErrorCode.invalid_request, "The partition is named more than once.")
                indexes.add(each.partition_index)
                record = _change(view, topic, each, request.allow_replication_factor_change)
                if record is not None:
                    records.append(record)
            except KafkaError as error:
                code, message = error.code, error.message
            answers.append(
                alter.ReassignablePartitionResponse(
                    partition_index=each.partition_index, error_code=code, error_message=message
                )
            )
        responses.append(alter.ReassignableTopicResponse(name=wanted.name, partitions=answers))
    response = alter.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )
    records += minima_after(view, records)
    return ControllerResult(response, records)


def _change(
    view: View, topic: Topic | None, wanted: alter.ReassignablePartition, may_change_factor: bool
) -> PartitionChangeRecord | None:
    index = wanted.partition_index
    if topic is None or not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "There is no such partition.")
    partition = topic.partitions[index]
    if wanted.replicas is None:
        return _cancel(view, topic, index, partition)
    target = tuple(wanted.replicas)
    original = _original(partition)
    check_assignment(view.image, index, target, None)
    if not may_change_factor and len(target) != len(original):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The move would change the replication factor from {len(original)} to {len(target)}.",
        )
    removing = tuple(replica for replica in original if replica not in target)
    adding = tuple(replica for replica in target if replica not in original)
    check_room(view, [tuple(replica for replica in adding if replica not in partition.replicas)])
    return _moved(view, topic, index, partition, (*target, *removing), removing, adding)


def _cancel(
    view: View, topic: Topic, index: int, partition: PartitionRegistration
) -> PartitionChangeRecord | None:
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.no_reassignment_in_progress, "No move is in progress.")
    return _moved(view, topic, index, partition, _original(partition), (), ())


def _original(partition: PartitionRegistration) -> tuple[int, ...]:
    """Return the replicas that the partition had before the reassignment in progress. If no reassignment is
    in progress, these are the current replicas."""
    return tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)


def _moved(
    view: View,
    topic: Topic,
    index: int,
    partition: PartitionRegistration,
    replicas: tuple[int, ...],
    removing: tuple[int, ...],
    adding: tuple[int, ...],
) -> PartitionChangeRecord | None:
    """The change that begins or cancels a reassignment. New replicas of a previous reassignment are
    removed immediately.
    """
    isr = tuple(replica for replica in partition.isr if replica in replicas)
    if not kind_of(topic).replicas_hold_data:
        isr += tuple(replica for replica in adding if replica not in isr and view.is_active(replica))
    election = recovery_election(view, topic)
    if partition.isr and not isr and election is not Election.UNCLEAN:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "No replica that would stay is in sync, so the partition would need an unclean election.",
        )
    wanted = Wanted(isr=isr, replicas=replicas, removing=removing, adding=adding, election=election)
    return change_partition(topic.topic_id, index, partition, rules_of(view, topic), wanted)


def list_partition_reassignments(
    view: View, request: listing.ListPartitionReassignmentsRequest
) -> ControllerResult:
    """Return the reassignments in progress. Each partition in the metadata with adding or removing replicas
    is listed, even if nodes of another implementation have begun its reassignment."""
    wanted = None
    if request.topics is not None:
        wanted = {topic.name: set(topic.partition_indexes) for topic in request.topics}
    topics = []
    for topic in view.image.topics:
        if wanted is not None and topic.name not in wanted:
            continue
        ongoing = [
            listing.OngoingPartitionReassignment(
                partition_index=index,
                replicas=partition.replicas,
                adding_replicas=partition.adding_replicas,
                removing_replicas=partition.removing_replicas,
            )
            for index, partition in enumerate(topic.partitions)
            if partition.is_reassigning and (wanted is None or index in wanted[topic.name])
        ]
        if ongoing:
            topics.append(listing.OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return ControllerResult(listing.ListPartitionReassignmentsResponse(error_message=None, topics=topics))
