"""OffsetCommit, OffsetFetch and OffsetDelete, over the offset store. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from moldau.coordinators.groups.classic.group import UNKNOWN_MEMBER_ID, Group
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.offsets.store import OffsetStore
from moldau.coordinators.groups.operation import Turn
from moldau.coordinators.groups.records import CommittedOffset, OffsetRecord
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchResponsePartitions, OffsetFetchResponseTopics
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.schema import ZERO_UUID
from moldau.runtime import ErrorCode, KafkaError

NO_OFFSET: Final = -1
INT64_MAX: Final = 2**63 - 1


def check_commit(group: Group, request: OffsetCommitRequest) -> None:
    """Check that this client may commit for the group now. Raises :class:`KafkaError`.

    A client sends a negative generation if it assigns partitions itself, or if it is an admin client. Such a
    client may commit while the group has no members.
    """
    generation = request.generation_id_or_member_epoch
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation < 0 and request.member_id == UNKNOWN_MEMBER_ID and request.group_instance_id is None:
        raise KafkaError(ErrorCode.unknown_member_id, "The group has members; only they can commit.")
    group.check_member(request.member_id, request.group_instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.illegal_generation)
    if group.state is GroupState.COMPLETING_REBALANCE:
        raise KafkaError(ErrorCode.rebalance_in_progress)


def check_transactional_commit(group: Group, request: OffsetCommitRequest) -> None:
    """Check that a transaction may commit offsets for the group now. Raises :class:`KafkaError`.

    If a producer names its consumer, it is checked like the consumer (KIP-447). An older producer does not
    name a consumer, so only the producer is checked: it is fenced by its transactional id.
    """
    generation = request.generation_id_or_member_epoch
    if generation < 0 and (
        group.state is GroupState.EMPTY
        or (request.member_id == UNKNOWN_MEMBER_ID and request.group_instance_id is None)
    ):
        return
    group.check_member(request.member_id, request.group_instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.illegal_generation)


def commit(turn: Turn, request: OffsetCommitRequest) -> list[OffsetCommitResponseTopic]:
    """Make records of the offsets whose metadata are not too large."""
    retention_ms = request.retention_time_ms
    expire_ms = -1 if retention_ms < 0 else min(turn.now_ms + retention_ms, INT64_MAX)
    topics = []
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            metadata = partition.committed_metadata or ""
            error = ErrorCode.none
            if len(metadata) > turn.settings.offset_metadata_max_bytes:
                error = ErrorCode.offset_metadata_too_large
            else:
                topic_id = None if topic.topic_id == ZERO_UUID else topic.topic_id
                value = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    turn.now_ms,
                    expire_ms,
                    topic_id,
                )
                turn.out.records.append(
                    OffsetRecord(request.group_id, topic.name, partition.partition_index, value)
                )
                turn.tally.offset_commits += 1
            results.append(
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            )
        topics.append(OffsetCommitResponseTopic(topic_id=topic.topic_id, name=topic.name, partitions=results))
    return topics


def fetch(
    store: OffsetStore,
    group_id: str,
    topics: Iterable[tuple[str, Sequence[int]]],
    topic_id_of: Callable[[str], UUID | None],
    *,
    require_stable: bool,
) -> list[OffsetFetchResponseTopics]:
    """The group's offsets for these partitions. The offset is -1 if the group has no offset for a partition.

    If an offset was committed for an earlier topic with the same name, which was deleted, the offset is
    ignored.
    """
    return [
        OffsetFetchResponseTopics(
            name=topic,
            partitions=[
                _fetched(store, group_id, topic, each, topic_id_of(topic), require_stable)
                for each in partitions
            ],
        )
        for topic, partitions in topics
    ]


def present(
    store: OffsetStore,
    group_id: str,
    partitions: Iterable[TopicPartition],
    topic_id_of: Callable[[str], UUID | None],
) -> Iterable[tuple[str, Sequence[int]]]:
    """Return those of ``partitions`` that have an offset of the current topic, grouped by topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        value = store.get(group_id, topic, partition)
        if value is not None and not _is_former(value, topic_id_of(topic)):
            by_topic.setdefault(topic, []).append(partition)
    return by_topic.items()


def delete(
    turn: Turn, store: OffsetStore, group: Group, topics: Iterable[OffsetDeleteRequestTopic]
) -> list[OffsetDeleteResponseTopic]:
    """Delete offsets of partitions that the group does not read."""
    if group.state not in (GroupState.EMPTY, GroupState.DEAD) and not group.uses_consumer_protocol:
        raise KafkaError(ErrorCode.non_empty_group)
    results = []
    for topic in topics:
        subscribed = group.is_subscribed(topic.name)
        partitions = []
        for each in topic.partitions:
            if not subscribed and store.has_partition(
                group.group_id, TopicPartition(topic.name, each.partition_index)
            ):
                turn.out.records.append(OffsetRecord(group.group_id, topic.name, each.partition_index, None))
                turn.tally.offset_deletions += 1
            partitions.append(
                OffsetDeleteResponsePartition(
                    partition_index=each.partition_index,
                    error_code=ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none,
                )
            )
        results.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return results


def _is_former(value: CommittedOffset, topic_id: UUID | None) -> bool:
    return value.topic_id is not None and topic_id is not None and value.topic_id != topic_id


def _fetched(
    store: OffsetStore,
    group_id: str,
    topic: str,
    partition: int,
    topic_id: UUID | None,
    require_stable: bool,
) -> OffsetFetchResponsePartitions:
    if require_stable and store.is_unstable(group_id, topic, partition):
        return OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=NO_OFFSET,
            error_code=ErrorCode.unstable_offset_commit,
        )
    value = store.get(group_id, topic, partition)
    if value is None or _is_former(value, topic_id):
        return OffsetFetchResponsePartitions(partition_index=partition, committed_offset=NO_OFFSET)
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )
