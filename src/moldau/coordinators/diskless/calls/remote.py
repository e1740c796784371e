"""The calls of diskless coordinators over the network."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls import changes, commit, describing, files, reading, transactions
from moldau.coordinators.diskless.calls.declaration import DisklessCall
from moldau.network.client import RpcClient
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

A = TypeVar("A")
R = TypeVar("R")

MOVED: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
"""Errors of a broker that does not lead the coordinator, or cannot lead it now."""


class CoordinatorChannel(Protocol):
    """Sends requests to the broker that leads a coordinator. Raises ``KafkaError``.

    Once the address of a coordinator is known, requests to it are sent in the order of the calls.
    """

    @property
    def timeout_ms(self) -> int:
        """Time in ms for which a caller waits for an answer. It is also sent to the coordinator."""
        ...

    async def version(self, coordinator_id: int, api_key: int) -> int:
        """The version of requests to the coordinator's broker."""
        ...

    async def send(self, coordinator_id: int, version: int, request: Message) -> Any:
        """Send a request and return the response."""
        ...


class RpcChannel:
    """A :class:`CoordinatorChannel` over connections to brokers."""

    def __init__(
        self,
        rpc: RpcClient,
        locate: Callable[[int], Awaitable[tuple[str, int]]],
        moved: Callable[[int], None],
        timeout_ms: int,
    ) -> None:
        """``locate`` returns host and port of the broker that leads a coordinator; it should cache them.

        ``moved`` is called when a coordinator may be led by another broker now.
        """
        self._rpc = rpc
        self._locate = locate
        self._moved = moved
        self.timeout_ms = timeout_ms

    async def version(self, coordinator_id: int, api_key: int) -> int:
        host, port = await self._locate(coordinator_id)
        try:
            return await self._rpc.version_of(host, port, api_key)
        except KafkaError:
            self._moved(coordinator_id)
            raise

    async def send(self, coordinator_id: int, version: int, request: Message) -> Any:
        host, port = await self._locate(coordinator_id)
        api_key: int = request.API_KEY
        try:
            response = await self._rpc.request(host, port, api_key, version, request, self.timeout_ms)
        except KafkaError:
            self._moved(coordinator_id)
            raise
        if response.error_code in MOVED:
            self._moved(coordinator_id)
        return response


class RemoteDisklessCoordinators:
    """A :class:`moldau.coordinators.diskless.calls.port.DisklessCoordinatorCalls` over a channel."""

    def __init__(self, channel: CoordinatorChannel) -> None:
        self._channel = channel

    async def call(self, call: DisklessCall[A, R], coordinator_id: int, arguments: A) -> R:
        """Make one call. Raises ``KafkaError``."""
        channel = self._channel
        version = await channel.version(coordinator_id, call.api_key)
        request = call.ask(coordinator_id, arguments, version, channel.timeout_ms)
        return call.read(await channel.send(coordinator_id, version, request))

    async def commit_file(self, coordinator_id: int, call: calls.CommitFileCall) -> calls.CommitFileResult:
        return await self.call(commit.COMMIT_FILE, coordinator_id, call)

    async def delete_records(
        self, coordinator_id: int, offsets: Sequence[calls.OffsetToDelete]
    ) -> list[calls.DeletedRecords]:
        return await self.call(changes.DELETE_RECORDS, coordinator_id, offsets)

    async def create_partitions(
        self, coordinator_id: int, topics: Sequence[calls.PartitionsToCreate]
    ) -> list[calls.TopicResult]:
        return await self.call(changes.CREATE_PARTITIONS, coordinator_id, topics)

    async def delete_topics(self, coordinator_id: int, topic_ids: Sequence[UUID]) -> list[calls.TopicResult]:
        return await self.call(changes.DELETE_TOPICS, coordinator_id, topic_ids)

    async def prune(self, coordinator_id: int, call: calls.PruneCall) -> calls.PrunedPartition:
        (pruned,) = await self.call(changes.PRUNE, coordinator_id, [call])
        return pruned

    async def guard_transactions(
        self, coordinator_id: int, wanted: Sequence[calls.GuardToIssue]
    ) -> list[calls.IssuedGuard]:
        return await self.call(transactions.GUARD_TRANSACTIONS, coordinator_id, wanted)

    async def end_transactions(
        self, coordinator_id: int, markers: Sequence[calls.MarkerToWrite]
    ) -> list[calls.EndedTransactionPart]:
        return await self.call(transactions.END_TRANSACTIONS, coordinator_id, markers)

    async def find_batches(
        self, coordinator_id: int, call: calls.FindBatchesCall
    ) -> list[calls.FoundPartition]:
        return await self.call(reading.FIND_BATCHES, coordinator_id, call)

    async def list_offsets(
        self, coordinator_id: int, timestamps: Sequence[calls.TimestampToList]
    ) -> list[calls.ListedOffset]:
        return await self.call(reading.LIST_OFFSETS, coordinator_id, timestamps)

    async def describe_topics(
        self, coordinator_id: int, topic_ids: Sequence[UUID] | None = None
    ) -> list[calls.DescribedPartition]:
        call = calls.DescribeTopicsCall(topic_ids)
        return list((await self.describe_topics_and_objects(coordinator_id, call)).partitions)

    async def describe_topics_and_objects(
        self, coordinator_id: int, call: calls.DescribeTopicsCall
    ) -> calls.DescribedTopics:
        return await self.call(describing.DESCRIBE_TOPICS, coordinator_id, call)

    async def describe_coordinator(self, coordinator_id: int) -> calls.DescribedCoordinator:
        found = await self.call(describing.DESCRIBE_COORDINATOR, coordinator_id, None)
        return found._replace(coordinator_id=coordinator_id)

    async def describe_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> list[calls.DescribedFile]:
        call = calls.DescribeFilesCall(object_keys)
        return await self.call(files.DESCRIBE_FILES, coordinator_id, call)

    async def list_files(
        self, coordinator_id: int, after_key: str = "", limit: int = 1000
    ) -> list[calls.DescribedFile]:
        call = calls.DescribeFilesCall(None, after_key, limit)
        return await self.call(files.DESCRIBE_FILES, coordinator_id, call)

    async def oldest_file(self, coordinator_id: int) -> int | None:
        return await self.call(files.OLDEST_FILE, coordinator_id, None)

    async def close_files(self, coordinator_id: int, object_keys: Sequence[str]) -> list[calls.ClosedFile]:
        return await self.call(files.CLOSE_FILES, coordinator_id, object_keys)

    async def take_over(self, coordinator_id: int, file: calls.FileToHandOver) -> None:
        await self.call(files.HAND_OVER, coordinator_id, [file])
