"""The causes of elections: when a broker becomes active, on request, and at intervals.

Elections for a broker that becomes inactive are in ``lost_brokers.py``.
"""

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.decisions.partitions.leader_choice import Election, recovery_election
from moldau.cluster.decisions.partitions.partition_change import Wanted, change_partition
from moldau.cluster.decisions.partitions.topic_rules import rules_of
from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_delta import NO_LEADER_CHANGE
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DECISIVE_TOPICS
from moldau.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from moldau.protocol.records.metadata import PartitionChangeRecord
from moldau.runtime import ErrorCode


def changes_with_broker(view: View, broker_id: int) -> list[PartitionChangeRecord]:
    """Elect leaders of partitions that could not have a leader without this broker. The broker is now active
    in ``view``.

    In some kinds of topics, replicas have no data. Leaders of these topics never propose to add a replica to
    the in-sync set. Therefore the controller adds the replica when its broker becomes active.
    """
    records = []
    for topic in view.image.topics:
        rules = None
        for index, partition in enumerate(topic.partitions):
            if broker_id not in partition.replicas:
                continue
            isr = joined(view, topic, partition, broker_id, partition.directory_of(broker_id))
            if partition.has_leader and isr is None:
                continue
            rules = rules or rules_of(view, topic)
            wanted = Wanted(isr=isr, election=recovery_election(view, topic))
            record = change_partition(topic.topic_id, index, partition, rules, wanted)
            if record is not None:
                records.append(record)
    return records


def joined(
    view: View, topic: Topic, partition: PartitionRegistration, broker_id: int, directory: UUID
) -> tuple[int, ...] | None:
    """Return the in-sync set with this broker's replica added. The result is ``None`` if the replica cannot
    join now. Only replicas of topics that store no records on replicas join in this way. Such a replica joins
    as soon as its broker and its log directory can be used."""
    if broker_id in partition.isr or kind_of(topic).replicas_hold_data:
        return None
    return (*partition.isr, broker_id) if view.can_use(broker_id, directory) else None


def eligible_changes(view: View, names: Iterable[str] | None) -> list[PartitionChangeRecord]:
    """Remove eligible leader replicas that are no longer needed, because ``min.insync.replicas`` has changed.
    ``names`` are the topics to check; ``None`` means all topics.

    If enough replicas are in sync for the new minimum, the high watermark advances without the other
    replicas. These other replicas may then lack committed records, so they are no longer eligible (KIP-966).
    """
    topics = view.image.topics
    records = []
    for topic in topics if names is None else filter(None, map(topics.get, names)):
        for index, partition in enumerate(topic.partitions):
            if partition.eligible_leader_replicas:
                record = change_partition(topic.topic_id, index, partition, rules_of(view, topic), Wanted())
                if record is not None:
                    records.append(record)
    return records


def preferred_changes(view: View, count_max: int) -> list[PartitionChangeRecord]:
    """Give a limited number of leaderships back to preferred replicas that are in sync and active."""
    records: list[PartitionChangeRecord] = []
    for topic in view.image.topics:
        for index, partition in enumerate(topic.partitions):
            preferred = partition.preferred_leader
            if partition.leader == preferred or preferred not in partition.isr:
                continue
            if len(records) == count_max:
                return records
            wanted = Wanted(election=Election.PREFERRED)
            record = change_partition(topic.topic_id, index, partition, rules_of(view, topic), wanted)
            if record is not None:
                records.append(record)
    return records


def unclean_changes(view: View, count_max: int) -> list[PartitionChangeRecord]:
    """Elect leaders for a limited number of partitions without a leader. Their topics must allow an unclean
    election."""
    records: list[PartitionChangeRecord] = []
    for topic in view.image.topics:
        for index, partition in enumerate(topic.partitions):
            if partition.has_leader or recovery_election(view, topic) is not Election.UNCLEAN:
                continue
            wanted = Wanted(election=Election.UNCLEAN)
            record = change_partition(topic.topic_id, index, partition, rules_of(view, topic), wanted)
            if record is not None:
                records.append(record)
            if len(records) == count_max:
                return records
    return records


def leads_any_partition(image: MetadataImage, broker_id: int) -> bool:
    """Whether a broker leads at least one partition."""
    return any(partition.leader == broker_id for topic in image.topics for partition in topic.partitions)


def elect_leaders(
    view: View, request: ElectLeadersRequest
) -> tuple[ElectLeadersResponse, list[PartitionChangeRecord]]:
    """Handle preferred (0) or unclean (1) elections. If the request names no partitions, the response
    contains all partitions that need an election."""
    if request.election_type not in (0, 1):
        message = f"Unknown election type {request.election_type}."
        refused = [
            ReplicaElectionResult(
                topic=name,
                partition_result=[_answer(index, ErrorCode.invalid_request, message) for index in indexes],
            )
            for name, indexes in _requested(view.image, request)
        ]
        response = ElectLeadersResponse(
            error_code=ErrorCode.invalid_request, replica_election_results=refused
        )
        return response, []
    election = Election.PREFERRED if request.election_type == 0 else Election.UNCLEAN
    records: list[PartitionChangeRecord] = []
    results: list[ReplicaElectionResult] = []
    for name, indexes in _requested(view.image, request):
        answers = []
        for index in indexes:
            result = _elect_one(view, name, index, election, records)
            if request.topic_partitions is None and result.error_code is ErrorCode.election_not_needed:
                continue
            answers.append(result)
        if answers:
            results.append(ReplicaElectionResult(topic=name, partition_result=answers))
    return ElectLeadersResponse(replica_election_results=results), records


def _requested(image: MetadataImage, request: ElectLeadersRequest) -> Iterable[tuple[str, Iterable[int]]]:
    if request.topic_partitions is None:
        return ((topic.name, range(len(topic.partitions))) for topic in image.topics)
    # A partition that is named twice gets one election and one result.
    by_name: dict[str, dict[int, None]] = {}
    for entry in request.topic_partitions:
        by_name.setdefault(entry.topic, {}).update(dict.fromkeys(entry.partitions))
    return by_name.items()


def _elect_one(
    view: View, name: str, index: int, election: Election, records: list[PartitionChangeRecord]
) -> PartitionResult:
    topic = view.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return _answer(index, ErrorCode.unknown_topic_or_partition, f"There is no partition {name}-{index}.")
    partition = topic.partitions[index]
    if election is Election.PREFERRED and partition.leader == partition.preferred_leader:
        return _answer(index, ErrorCode.election_not_needed, "The preferred replica leads already.")
    if election is Election.UNCLEAN and partition.has_leader:
        return _answer(index, ErrorCode.election_not_needed, "The partition has a leader.")
    if election is Election.UNCLEAN and name in DECISIVE_TOPICS:
        election = Election.ONLINE
    wanted = Wanted(election=election)
    record = change_partition(topic.topic_id, index, partition, rules_of(view, topic), wanted)
    new_leader = partition.leader if record is None or record.leader == NO_LEADER_CHANGE else record.leader
    if election is Election.PREFERRED and new_leader != partition.preferred_leader:
        return _answer(
            index,
            ErrorCode.preferred_leader_not_available,
            "The preferred replica is not in sync or not active.",
        )
    if record is None:
        which = "in-sync replica" if election is Election.ONLINE else "replica"
        return _answer(index, ErrorCode.eligible_leaders_not_available, f"No {which} is active.")
    records.append(record)
    return PartitionResult(partition_id=index, error_message=None)


def _answer(index: int, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


def view_after(view: View, image: MetadataImage) -> View:
    """Return a copy of the view with a later image."""
    return replace(view, image=image)
