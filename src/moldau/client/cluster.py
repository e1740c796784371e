"""The tools' own Kafka client. It finds leaders and coordinators, and sends requests to them.

The client is small on purpose. Most commands send one request at a time, and the client caches only
addresses.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import moldau
from moldau.client.errors import ToolError
from moldau.network.client.node_connection import NodeAddress
from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.network.own_calls import BrokerChannel
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.errors import ErrorCode, KafkaError

T = TypeVar("T")

LATEST: Final = LATEST_TIMESTAMP
EARLIEST: Final = EARLIEST_TIMESTAMP
RETRY_BACKOFF_S: Final = 0.1
CREATION_ATTEMPTS_MAX: Final = 20
"""Maximum number of attempts to find a topic. A topic that is being created is unknown for a moment. A topic
that the brokers do not create remains unknown."""
MAX_OFFSET_VERSION: Final = 9
"""Up to this version, OffsetFetch and OffsetCommit use topic names. From version 10 on they use topic ids."""

RETRIABLE: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_not_available,
    }
)
"""Transient errors."""
PRODUCE_RETRIABLE: Final = RETRIABLE | {ErrorCode.unknown_topic_or_partition}
"""Transient errors of Produce. A topic may be deleted and created again while its records are written."""


class FoundCoordinator(NamedTuple):
    """The broker with the coordinator of a group, of a transactional id, or of another key."""

    node_id: int
    endpoint: NodeAddress


class ClusterTopic(NamedTuple):
    """A topic, and the leader of each of its partitions."""

    name: str
    topic_id: UUID
    leaders: dict[int, int]


class OffsetOfTime(NamedTuple):
    """An answer of ListOffsets. The offset is -1 when all records have earlier timestamps."""

    offset: int
    timestamp_ms: int


def parse_bootstrap(text: str, option: str = "--bootstrap") -> list[NodeAddress]:
    """Read ``HOST:PORT[,HOST:PORT…]``, with IPv6 addresses in brackets. Raises :class:`ToolError`, which
    names the option."""
    endpoints = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise ToolError(f"{part!r} is not HOST:PORT ({option})")
        endpoints.append(NodeAddress(host.strip("[]"), int(port)))
    if not endpoints:
        raise ToolError(f"{option} names no node")
    return endpoints


def check(code: ErrorCode, message: str | None, about: str) -> None:
    """Raise :class:`ToolError` for a Kafka error in a response."""
    if code is not ErrorCode.none:
        reason = f": {message.rstrip('.')}" if message else ""
        raise ToolError(f"{about}: {code.name.upper()}{reason}")


class Client:
    """Sends requests to a cluster. A client belongs to one event loop. Failures are :class:`KafkaError`."""

    def __init__(self, bootstrap: list[NodeAddress], timeout_s: float) -> None:
        self._bootstrap = bootstrap
        self._brokers: dict[int, NodeAddress] = {}
        self._answered: NodeAddress | None = None
        """The node that answered the last request to any node."""
        self.timeout_s = timeout_s
        timeout_ms = max(1, round(timeout_s * 1000))
        self.timeout_ms = timeout_ms
        self._rpc = RpcClient(
            SystemEntropy(),
            client_id="moldau-tools",
            software_version=moldau.__version__,
            limits=ClientLimits(connect_timeout_ms=min(10_000, timeout_ms), request_timeout_ms=timeout_ms),
        )

    async def close(self) -> None:
        await self._rpc.close()

    async def ask(
        self,
        message: Any,
        *,
        broker: int | NodeAddress | None = None,
        version_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send a request to a broker (by default to any broker that answers). Returns the decoded response.

        The brokers are tried in this order: the broker that answered last, the given brokers, and the brokers
        that the cluster has named since. The named brokers are needed because the given brokers may no longer
        exist. The request has the highest version that both sides support. This applies to Kafka's APIs and
        to Moldau's own APIs.
        """
        if broker is not None:
            endpoint = broker if isinstance(broker, NodeAddress) else await self._broker(broker)
            return await self._send(endpoint, message, version_max, timeout_ms)
        failure: KafkaError | None = None
        last = () if self._answered is None else (self._answered,)
        for endpoint in dict.fromkeys([*last, *self._bootstrap, *self._brokers.values()]):
            try:
                answer = await self._send(endpoint, message, version_max, timeout_ms)
            except KafkaError as error:
                if error.code is not ErrorCode.network_exception:
                    raise
                failure = error
            else:
                self._answered = endpoint
                return answer
        assert failure is not None
        raise failure

    @property
    def rpc(self) -> RpcClient:
        """The connections to the brokers."""
        return self._rpc

    def channel(self, broker: NodeAddress) -> BrokerChannel:
        """Sends Moldau's own calls to a broker. Each call has the client's time-out."""
        return BrokerChannel(self._rpc, *broker, self.timeout_ms)

    async def _send(
        self, endpoint: NodeAddress, message: Any, version_max: int | None, timeout_ms: int | None
    ) -> Any:
        key = message.API_KEY
        version = None
        if version_max is not None:
            version = min(version_max, await self._rpc.version_of(*endpoint, key))
        return await self._rpc.request(*endpoint, key, version, message, timeout_ms)

    async def send_one_way(self, message: Any, *, broker: int) -> None:
        """Send a request that has no response. Returns when the broker has received the request.

        A second request is sent on the same connection. Its response proves that the first request has
        arrived, because requests are served in order.
        """
        endpoint = await self._broker(broker)
        await self._rpc.version_of(*endpoint, message.API_KEY)
        told = asyncio.ensure_future(self._send(endpoint, message, None, None))
        try:
            await asyncio.sleep(0)
            await self._send(endpoint, MetadataRequest(topics=[]), None, None)
        finally:
            told.cancel()
            await asyncio.gather(told, return_exceptions=True)

    async def ask_each(self, message_to: Callable[[int], Any]) -> Any:
        """Send a request to one broker after another, by id, until a broker answers.

        This is for requests to which every broker gives the same answer.
        """

        async def attempt() -> Any:
            if not self._brokers:
                await self.metadata([])
            failure = KafkaError(ErrorCode.broker_not_available, "no broker is there")
            for broker_id in tuple(self._brokers):
                try:
                    return await self.ask(message_to(broker_id), broker=broker_id)
                except KafkaError as error:
                    if error.code not in (ErrorCode.network_exception, ErrorCode.request_timed_out):
                        raise
                    failure = error
            await self.metadata([])
            raise failure

        return await self.retrying(attempt)

    async def _broker(self, broker_id: int) -> NodeAddress:
        if broker_id not in self._brokers:
            await self.metadata([])
        if broker_id not in self._brokers:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not there")
        return self._brokers[broker_id]

    async def metadata(self, names: Iterable[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """The brokers, and the named topics or all topics."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
        response: MetadataResponse = await self.ask(request)
        self._brokers = {row.node_id: NodeAddress(row.host, row.port) for row in response.brokers}
        return response

    async def topic(self, name: str, *, create: bool = False) -> ClusterTopic:
        """A topic whose partitions all have leaders. With ``create``, the topic is created if the brokers
        allow it."""

        patience = iter(range(CREATION_ATTEMPTS_MAX))

        async def attempt() -> ClusterTopic:
            (row,) = (await self.metadata([name], create=create)).topics
            unknown = row.error_code is ErrorCode.unknown_topic_or_partition
            if create and unknown and next(patience, None) is not None:
                raise KafkaError(ErrorCode.leader_not_available, f"topic {name} does not exist")
            if row.error_code is not ErrorCode.none:
                raise KafkaError(row.error_code, topic_problem(name, row.error_code))
            for partition in row.partitions:
                if partition.leader_id < 0:
                    reason = f"partition {name}-{partition.partition_index} has no leader"
                    raise KafkaError(ErrorCode.leader_not_available, reason)
            leaders = {row.partition_index: row.leader_id for row in row.partitions}
            return ClusterTopic(name, row.topic_id, dict(sorted(leaders.items())))

        return await self.retrying(attempt)

    async def retrying(
        self, call: Callable[[], Coroutine[Any, Any, T]], also: Collection[ErrorCode] = ()
    ) -> T:
        """Repeat the action until the action succeeds or fails permanently, or until the time-out is over.
        Nodes may still be starting. The error codes in ``also`` count as transient for this action."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        while True:
            try:
                return await call()
            except KafkaError as error:
                is_known = bool(self._brokers) or self._answered is not None
                unreachable = error.code is ErrorCode.network_exception and not is_known
                transient = error.code in RETRIABLE or error.code in also
                if not transient or unreachable or loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_BACKOFF_S)

    async def coordinator(self, group: str) -> NodeAddress:
        """The broker that coordinates a group."""
        return (await self.find_coordinator(CoordinatorKeyType.GROUP, group, f"group {group}")).endpoint

    async def find_coordinator(self, key_type: int, key: str, about: str) -> FoundCoordinator:
        """The broker with the coordinator of a key. ``key_type`` is a number of ``CoordinatorKeyType``."""

        async def attempt() -> FoundCoordinator:
            request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
            (row,) = (await self.ask(request)).coordinators
            if row.error_code is not ErrorCode.none:
                raise KafkaError(row.error_code, f"{about}: {row.error_message or row.error_code.name}")
            return FoundCoordinator(row.node_id, NodeAddress(row.host, row.port))

        return await self.retrying(attempt)

    async def offsets(
        self, topic: ClusterTopic, timestamps: Mapping[int, int], *, committed_only: bool = False
    ) -> dict[int, OffsetOfTime]:
        """For each partition in ``timestamps``, the offset of the first record that has at least the given
        timestamp. For a special timestamp, it is the offset that this timestamp names, for example the start
        or the end of the log.
        """

        async def attempt() -> dict[int, OffsetOfTime]:
            current = await self.topic(topic.name)
            by_leader: dict[int, list[ListOffsetsPartition]] = {}
            for partition, timestamp in timestamps.items():
                if partition not in current.leaders:
                    raise ToolError(f"topic {topic.name} has no partition {partition}")
                row = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                by_leader.setdefault(current.leaders[partition], []).append(row)
            found = {}
            for leader, rows in by_leader.items():
                request = ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=int(committed_only),
                    topics=[ListOffsetsTopic(name=topic.name, partitions=rows)],
                    timeout_ms=self.timeout_ms,
                )
                response = await self.ask(request, broker=leader)
                for answer in (one for each in response.topics for one in each.partitions):
                    if answer.error_code is not ErrorCode.none:
                        where = f"{topic.name}-{answer.partition_index}"
                        raise KafkaError(answer.error_code, f"{where}: {answer.error_code.name}")
                    found[answer.partition_index] = OffsetOfTime(answer.offset, answer.timestamp)
            return found

        return await self.retrying(attempt)


def topic_problem(name: str, code: ErrorCode) -> str:
    """A sentence about a topic that is not usable."""
    if code is ErrorCode.unknown_topic_or_partition:
        return f"topic {name} does not exist"
    if code is ErrorCode.invalid_topic_exception:
        return f"{name!r} cannot be a topic's name"
    return f"topic {name}: {code.name.upper()}"


@asynccontextmanager
async def connected(bootstrap: str, timeout_s: float) -> AsyncIterator[Client]:
    """A client that is closed at the end of the block."""
    client = Client(parse_bootstrap(bootstrap), timeout_s)
    try:
        yield client
    finally:
        await client.close()


def with_client(bootstrap: str, timeout_s: float, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Run the work of a command on its own event loop."""

    async def run() -> T:
        async with connected(bootstrap, timeout_s) as client:
            return await work(client)

    return asyncio.run(run())
