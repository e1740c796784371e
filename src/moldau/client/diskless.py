"""The diskless coordinators of a cluster, for tools and jobs. This module finds coordinators, calls them and
retries calls."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from moldau.client.cluster import Client, FoundCoordinator
from moldau.client.errors import ToolError
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import (
    ClosedFile,
    DescribedFile,
    DescribedTopics,
    DescribeTopicsCall,
    FindBatchesCall,
    FoundPartition,
    PartitionToFind,
)
from moldau.coordinators.diskless.calls.asking import DisklessCoordinatorCalls
from moldau.coordinators.diskless.calls.network import NetworkDisklessCoordinators, RpcChannel
from moldau.network.client.node_connection import NodeAddress
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.runtime.errors import ErrorCode, KafkaError

T = TypeVar("T")

BYTES_MAX: Final = 2**31 - 1


class DisklessCoordinators:
    """The coordinators as a client sees them. Failures are ``KafkaError``. The orphan scan also uses this
    class, to ask which objects the coordinators know.

    Each call of :attr:`calls` makes a single attempt; :meth:`asked` retries transient errors.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: dict[int, FoundCoordinator] = {}
        channel = RpcChannel(client.rpc, self._endpoint, self._moved, client.timeout_ms)
        self.calls: DisklessCoordinatorCalls = NetworkDisklessCoordinators(channel)

    async def ids(self) -> range:
        """All coordinators. Raises :class:`ToolError` when the cluster has no diskless topics."""
        (row,) = (await self._client.metadata([DISKLESS_METADATA_TOPIC])).topics
        if row.error_code is ErrorCode.unknown_topic_or_partition:
            raise ToolError("this cluster has no diskless topics (diskless.system.enable)")
        if row.error_code is not ErrorCode.none:
            raise KafkaError(row.error_code, f"{DISKLESS_METADATA_TOPIC}: {row.error_code.name}")
        return range(len(row.partitions))

    async def leader_of(self, coordinator_id: int) -> int:
        """The id of the broker that leads the partition of a coordinator."""
        self._moved(coordinator_id)
        return (await self._locate(coordinator_id)).node_id

    async def asked(self, coordinator_id: int, work: Callable[[DisklessCoordinatorCalls], Awaitable[T]]) -> T:
        """Call a coordinator. Repeats the call when the coordinator has moved or does not answer."""

        async def attempt() -> T:
            try:
                return await work(self.calls)
            except KafkaError as error:
                reason = error.message or error.code.name
                raise KafkaError(error.code, f"diskless coordinator {coordinator_id}: {reason}") from error

        return await self._client.retrying(attempt)

    # -- calls of jobs ----------------------------------------------------------------------------

    async def find(
        self, coordinator_id: int, topic_id: UUID, offsets: Mapping[int, int], batches_max: int
    ) -> Sequence[FoundPartition]:
        """Find up to ``batches_max`` batches of each partition, beginning at the partition's offset. The
        result of a partition may be an error."""
        wanted = [
            PartitionToFind(topic_id, partition, offset, BYTES_MAX) for partition, offset in offsets.items()
        ]
        call = FindBatchesCall(wanted, BYTES_MAX, batches_max)
        return await self.asked(coordinator_id, lambda calls: calls.find_batches(coordinator_id, call))

    async def describe_topics(
        self, coordinator_id: int, *, with_object_keys: bool = False
    ) -> DescribedTopics:
        """The partitions that a coordinator has, and the objects that contain their batches."""
        call = DescribeTopicsCall(None, with_object_keys)
        return await self.asked(
            coordinator_id, lambda calls: calls.describe_topics_and_objects(coordinator_id, call)
        )

    async def describe_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> Sequence[DescribedFile]:
        return await self.asked(
            coordinator_id, lambda calls: calls.describe_files(coordinator_id, object_keys)
        )

    async def close_files(self, coordinator_id: int, object_keys: Sequence[str]) -> Sequence[ClosedFile]:
        return await self.asked(coordinator_id, lambda calls: calls.close_files(coordinator_id, object_keys))

    async def _locate(self, coordinator_id: int) -> FoundCoordinator:
        found = self._found.get(coordinator_id)
        if found is None:
            about = f"diskless coordinator {coordinator_id}"
            key = str(coordinator_id)
            found = await self._client.find_coordinator(CoordinatorKeyType.DISKLESS, key, about)
            self._found[coordinator_id] = found
        return found

    async def _endpoint(self, coordinator_id: int) -> NodeAddress:
        return (await self._locate(coordinator_id)).endpoint

    def _moved(self, coordinator_id: int) -> None:
        self._found.pop(coordinator_id, None)
