"""Passes a request to the shard of its group. All parts of the group coordinator use this module."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from moldau.cluster.internal_topics import CONSUMER_OFFSETS
from moldau.coordinators.effects import Effects, Token
from moldau.coordinators.groups.records import ConsumerOffsetsRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.coordinators.topic_directory import TopicDirectory
from moldau.runtime import ErrorCode, KafkaError

T = TypeVar("T")

GroupRuntime = CoordinatorRuntime[GroupShard, ConsumerOffsetsRecord]
GroupOperation = Callable[[GroupShard, int, Token], Effects[ConsumerOffsetsRecord]]


@dataclass(frozen=True, slots=True)
class GroupCaller:
    """Data about the client that sent a request, which are not in the body of the request."""

    api_version: int
    client_id: str = ""
    host: str = ""
    """The client's address, for example ``127.0.0.1``."""


class GroupCalls:
    """Finds the partition of a group, and runs operations on the shard of this partition.

    An operation runs before the first ``await`` of its call. Therefore calls take effect in the order of the
    requests.
    """

    def __init__(self, runtime: GroupRuntime, settings: GroupSettings, directory: TopicDirectory) -> None:
        self.runtime = runtime
        self.settings = settings
        self._directory = directory

    def partition_of(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` for a group.

        The actual number of partitions of the topic is used; the config applies only when the topic is
        created.
        """
        count = (
            self._directory.partition_count(CONSUMER_OFFSETS.name) or self.settings.offsets_topic_partitions
        )
        return self.runtime.kind.partition_of(group_id, count)

    def write_named(self, group_id: str, operation: GroupOperation) -> "asyncio.Future[Any]":
        """Like :meth:`write`, for a request that needs a group id. Raises INVALID_GROUP_ID when the id is
        empty."""
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id, "The group id is empty.")
        return self.write(group_id, operation)

    def write(self, group_id: str, operation: GroupOperation) -> "asyncio.Future[Any]":
        """Run an operation on one group. The result of the future is the response."""
        return self.runtime.write(self.partition_of(group_id), operation)

    def read(self, group_id: str, operation: Callable[[GroupShard, int], T]) -> "asyncio.Future[T]":
        """Run an operation that reads one group and changes nothing. The result of the future is the
        response.
        """
        return self.runtime.read(self.partition_of(group_id), operation)
