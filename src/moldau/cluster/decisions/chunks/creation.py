"""CreateChunks ends the active chunk of a partition, and begins the next chunk (KIP-1114). Pure.

Before the request, the leader has stopped its appends. All in-sync replicas have all records up to the
border, and enough of the new replicas have the state at the border. The request contains the leader epoch and
the partition epoch that the leader knows. The controller compares them with its own values, to make sure that
the partition has not changed in the meantime. The records of the change are committed together.
"""

from dataclasses import replace

from moldau.cluster.decisions.brokers import registered
from moldau.cluster.decisions.chunks.admission import check_brokers, check_partition, check_topic
from moldau.cluster.decisions.partitions.leader_choice import Election
from moldau.cluster.decisions.partitions.partition_change import Wanted, change_partition
from moldau.cluster.decisions.partitions.topic_rules import min_in_sync, rules_of
from moldau.cluster.decisions.topics import check_room
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.chunks import ChunkRegistration, chunk_record
from moldau.cluster.image.image import ResourceType
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.own.chunks import create_chunks as messages
from moldau.protocol.records.metadata import PartitionChangeRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def create_chunks(view: View, request: messages.CreateChunksRequest) -> ControllerResult:
    """Create chunks that the leaders of their partitions request.

    Raises ``KafkaError`` for the whole request: stale_broker_epoch or broker_id_not_registered. Other
    refusals are per partition. If a request has succeeded before, its repetition succeeds too, and changes
    nothing.
    """
    registered(view, request.broker_id, request.broker_epoch)
    records: list[Message] = []
    results = []
    seen: set[tuple[str, int]] = set()
    for row in request.topic_partitions:
        code, message = ErrorCode.none, None
        try:
            if (row.topic_name, row.partition_id) in seen:
                raise KafkaError(ErrorCode.invalid_request, "The partition is named more than once.")
            seen.add((row.topic_name, row.partition_id))
            records += _create(view, request.broker_id, row)
        except KafkaError as error:
            code, message = error.code, error.message
        results.append(
            messages.CreateChunksResult(
                topic_name=row.topic_name,
                partition_id=row.partition_id,
                error_code=code,
                error_message=message,
                start_offset=row.start_offset if code is ErrorCode.none else -1,
            )
        )
    return ControllerResult(messages.CreateChunksResponse(results=results), records)


def _create(view: View, sender_id: int, row: messages.CreateChunksTopicPartition) -> list[Message]:
    topic = view.image.topics.get_by_id(row.topic_id)
    if topic is None or topic.name != row.topic_name:
        raise KafkaError(ErrorCode.unknown_topic_id, f"No topic {row.topic_name} has the id {row.topic_id}.")
    if not 0 <= row.partition_id < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "The topic has no such partition.")
    partition = topic.partitions[row.partition_id]
    if _is_created(partition, row):
        return []
    _check_sender(partition, sender_id, row)
    configs = view.image.config(ResourceType.TOPIC, topic.name)
    check_topic(
        view.image, topic, lambda key: configs.get(key, view.configs.default(ResourceType.TOPIC, key))
    )
    check_partition(partition)
    check_brokers(view.image, row.partition_id, partition, row.broker_ids)
    check_room(view, [tuple(each for each in row.broker_ids if each not in partition.replicas)])
    ended = _ended_chunk(partition, row)
    change = _begin(view, topic, partition, row)
    return [chunk_record(topic.topic_id, row.partition_id, ended), change]


def _is_created(partition: PartitionRegistration, row: messages.CreateChunksTopicPartition) -> bool:
    """Whether this request repeats the request that created the present active chunk."""
    return (
        row.start_offset >= 0
        and partition.start_offset == row.start_offset
        and partition.leader_epoch > row.leader_epoch
        and set(partition.replicas) == set(row.broker_ids)
        and bool(partition.chunks)
        and partition.chunks[-1].end_offset == row.prev_stop_offset
    )


def _check_sender(
    partition: PartitionRegistration, sender_id: int, row: messages.CreateChunksTopicPartition
) -> None:
    """Check that the leader knows the partition's present state. The error codes are the same as in
    AlterPartition."""
    if row.leader_epoch > partition.leader_epoch or row.partition_epoch > partition.partition_epoch:
        raise KafkaError(ErrorCode.not_controller, "The leader knows a later epoch than this controller.")
    if row.leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.fenced_leader_epoch, "A later leader was elected.")
    if sender_id != partition.leader:
        raise KafkaError(ErrorCode.not_leader_or_follower, f"Broker {sender_id} does not lead the partition.")
    if row.partition_epoch < partition.partition_epoch:
        raise KafkaError(ErrorCode.invalid_update_version, "The partition has changed since.")


def _ended_chunk(
    partition: PartitionRegistration, row: messages.CreateChunksTopicPartition
) -> ChunkRegistration:
    """The registration of the chunk that ends. If a replica is not in sync at this moment, it copies the
    chunk later from the other replicas.
    """
    is_first = partition.start_offset < 0
    start_offset = row.first_offset if is_first else partition.start_offset
    if row.start_offset != row.prev_stop_offset + 1:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"A chunk that begins at {row.start_offset} does not follow the offset {row.prev_stop_offset}.",
        )
    if not 0 <= start_offset < row.start_offset:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"The active chunk begins at {start_offset} and would end before it has a record.",
        )
    return ChunkRegistration(
        start_offset=start_offset,
        stop_offset=row.prev_stop_offset,
        end_offset=row.prev_stop_offset,
        start_timestamp_ms=row.first_timestamp if is_first else partition.start_timestamp_ms,
        max_timestamp_ms=row.max_timestamp,
        size_bytes=row.size_bytes,
        epoch=0,
        replicas=partition.replicas,
        directories=partition.directories,
        isr=partition.isr,
    )


def _begin(
    view: View, topic: Topic, partition: PartitionRegistration, row: messages.CreateChunksTopicPartition
) -> PartitionChangeRecord:
    """Return the change by which the new replicas begin at the border.

    The leader is the first new replica that has the state at the border. The change always contains a leader.
    This raises the leader epoch, even if the leader stays the same broker. Therefore the records of two
    chunks never have the same leader epoch.
    """
    if not set(row.in_sync) <= set(row.broker_ids):
        raise KafkaError(ErrorCode.invalid_request, "The in-sync set is not made of the new replicas.")
    isr = tuple(each for each in row.broker_ids if each in row.in_sync)
    needed = min(min_in_sync(view, topic.name), len(row.broker_ids))
    if len(isr) < needed:
        raise KafkaError(
            ErrorCode.not_enough_replicas,
            f"{len(isr)} of the new replicas have the state at the border, and"
            f" min.insync.replicas needs {needed}.",
        )
    wanted = Wanted(isr=isr, replicas=tuple(row.broker_ids), election=Election.PREFERRED)
    change = change_partition(topic.topic_id, row.partition_id, partition, rules_of(view, topic), wanted)
    if change is None:
        change = PartitionChangeRecord(partition_id=row.partition_id, topic_id=topic.topic_id)
    return replace(change, leader=isr[0], start_offset=row.start_offset, start_timestamp=row.start_timestamp)
