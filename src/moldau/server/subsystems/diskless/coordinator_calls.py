"""The calls of all diskless coordinators of the cluster: inside the process when this broker leads the
coordinator, otherwise by RPC.

The metadata name the leader of a coordinator. A connection's answers come in the order of its requests.
Requests that wait at a coordinator therefore have connections of their own, so that a commit is not queued
behind a FindBatches that waits for commits.
"""

from collections.abc import Awaitable, Sequence
from typing import Final

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.port import DisklessCoordinatorCalls
from moldau.coordinators.diskless.calls.remote import RemoteDisklessCoordinators
from moldau.network.client import ClientLimits, RpcClient
from moldau.network.remote_node import NodeAddress, RemoteNode
from moldau.protocol.schema import Message
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView

CALL_TIMEOUT_MS: Final = 15_000
_LIMITS: Final = ClientLimits(connect_timeout_ms=2_000, reconnect_backoff_max_ms=500)


class ClusterCoordinators:
    """Sends each call to the leader of its coordinator as of this broker's metadata.

    A call raises ``KafkaError`` when the leader has moved or does not answer, and the caller repeats it.
    Calls in progress at a former leader fail as soon as newer metadata name another leader.
    """

    def __init__(
        self,
        local: DisklessCoordinatorCalls,
        view: ClusterView,
        listener_name: str,
        entropy: Entropy,
    ) -> None:
        """``listener_name`` names the listener for connections between brokers."""
        self._local = local
        self._view = view
        self._listener_name = listener_name
        self._entropy = entropy
        self._commits = _Lane(self, "commits")
        self._others = _Lane(self, "calls")
        self._waiting: dict[int, _Lane] = {}
        """Connections for requests that wait at a coordinator, by the coordinator's number."""
        self._leaders: dict[int, NodeAddress | None] = {}

    # -- the calls ------------------------------------------------------------------------------

    def commit_file(
        self, coordinator_id: int, call: calls.CommitFileCall
    ) -> Awaitable[calls.CommitFileResult]:
        return self._at(coordinator_id, self._commits).commit_file(coordinator_id, call)

    async def find_batches(
        self, coordinator_id: int, call: calls.FindBatchesCall
    ) -> Sequence[calls.FoundPartition]:
        lane = self._others
        if call.max_wait_ms:
            lane = self._waiting.get(coordinator_id) or self._new_lane(coordinator_id)
        return await self._at(coordinator_id, lane).find_batches(coordinator_id, call)

    async def list_offsets(
        self, coordinator_id: int, timestamps: Sequence[calls.TimestampToList]
    ) -> Sequence[calls.ListedOffset]:
        return await self._at(coordinator_id, self._others).list_offsets(coordinator_id, timestamps)

    async def delete_records(
        self, coordinator_id: int, offsets: Sequence[calls.OffsetToDelete]
    ) -> Sequence[calls.DeletedRecords]:
        return await self._at(coordinator_id, self._others).delete_records(coordinator_id, offsets)

    async def prune(self, coordinator_id: int, call: calls.PruneCall) -> calls.PrunedPartition:
        return await self._at(coordinator_id, self._others).prune(coordinator_id, call)

    async def guard_transactions(
        self, coordinator_id: int, wanted: Sequence[calls.GuardToIssue]
    ) -> Sequence[calls.IssuedGuard]:
        return await self._at(coordinator_id, self._others).guard_transactions(coordinator_id, wanted)

    async def end_transactions(
        self, coordinator_id: int, markers: Sequence[calls.MarkerToWrite]
    ) -> Sequence[calls.EndedTransactionPart]:
        return await self._at(coordinator_id, self._others).end_transactions(coordinator_id, markers)

    async def describe_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> Sequence[calls.DescribedFile]:
        return await self._at(coordinator_id, self._others).describe_files(coordinator_id, object_keys)

    async def close_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> Sequence[calls.ClosedFile]:
        return await self._at(coordinator_id, self._others).close_files(coordinator_id, object_keys)

    async def take_over(self, coordinator_id: int, file: calls.FileToHandOver) -> None:
        await self._at(coordinator_id, self._others).take_over(coordinator_id, file)

    # -- who is asked ---------------------------------------------------------------------------

    def on_image(self, image: MetadataImage) -> list[int]:
        """Apply newer metadata; returns the coordinators that have moved."""
        topic = image.topics.get(DISKLESS_METADATA_TOPIC)
        count = 0 if topic is None else len(topic.partitions)
        leaders = {number: self._leader_or_none(number) for number in range(count)}
        moved = [number for number in leaders if leaders[number] != self._leaders.get(number)]
        left = {self._leaders.get(number) for number in moved} - {None}
        self._leaders = leaders
        for address in left:
            assert address is not None
            for lane in self._lanes():
                lane.node_at(address).disconnect()
        return moved

    def address(self, coordinator_id: int) -> NodeAddress:
        """The broker that leads a coordinator. Raises COORDINATOR_NOT_AVAILABLE."""
        found = self._leader_or_none(coordinator_id)
        if found is None:
            raise KafkaError(
                ErrorCode.coordinator_not_available, f"diskless coordinator {coordinator_id} has no leader"
            )
        return found

    async def close(self) -> None:
        """Close all connections; calls in progress fail."""
        for lane in self._lanes():
            await lane.rpc.close()

    def new_client(self, name: str) -> RpcClient:
        """A client with connections of its own."""
        return RpcClient(self._entropy, client_id=f"broker-{self._view.local_id}-{name}", limits=_LIMITS)

    def _at(self, coordinator_id: int, lane: "_Lane") -> DisklessCoordinatorCalls:
        leader_id = self._view.leader_of(DISKLESS_METADATA_TOPIC, coordinator_id)
        return self._local if leader_id == self._view.local_id else lane.calls

    def _leader_or_none(self, coordinator_id: int) -> NodeAddress | None:
        leader_id = self._view.leader_of(DISKLESS_METADATA_TOPIC, coordinator_id)
        return None if leader_id is None else self._view.address(leader_id, self._listener_name)

    def _new_lane(self, coordinator_id: int) -> "_Lane":
        lane = self._waiting[coordinator_id] = _Lane(self, f"finds-{coordinator_id}")
        return lane

    def _lanes(self) -> "list[_Lane]":
        return [self._commits, self._others, *self._waiting.values()]


class _Lane:
    """A group of connections to leaders: a :class:`CoordinatorChannel` and the calls over it."""

    def __init__(self, cluster: ClusterCoordinators, name: str) -> None:
        self._cluster = cluster
        self.rpc = cluster.new_client(name)
        self.calls: DisklessCoordinatorCalls = RemoteDisklessCoordinators(self)
        self.timeout_ms = CALL_TIMEOUT_MS

    def node_at(self, address: NodeAddress) -> RemoteNode:
        return RemoteNode(self.rpc, address)

    async def version(self, coordinator_id: int, api_key: int) -> int:
        return await self._leader(coordinator_id).version_of(api_key, self.timeout_ms)

    async def send(self, coordinator_id: int, version: int, request: Message) -> object:
        return await self._leader(coordinator_id).ask(request, self.timeout_ms, version)

    def _leader(self, coordinator_id: int) -> RemoteNode:
        return self.node_at(self._cluster.address(coordinator_id))
