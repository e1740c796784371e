"""Converts OffsetCommit and OffsetFetch between their versions on the wire and the single form that the shard
uses."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from moldau.coordinators.topic_directory import TopicDirectory
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from moldau.runtime import ErrorCode

TOPIC_IDS_VERSION: Final = 10
"""First version of OffsetCommit and OffsetFetch with topic ids (KIP-848)."""
GROUPS_VERSION: Final = 8
"""First version of OffsetFetch with several groups."""
TOP_LEVEL_ERROR_VERSION: Final = 2
"""The first version in which OffsetFetch has an error for a whole group. Older versions have errors only for
partitions."""
NO_OFFSET: Final = -1


def commit_error(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """A response with one error for all partitions."""
    return OffsetCommitResponse(topics=[refused_topic(topic, error) for topic in request.topics])


def refused_topic(topic: OffsetCommitRequestTopic, error: ErrorCode) -> OffsetCommitResponseTopic:
    """Return a topic's response with one error for all partitions."""
    return OffsetCommitResponseTopic(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=[
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )


class CommitPlan:
    """Divides the topics of an OffsetCommit into topics that exist and topics that are refused. It stores the
    order of the topics in the request, because the response must have the same order."""

    def __init__(self, request: OffsetCommitRequest, api_version: int, directory: TopicDirectory) -> None:
        self._results: list[OffsetCommitResponseTopic | None] = []
        accepted: list[OffsetCommitRequestTopic] = []
        for topic in request.topics:
            known = _resolve(topic, api_version, directory)
            if isinstance(known, ErrorCode):
                self._results.append(refused_topic(topic, known))
            else:
                accepted.append(known)
                self._results.append(None)
        self._counts = {topic.name: directory.partition_count(topic.name) for topic in accepted}
        self.request = OffsetCommitRequest(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=[self._existing(topic) for topic in accepted],
        )
        self._accepted = accepted

    def _existing(self, topic: OffsetCommitRequestTopic) -> OffsetCommitRequestTopic:
        count = self._counts[topic.name]
        return OffsetCommitRequestTopic(
            topic_id=topic.topic_id,
            name=topic.name,
            partitions=[each for each in topic.partitions if 0 <= each.partition_index < count],
        )

    def response(self, answer: OffsetCommitResponse) -> OffsetCommitResponse:
        """Return the shard's result, with the refused topics and partitions inserted at their places in the
        request."""
        answered = iter(zip(self._accepted, answer.topics, strict=True))
        topics = []
        for refused in self._results:
            if refused is not None:
                topics.append(refused)
                continue
            asked, result = next(answered)
            errors = {each.partition_index: each.error_code for each in result.partitions}
            topics.append(
                OffsetCommitResponseTopic(
                    topic_id=asked.topic_id,
                    name=asked.name,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=each.partition_index,
                            error_code=errors.get(each.partition_index, ErrorCode.unknown_topic_or_partition),
                        )
                        for each in asked.partitions
                    ],
                )
            )
        return OffsetCommitResponse(topics=topics)


def _resolve(
    topic: OffsetCommitRequestTopic, api_version: int, directory: TopicDirectory
) -> OffsetCommitRequestTopic | ErrorCode:
    if api_version < TOPIC_IDS_VERSION:
        topic_id = directory.topic_id(topic.name)
        if topic_id is None:
            return ErrorCode.unknown_topic_or_partition
        return OffsetCommitRequestTopic(topic_id=topic_id, name=topic.name, partitions=topic.partitions)
    name = directory.topic_name(topic.topic_id)
    if name is None:
        return ErrorCode.unknown_topic_id
    return OffsetCommitRequestTopic(topic_id=topic.topic_id, name=name, partitions=topic.partitions)


# OffsetFetch


def fetch_groups(request: OffsetFetchRequest, api_version: int) -> Sequence[OffsetFetchRequestGroup]:
    """Return the requested groups, in the form of request version 8."""
    if api_version >= GROUPS_VERSION:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def without_repetitions(groups: Sequence[OffsetFetchRequestGroup]) -> Iterator[OffsetFetchRequestGroup]:
    """The groups without repetitions. If all offsets of a group are requested, the group appears once, even
    if the request names it several times.

    Otherwise a small request could cause a very large response.
    """
    whole: set[str] = set()
    for group in groups:
        if group.topics is None:
            if group.group_id in whole:
                continue
            whole.add(group.group_id)
        yield group


def fetch_error(
    group: OffsetFetchRequestGroup, error: ErrorCode, api_version: int
) -> OffsetFetchResponseGroup:
    """Return the response for a group whose offsets are not available."""
    topics: Iterable[OffsetFetchRequestTopics] = ()
    if api_version < TOP_LEVEL_ERROR_VERSION:
        topics = group.topics or ()
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=error,
        topics=[unknown_offsets(topic, error) for topic in topics],
    )


def unknown_offsets(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    """Return a topic's response with one error for all partitions."""
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=each, committed_offset=NO_OFFSET, error_code=error)
            for each in topic.partition_indexes
        ],
    )


def fetch_response(groups: list[OffsetFetchResponseGroup], api_version: int) -> OffsetFetchResponse:
    """Return the response in the form of the request's version."""
    if api_version >= GROUPS_VERSION:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=each.partition_index,
                    committed_offset=each.committed_offset,
                    committed_leader_epoch=each.committed_leader_epoch,
                    metadata=each.metadata,
                    error_code=each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


class FetchPlan:
    """Finds the names of the topics of one group's OffsetFetch. It also stores the order of the request's
    topics, because the response must have this order."""

    def __init__(self, group: OffsetFetchRequestGroup, api_version: int, directory: TopicDirectory) -> None:
        self._group = group
        self._by_id = api_version >= TOPIC_IDS_VERSION
        self._directory = directory
        self.topics: list[tuple[str, Sequence[int]]] | None = None
        self._names: list[str | None] = []
        if group.topics is not None:
            self._names = [
                directory.topic_name(topic.topic_id) if self._by_id else topic.name for topic in group.topics
            ]
            self.topics = [
                (name, topic.partition_indexes)
                for name, topic in zip(self._names, group.topics, strict=True)
                if name is not None
            ]

    def response(self, found: list[OffsetFetchResponseTopics]) -> OffsetFetchResponseGroup:
        """Return the shard's result with topic ids instead of names. Ids that no topic has get errors."""
        group = self._group
        if not self._by_id:
            return OffsetFetchResponseGroup(group_id=group.group_id, topics=found)
        topics: list[OffsetFetchResponseTopics] = []
        if group.topics is None:
            for topic in found:
                topic_id = self._directory.topic_id(topic.name)
                if topic_id is not None:
                    topics.append(OffsetFetchResponseTopics(topic_id=topic_id, partitions=topic.partitions))
        else:
            answered = iter(found)
            for name, asked in zip(self._names, group.topics, strict=True):
                if name is None:
                    topics.append(unknown_offsets(asked, ErrorCode.unknown_topic_id))
                else:
                    partitions = next(answered).partitions
                    topics.append(
                        OffsetFetchResponseTopics(topic_id=asked.topic_id, name=name, partitions=partitions)
                    )
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)
