"""DescribeLogDirs and AlterReplicaLogDirs: the log folders of this broker's partitions."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from moldau.network.context import RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import alter_replica_log_dirs as alteration
from moldau.protocol.messages import describe_log_dirs as description
from moldau.protocol.rows import Cut
from moldau.runtime.errors import ErrorCode
from moldau.server.authorization import CLUSTER_NAME, AclOperation, AclResourceType, Authorizer
from moldau.server.requests.served import Handler, Served
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager
from moldau.storage.topic_partition import TopicPartition

LOGS_A_TURN: Final = 1_000
"""Number of logs that are described in one turn of the event loop: some milliseconds."""


class LogDirHandlers:
    """Handlers of requests about a broker's log directories."""

    def __init__(self, logs: LogManager, authorizer: Authorizer) -> None:
        self._logs = logs
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
        return description.DescribeLogDirsResult(
            log_dir=directory.path,
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
            topics=[
                description.DescribeLogDirsTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

    def alter_replica_log_dirs(
        self, context: RequestContext, request: alteration.AlterReplicaLogDirsRequest
    ) -> alteration.AlterReplicaLogDirsResponse:
        allowed = self._authorizer.allows(context, AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME)
        return alteration.AlterReplicaLogDirsResponse(
            results=[
                alteration.AlterReplicaLogDirTopicResult(
                    topic_name=topic.name,
                    partitions=self._move(target.path, topic.name, topic.partitions, allowed),
                )
                for target in request.dirs
                for topic in target.topics
            ]
        )

    def _move(
        self, path: str, topic: str, partitions: Iterable[int], allowed: bool
    ) -> list[alteration.AlterReplicaLogDirPartitionResult]:
        return [
            alteration.AlterReplicaLogDirPartitionResult(
                partition_index=index,
                error_code=(
                    self._refusal(path.rstrip("/"), TopicPartition(topic, index))
                    if allowed
                    else ErrorCode.cluster_authorization_failed
                ),
            )
            for index in partitions
        ]

    def _refusal(self, path: str, name: TopicPartition) -> ErrorCode:
        """Answers that a replica stays in its folder. A request that names the folder where the replica
        already is succeeds.
        """
        target = next((one for one in self._logs.directories if one.path == path), None)
        if target is None:
            return ErrorCode.log_dir_not_found
        if not target.is_online:
            return ErrorCode.kafka_storage_error
        log = self._logs.get(name)
        if log is None:
            return ErrorCode.replica_not_available
        return ErrorCode.none if log.directory.rpartition("/")[0] == path else ErrorCode.invalid_request


def _partition(log: PartitionLog) -> description.DescribeLogDirsPartition:
    return description.DescribeLogDirsPartition(
        partition_index=log.topic_partition.partition,
        partition_size=log.size_bytes,
        offset_lag=max(0, log.high_watermark - log.log_end_offset),
    )
