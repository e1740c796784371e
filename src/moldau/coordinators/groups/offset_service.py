"""The requests about committed offsets. Errors are returned in the responses."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from moldau.coordinators.effects import BatchKind, Effects, Token
from moldau.coordinators.groups.offsets import requests as offset_requests
from moldau.coordinators.groups.offsets import transactional_requests
from moldau.coordinators.groups.offsets.requests import CommitPlan
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.groups.shard_calls import GroupCaller, GroupCalls
from moldau.coordinators.topic_directory import TopicDirectory
from moldau.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from moldau.protocol.partitions import TopicPartition
from moldau.replication.appending.transactions import TransactionGuard
from moldau.runtime import ErrorCode, KafkaError

FORGOTTEN_A_TURN: Final = 1_000
"""Number of groups and offsets that are examined in one iteration of the event loop. It is also the number of
offsets of deleted topics that are removed in one iteration. This takes some milliseconds."""


class OffsetService:
    """Committed offsets for request handlers. An error with an error code is returned in the response, not
    raised."""

    def __init__(self, calls: GroupCalls, directory: TopicDirectory) -> None:
        self._calls = calls
        self._directory = directory

    async def commit(self, caller: GroupCaller, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Handle OffsetCommit. Each topic and partition that does not exist gets its own error."""
        plan = CommitPlan(request, caller.api_version, self._directory)
        try:
            answer: OffsetCommitResponse = await self._calls.write(
                request.group_id,
                lambda shard, now_ms, token: shard.commit_offsets(
                    token, plan.request, caller.api_version, now_ms
                ),
            )
        except KafkaError as error:
            return offset_requests.commit_error(request, error.code)
        return plan.response(answer)

    async def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, guard: TransactionGuard | None
    ) -> TxnOffsetCommitResponse:
        """Handle TxnOffsetCommit. If the whole request is refused, because of its producer, its group or the
        coordinator, the error is raised."""
        plan = CommitPlan(
            transactional_requests.as_commit(request), transactional_requests.COMMIT_VERSION, self._directory
        )
        producer = BatchKind(request.producer_id, request.producer_epoch, transactional=True)
        answer: OffsetCommitResponse = await self._calls.runtime.write_in_transaction(
            self._calls.partition_of(request.group_id),
            lambda shard, now_ms, token: shard.commit_offsets_in_transaction(
                token, plan.request, producer, now_ms
            ),
            producer,
            guard,
        )
        return transactional_requests.as_transactional(plan.response(answer))

    async def fetch(self, caller: GroupCaller, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Handle OffsetFetch, for one or several groups."""
        groups = offset_requests.fetch_groups(request, caller.api_version)
        waiting = [
            self._fetch_group(group, caller.api_version, require_stable=request.require_stable)
            for group in offset_requests.without_repetitions(groups)
        ]
        return offset_requests.fetch_response(await asyncio.gather(*waiting), caller.api_version)

    async def _fetch_group(
        self, group: OffsetFetchRequestGroup, api_version: int, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        wanted = offset_requests.FetchPlan(group, api_version, self._directory)
        try:
            named = wanted.topics
            if named is None:
                topics = await self._fetch_all(group.group_id, require_stable=require_stable)
            else:
                topics = await self._calls.read(
                    group.group_id,
                    lambda shard, now_ms: shard.offsets.fetch(
                        group.group_id, named, self._directory.topic_id, require_stable=require_stable
                    ),
                )
        except KafkaError as error:
            return offset_requests.fetch_error(group, error.code, api_version)
        return wanted.response(topics)

    async def _fetch_all(self, group_id: str, *, require_stable: bool) -> list[OffsetFetchResponseTopics]:
        """Return all offsets of a group. A group may have very many offsets."""
        pieces = await self._calls.runtime.read_in_turns(
            self._calls.partition_of(group_id),
            lambda shard: shard.offsets.store.committed_partitions(group_id),
            lambda shard, now_ms, partitions: shard.offsets.fetch_present(
                group_id, partitions, self._directory.topic_id, require_stable=require_stable
            ),
        )
        by_topic: dict[str, list[OffsetFetchResponsePartitions]] = {}
        for piece in pieces:
            by_topic.setdefault(piece.name, []).extend(piece.partitions)
        return [
            OffsetFetchResponseTopics(name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]

    async def delete(self, caller: GroupCaller, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Handle OffsetDelete."""
        known, refused = [], {}
        for topic in request.topics:
            count = self._directory.partition_count(topic.name)
            present = [each for each in topic.partitions if 0 <= each.partition_index < count]
            absent = [
                each.partition_index for each in topic.partitions if not 0 <= each.partition_index < count
            ]
            refused[topic.name] = [
                OffsetDeleteResponsePartition(
                    partition_index=index, error_code=ErrorCode.unknown_topic_or_partition
                )
                for index in absent
            ]
            known.append(OffsetDeleteRequestTopic(name=topic.name, partitions=present))
        checked = OffsetDeleteRequest(group_id=request.group_id, topics=known)
        try:
            answer: OffsetDeleteResponse = await self._calls.write_named(
                request.group_id, lambda shard, now_ms, token: shard.delete_offsets(token, checked, now_ms)
            )
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        topics = [
            OffsetDeleteResponseTopic(name=topic.name, partitions=[*topic.partitions, *refused[topic.name]])
            for topic in answer.topics
        ]
        return OffsetDeleteResponse(topics=topics)

    async def forget_topics(self, is_gone: Callable[[str, int], bool]) -> None:
        """Write tombstones for the offsets of deleted topics, in all partitions that this node leads.

        If a partition cannot be written, the offsets in it are removed later, when they expire.
        """
        for partition in self._calls.runtime.partitions:
            with contextlib.suppress(KafkaError):
                await self._forget_in(partition, is_gone)

    async def _forget_in(self, partition: int, is_gone: Callable[[str, int], bool]) -> None:
        """Write the tombstones of one partition. In each iteration of the event loop only some offsets are
        removed, because there may be very many."""
        runtime = self._calls.runtime
        waiting = deque(
            await runtime.read(partition, lambda shard, now_ms: tuple(shard.offsets.store.group_ids()))
        )
        while waiting:
            gone = await runtime.read(partition, lambda shard, now_ms: _gone(shard, waiting, is_gone))
            for first in range(0, len(gone), FORGOTTEN_A_TURN):
                some = gone[first : first + FORGOTTEN_A_TURN]
                await runtime.write(partition, partial(_forget, some, is_gone))
                await asyncio.sleep(0)
            await asyncio.sleep(0)


def _gone(
    shard: GroupShard, waiting: deque[str], is_gone: Callable[[str, int], bool]
) -> list[tuple[str, TopicPartition]]:
    """Find offsets of deleted topics in the first groups of ``waiting``, and remove these groups from
    ``waiting``."""
    found: list[tuple[str, TopicPartition]] = []
    examined = 0
    while waiting and examined < FORGOTTEN_A_TURN:
        group_id = waiting.popleft()
        partitions = shard.offsets.store.partitions(group_id)
        examined += 1 + len(partitions)
        found += [(group_id, each) for each in partitions if is_gone(*each)]
    return found


def _forget(
    offsets: Sequence[tuple[str, TopicPartition]],
    is_gone: Callable[[str, int], bool],
    shard: GroupShard,
    now_ms: int,
    token: Token,
) -> Effects[ConsumerOffsetsRecord]:
    still_gone = [each for each in offsets if is_gone(*each[1])]
    return shard.offsets.forget_partitions(token, still_gone, now_ms)
