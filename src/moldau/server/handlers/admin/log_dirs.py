"""DescribeLogDirs and AlterReplicaLogDirs: the log folders of this broker's partitions."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from moldau.network.authorization import CLUSTER_NAME, AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import alter_replica_log_dirs as alteration
from moldau.protocol.messages import describe_log_dirs as description
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.rows import Cut
from moldau.runtime.errors import ErrorCode
from moldau.storage.folders.future_logs import LogMove
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager

LOGS_A_TURN: Final = 1_000
"""Number of logs that are described in one iteration of the event loop. This takes some milliseconds."""


class LogDirHandlers:
    """Handlers of requests about a broker's log directories."""

    def __init__(
        self,
        logs: LogManager,
        request_move: Callable[[TopicPartition, LogDirectory], Awaitable[ErrorCode]],
        authorizer: Authorizer,
    ) -> None:
        """``request_move`` begins to move a replica of this broker to another directory."""
        self._logs = logs
        self._request_move = request_move
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.DESCRIBE_LOG_DIRS: Served(
                self.describe_log_dirs, long_answers=(("results", "topics", "partitions"),)
            ),
            ApiKey.ALTER_REPLICA_LOG_DIRS: Served(
                self.alter_replica_log_dirs,
                cuts=(Cut(("dirs", "topics", "partitions"), ("results", "partitions")),),
            ),
        }

    async def describe_log_dirs(
        self, context: RequestContext, request: description.DescribeLogDirsRequest
    ) -> description.DescribeLogDirsResponse:
        if not self._authorizer.allows(context, AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
            return description.DescribeLogDirsResponse(error_code=ErrorCode.cluster_authorization_failed)
        wanted: dict[str, set[int]] | None = None
        if request.topics is not None:
            wanted = {}
            for topic in request.topics:
                wanted.setdefault(topic.topic, set()).update(topic.partitions)
        return description.DescribeLogDirsResponse(
            results=[await self._describe(directory, wanted) for directory in self._logs.directories]
        )

    async def _describe(
        self, directory: LogDirectory, wanted: Mapping[str, Collection[int]] | None
    ) -> description.DescribeLogDirsResult:
        try:
            space = directory.space() if directory.is_online else None
        except OSError:
            space = None
        if space is None:
            return description.DescribeLogDirsResult(
                error_code=ErrorCode.kafka_storage_error, log_dir=directory.path
            )
        topics: dict[str, list[description.DescribeLogDirsPartition]] = {}
        for number, log in enumerate(tuple(self._logs.logs_of(directory)), 1):
            if number % LOGS_A_TURN == 0:
                await asyncio.sleep(0)
            name = log.topic_partition
            if wanted is None or name.partition in wanted.get(name.topic, ()):
                topics.setdefault(log.topic_partition.topic, []).append(_partition(log))
        for move in tuple(self._logs.futures.moves.values()):
            name = move.name
            if move.target is directory and (wanted is None or name.partition in wanted.get(name.topic, ())):
                topics.setdefault(name.topic, []).append(_future(move))
        return description.DescribeLogDirsResult(
            log_dir=directory.path,
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
            topics=[
                description.DescribeLogDirsTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

    async def alter_replica_log_dirs(
        self, context: RequestContext, request: alteration.AlterReplicaLogDirsRequest
    ) -> alteration.AlterReplicaLogDirsResponse:
        """Begin moves of replicas. The moves continue in the background, and DescribeLogDirs shows them."""
        allowed = self._authorizer.allows(context, AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME)
        rows: dict[str, list[alteration.AlterReplicaLogDirPartitionResult]] = {}
        for wanted in request.dirs:
            for topic in wanted.topics:
                for index in topic.partitions:
                    code = ErrorCode.cluster_authorization_failed
                    if allowed:
                        code = await self._move(wanted.path.rstrip("/"), TopicPartition(topic.name, index))
                    rows.setdefault(topic.name, []).append(
                        alteration.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    )
        return alteration.AlterReplicaLogDirsResponse(
            results=[
                alteration.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in rows.items()
            ]
        )

    async def _move(self, path: str, name: TopicPartition) -> ErrorCode:
        target = next((one for one in self._logs.directories if one.path == path), None)
        return ErrorCode.log_dir_not_found if target is None else await self._request_move(name, target)


def _partition(log: PartitionLog) -> description.DescribeLogDirsPartition:
    return description.DescribeLogDirsPartition(
        partition_index=log.topic_partition.partition,
        partition_size=log.size_bytes,
        offset_lag=max(0, log.high_watermark - log.log_end_offset),
    )


def _future(move: LogMove) -> description.DescribeLogDirsPartition:
    """The entry of a replica that is being copied to this directory."""
    return description.DescribeLogDirsPartition(
        partition_index=move.name.partition,
        partition_size=move.future.size_bytes,
        offset_lag=move.lag,
        is_future_key=True,
    )
