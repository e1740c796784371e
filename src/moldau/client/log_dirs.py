"""The log directories of brokers, the replicas in them, and moves of replicas between the directories of a
broker (KIP-113).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.client.cluster import Client, check
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResult
from moldau.runtime.errors import ErrorCode

POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class DirectoryReplica:
    """A replica in a log directory, or a copy of a replica that will move to this directory."""

    topic: str
    partition: int
    path: str
    """The path of the log directory."""
    size_bytes: int
    lag: int
    """For a copy, the number of records that it does not have yet. For a replica, the number of records
    between its log end and its high watermark."""
    is_copy: bool

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class BrokerDirectory:
    """A log directory of a broker. The sizes of an offline directory are not known."""

    broker_id: int
    path: str
    is_online: bool
    replicas: Sequence[DirectoryReplica]
    total_bytes: int | None
    usable_bytes: int | None

    @property
    def size_bytes(self) -> int:
        """Bytes of all replicas and copies."""
        return sum(each.size_bytes for each in self.replicas)


async def directories_of(client: Client, broker_id: int) -> list[BrokerDirectory]:
    """The log directories of a broker, by path. Raises ``ToolError``, ``KafkaError``."""
    response = await client.ask(DescribeLogDirsRequest(topics=None), broker=broker_id)
    check(response.error_code, None, f"broker {broker_id}")
    found = [_directory(broker_id, row) for row in response.results]
    return sorted(found, key=lambda directory: directory.path)


def _directory(broker_id: int, row: DescribeLogDirsResult) -> BrokerDirectory:
    replicas = [
        DirectoryReplica(
            topic.name,
            part.partition_index,
            row.log_dir,
            part.partition_size,
            part.offset_lag,
            part.is_future_key,
        )
        for topic in row.topics
        for part in topic.partitions
    ]
    return BrokerDirectory(
        broker_id,
        row.log_dir,
        row.error_code is ErrorCode.none,
        sorted(replicas, key=lambda replica: (replica.topic, replica.partition)),
        None if row.total_bytes < 0 else row.total_bytes,
        None if row.usable_bytes < 0 else row.usable_bytes,
    )


async def begin_directory_moves(
    client: Client, broker_id: int, replicas: Collection[DirectoryReplica], path: str
) -> dict[str, ErrorCode]:
    """Begin to move replicas of a broker to one of its directories. Returns the errors of refused replicas.

    If a replica is already in this directory, its move to another directory is cancelled.
    """
    by_topic: dict[str, list[int]] = {}
    for replica in replicas:
        by_topic.setdefault(replica.topic, []).append(replica.partition)
    topics = [AlterReplicaLogDirTopic(name=name, partitions=rows) for name, rows in by_topic.items()]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
    response = await client.ask(request, broker=broker_id)
    return {
        f"{topic.topic_name}-{row.partition_index}": row.error_code
        for topic in response.results
        for row in topic.partitions
        if row.error_code is not ErrorCode.none
    }


async def until_directories_changed(
    client: Client, broker_id: int, replicas: Collection[DirectoryReplica], tell_left: Callable[[int], None]
) -> list[DirectoryReplica]:
    """Wait until the moves of these replicas have ended, so that no copies of the replicas are in progress.
    Returns the replicas in their directories.

    ``tell_left`` is called with the number of copies when this number changes.
    """
    wanted = {replica.name for replica in replicas}
    told = -1
    while True:
        directories = await client.retrying(lambda: directories_of(client, broker_id))
        rows = [row for directory in directories for row in directory.replicas if row.name in wanted]
        left = sum(row.is_copy for row in rows)
        if left != told:
            tell_left(left)
            told = left
        if not left:
            return rows
        await asyncio.sleep(POLL_S)
