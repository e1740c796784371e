"""The calls to all diskless coordinators of the cluster. When this broker leads the coordinator, a call stays
inside the process. Otherwise the call is sent over the network.

The leader of a coordinator is in the metadata. On a connection, responses come in the order of the requests.
Requests that may wait at a coordinator therefore use separate connections. Otherwise the response to a commit
could be delayed by an earlier FindBatches request that itself waits for commits.
"""

from collections.abc import Awaitable
from typing import Final, TypeVar

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import CommitFileCall, CommitFileResult
from moldau.coordinators.diskless.calls.asking import DisklessCoordinatorCalls
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Lane
from moldau.coordinators.diskless.calls.network import NetworkDisklessCoordinators
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.coordinators.diskless.calls.subjects.commit import COMMIT_FILE
from moldau.coordinators.diskless.calls.subjects.commit_parts import COMMIT_PARTS
from moldau.metrics import Meters
from moldau.network.client.node_connection import NodeAddress, NodeConnection
from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.protocol.schema import Message
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.subsystems.diskless.gathered_commits import GatheredCommits

A = TypeVar("A")
R = TypeVar("R")

CALL_TIMEOUT_MS: Final = 15_000
_LIMITS: Final = ClientLimits(connect_timeout_ms=2_000, reconnect_backoff_max_ms=500)


class ClusterCoordinators(DisklessCoordinatorCalls):
    """Sends each call to the leader of its coordinator according to this broker's metadata.

    If the leader has moved or does not answer, a call raises ``KafkaError``, and the caller repeats the call.
    Calls in progress at a former leader fail as soon as newer metadata contain another leader.
    """

    def __init__(
        self,
        local: ServedCalls,
        view: ClusterView,
        listener_name: str,
        entropy: Entropy,
        meters: Meters,
    ) -> None:
        """``listener_name`` names the listener for connections between brokers."""
        self._local = local
        self._view = view
        self._listener_name = listener_name
        self._entropy = entropy
        self._shared = {lane: _Connections(self, lane.value) for lane in (Lane.COMMITS, Lane.SHARED)}
        self._waiting: dict[int, _Connections] = {}
        """Connections for requests that wait at a coordinator, by the coordinator's number."""
        self._leaders: dict[int, NodeAddress | None] = {}
        self._commit_calls = meters.scoped("moldau.diskless", "Writer").counter(
            "CommitCallsPerSec",
            "Requests with commits that were sent to other brokers, including repeated ones.",
        )
        self._commits = GatheredCommits(
            lambda coordinator_id, call: self._counted(COMMIT_FILE, coordinator_id, call),
            lambda parts: self._counted(COMMIT_PARTS, parts[0][0], parts),
        )

    def commit_file(self, coordinator_id: int, call: CommitFileCall) -> Awaitable[CommitFileResult]:
        """Commit a part of a file. If the same broker leads the coordinators of several parts of a file,
        their commits are sent in one request."""
        leader_id = self._view.leader_of(DISKLESS_METADATA_TOPIC, coordinator_id)
        if leader_id is None or leader_id == self._view.local_id:
            return self.call(COMMIT_FILE, coordinator_id, call)
        return self._commits.commit(leader_id, coordinator_id, call)

    def _counted(self, call: DisklessCall[A, R], coordinator_id: int, arguments: A) -> Awaitable[R]:
        self._commit_calls.value += 1
        return self.call(call, coordinator_id, arguments)

    def call(self, call: DisklessCall[A, R], coordinator_id: int, arguments: A) -> Awaitable[R]:
        leader_id = self._view.leader_of(DISKLESS_METADATA_TOPIC, coordinator_id)
        if leader_id == self._view.local_id:
            return call.serve(self._local, coordinator_id, arguments)
        return self._lane(call.lane(arguments), coordinator_id).calls.call(call, coordinator_id, arguments)

    def on_image(self, image: MetadataImage) -> list[int]:
        """Apply newer metadata. Returns the coordinators that have moved."""
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
        """The address of the broker that leads a coordinator. Raises COORDINATOR_NOT_AVAILABLE if the
        metadata contain no such leader."""
        found = self._leader_or_none(coordinator_id)
        if found is None:
            raise KafkaError(
                ErrorCode.coordinator_not_available, f"diskless coordinator {coordinator_id} has no leader"
            )
        return found

    async def close(self) -> None:
        """Close all connections. Calls in progress fail."""
        await self._commits.close()
        for lane in self._lanes():
            await lane.rpc.close()

    def new_client(self, name: str) -> RpcClient:
        """A client with separate connections."""
        return RpcClient(self._entropy, client_id=f"broker-{self._view.local_id}-{name}", limits=_LIMITS)

    def _lane(self, lane: Lane, coordinator_id: int) -> "_Connections":
        if lane is not Lane.WAITING:
            return self._shared[lane]
        if coordinator_id not in self._waiting:
            self._waiting[coordinator_id] = _Connections(self, f"{lane.value}-{coordinator_id}")
        return self._waiting[coordinator_id]

    def _leader_or_none(self, coordinator_id: int) -> NodeAddress | None:
        leader_id = self._view.leader_of(DISKLESS_METADATA_TOPIC, coordinator_id)
        return None if leader_id is None else self._view.address(leader_id, self._listener_name)

    def _lanes(self) -> "list[_Connections]":
        return [*self._shared.values(), *self._waiting.values()]


class _Connections:
    """A group of connections to leaders. It contains a :class:`CoordinatorChannel` and the calls that use
    it."""

    def __init__(self, cluster: ClusterCoordinators, name: str) -> None:
        self._cluster = cluster
        self.rpc = cluster.new_client(name)
        self.calls: DisklessCoordinatorCalls = NetworkDisklessCoordinators(self)
        self.timeout_ms = CALL_TIMEOUT_MS

    def node_at(self, address: NodeAddress) -> NodeConnection:
        return NodeConnection(self.rpc, address)

    async def version(self, coordinator_id: int, api_key: int) -> int:
        return await self._leader(coordinator_id).version_of(api_key, self.timeout_ms)

    async def send(self, coordinator_id: int, version: int, request: Message) -> object:
        return await self._leader(coordinator_id).ask(request, self.timeout_ms, version)

    def _leader(self, coordinator_id: int) -> NodeConnection:
        return self.node_at(self._cluster.address(coordinator_id))
