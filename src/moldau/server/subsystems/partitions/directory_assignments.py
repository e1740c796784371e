"""Reports to the controller in which log directories this broker has its replicas (AssignReplicasToDirs,
KIP-858).

Only one request is in progress at a time. A replica is reported again until the controller has answered for
this replica.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final
from uuid import UUID

from moldau.cluster.controller.channel import ControllerChannel
from moldau.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
)
from moldau.protocol.partitions import PartitionKey
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors

REPLICAS_A_REQUEST_MAX: Final = 2_000
RETRY_S: Final = 0.5
"""The pause, in seconds, after a request that did not succeed."""

_SETTLED: Final = frozenset(
    {
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
    }
)
"""The answers of the controller after which an assignment is not sent again. The controller has stored the
assignment, or does not need it."""


class DirectoryAssignments:
    """Assignments that the controller does not know yet. Use this class on the event loop."""

    def __init__(
        self,
        local_id: int,
        channel: ControllerChannel,
        local_epoch: Callable[[], int],
        unexpected: UnexpectedErrors,
    ) -> None:
        """``local_epoch`` returns the epoch of this broker's registration; -1 before the registration."""
        self._local_id = local_id
        self._channel = channel
        self._local_epoch = local_epoch
        self._unexpected = unexpected
        self._pending: dict[PartitionKey, UUID] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, key: PartitionKey, directory_id: UUID) -> None:
        """Store that a replica is in this directory, and report it to the controller. Called when the
        metadata have another directory or no directory for the replica."""
        if self._pending.get(key) != directory_id:
            self._pending[key] = directory_id
            self._wake.set()

    def forget(self, key: PartitionKey) -> None:
        """Drop an assignment, because the metadata are already correct or this broker no longer has the
        replica."""
        self._pending.pop(key, None)

    def wake(self) -> None:
        """Try again, because the registration may have changed."""
        if self._pending:
            self._wake.set()

    def start(self) -> None:
        """Begin to send requests."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="directory assignments")

    async def stop(self) -> None:
        """Send no more requests."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            is_settled = False
            with self._unexpected.contained("assigning log directories"):
                is_settled = await self._send()
            if not is_settled:
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _send(self) -> bool:
        """Send the pending assignments once. Returns False when some assignments must be sent again."""
        epoch = self._local_epoch()
        if epoch < 0:
            return True  # The registration wakes this task again.
        sent = dict(islice(self._pending.items(), REPLICAS_A_REQUEST_MAX))
        if not sent:
            return True
        try:
            response: AssignReplicasToDirsResponse = await self._channel.send(self._request(sent, epoch))
        except KafkaError:
            return False
        if response.error_code is ErrorCode.unsupported_version:
            # The cluster's metadata do not contain directories yet. At a later feature level they will
            # contain them.
            self._pending.clear()
            return True
        if response.error_code is not ErrorCode.none:
            return False
        for directory in response.directories:
            for topic in directory.topics:
                for row in topic.partitions:
                    key = PartitionKey(topic.topic_id, row.partition_index)
                    if row.error_code in _SETTLED and self._pending.get(key) == directory.id_:
                        del self._pending[key]
        return not self._pending

    def _request(self, sent: Mapping[PartitionKey, UUID], epoch: int) -> AssignReplicasToDirsRequest:
        by_directory: dict[UUID, dict[UUID, list[int]]] = {}
        for key, directory_id in sent.items():
            by_directory.setdefault(directory_id, {}).setdefault(key.topic_id, []).append(key.partition)
        return AssignReplicasToDirsRequest(
            broker_id=self._local_id,
            broker_epoch=epoch,
            directories=[
                AssignReplicasToDirsRequestDirectoryData(
                    id_=directory_id,
                    topics=[
                        AssignReplicasToDirsRequestTopicData(
                            topic_id=topic_id,
                            partitions=[
                                AssignReplicasToDirsRequestPartitionData(partition_index=index)
                                for index in indexes
                            ],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory_id, topics in by_directory.items()
            ],
        )
