"""AssignReplicasToDirs: the controller records which log directory of a broker has a replica (KIP-858).
Pure."""

from uuid import UUID

from moldau.cluster.decisions.brokers import registered
from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.decisions.partitions.election_causes import joined
from moldau.cluster.decisions.partitions.leader_choice import recovery_election
from moldau.cluster.decisions.partitions.partition_change import Wanted, change_partition
from moldau.cluster.decisions.partitions.topic_rules import rules_of
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.directories import RESERVED_DIRECTORY_COUNT
from moldau.cluster.image.image import METADATA_VERSION_OF_DIRECTORIES
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.messages import assign_replicas_to_dirs as messages
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def assign_replicas_to_dirs(view: View, request: messages.AssignReplicasToDirsRequest) -> ControllerResult:
    """Store which log directories contain a broker's replicas. The assignment of a replica to a directory can
    also change the partition: if the partition has no leader, the replica may become the leader, and if the
    new directory is not online, the replica leaves the in-sync set.

    A replica whose old directory is permanently lost starts again, without the records that it had
    acknowledged.

    Raises ``KafkaError``: stale_broker_epoch, broker_id_not_registered, or unsupported_version if the
    cluster's metadata have no log directories. Other refusals are per partition.
    """
    broker = registered(view, request.broker_id, request.broker_epoch)
    if view.image.metadata_version < METADATA_VERSION_OF_DIRECTORIES:
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"Log directories are recorded from metadata.version {METADATA_VERSION_OF_DIRECTORIES} on,"
            f" this cluster has {view.image.metadata_version}.",
        )
    records: list[Message] = []
    seen: set[tuple[UUID, int]] = set()
    directories = []
    for directory in request.directories:
        topics = []
        for topic in directory.topics:
            rows = [
                messages.AssignReplicasToDirsResponsePartitionData(
                    partition_index=row.partition_index,
                    error_code=_assign(
                        view, broker, topic.topic_id, row.partition_index, directory.id_, records, seen
                    ),
                )
                for row in topic.partitions
            ]
            topics.append(
                messages.AssignReplicasToDirsResponseTopicData(topic_id=topic.topic_id, partitions=rows)
            )
        directories.append(
            messages.AssignReplicasToDirsResponseDirectoryData(id_=directory.id_, topics=topics)
        )
    return ControllerResult(messages.AssignReplicasToDirsResponse(directories=directories), records)


def _assign(
    view: View,
    broker: BrokerRegistration,
    topic_id: UUID,
    index: int,
    directory: UUID,
    records: list[Message],
    seen: set[tuple[UUID, int]],
) -> ErrorCode:
    topic = view.image.topics.get_by_id(topic_id)
    if topic is None:
        return ErrorCode.unknown_topic_id
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    partition = topic.partitions[index]
    if broker.broker_id not in partition.replicas:
        return ErrorCode.not_leader_or_follower
    if directory.int < RESERVED_DIRECTORY_COUNT or (topic_id, index) in seen:
        return ErrorCode.invalid_request
    seen.add((topic_id, index))
    wanted = _wanted(view, broker, topic, partition, directory)
    record = change_partition(topic_id, index, partition, rules_of(view, topic), wanted)
    if record is not None:
        records.append(record)
    return ErrorCode.none


def _wanted(
    view: View, broker: BrokerRegistration, topic: Topic, partition: PartitionRegistration, directory: UUID
) -> Wanted:
    broker_id, former = broker.broker_id, partition.directory_of(broker.broker_id)
    election = recovery_election(view, topic)
    assigned = (broker_id, directory)
    if not broker.has_online(directory):
        isr = tuple(each for each in partition.isr if each != broker_id)
        return Wanted(isr=isr, directory=assigned, election=election)
    is_emptied = former != directory and not broker.has_online(former)
    if is_emptied and kind_of(topic).replicas_hold_data:
        return Wanted(directory=assigned, election=election, emptied=broker_id)
    isr_joined = joined(view, topic, partition, broker_id, directory)
    return Wanted(isr=isr_joined, directory=assigned, election=election)
