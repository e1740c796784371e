"""Calls to diskless coordinators, made from their declarations, in this process or over the network."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import TypeVar
from uuid import UUID

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.declaration import DisklessCall
from moldau.coordinators.diskless.calls.subjects import (
    changes,
    commit,
    describing,
    files,
    reading,
    transactions,
)
from moldau.protocol.partitions import PartitionKey

A = TypeVar("A")
R = TypeVar("R")


class DisklessCoordinatorCalls(ABC):
    """Makes calls to coordinators. :meth:`call` makes any declared call. For many calls there is also a
    separate method. The first argument of all methods except :meth:`call` identifies the coordinator: it is
    the number of a partition of ``__diskless_metadata``.

    If a call fails as a whole, it raises :class:`moldau.runtime.KafkaError`. After NOT_COORDINATOR and
    COORDINATOR_LOAD_IN_PROGRESS, it is certain that a call has not changed the state. After any other error,
    it is unknown whether a call that changes the state has taken effect. Every call may be repeated.
    """

    @abstractmethod
    def call(self, call: DisklessCall[A, R], coordinator_id: int, arguments: A) -> Awaitable[R]:
        """Make one call. Raises ``KafkaError``."""

    def commit_file(
        self, coordinator_id: int, call: calls.CommitFileCall
    ) -> Awaitable[calls.CommitFileResult]:
        """Commit the batches of a file. The work begins when this method is called, before the result is
        awaited. Therefore commits take effect in the order of the calls."""
        return self.call(commit.COMMIT_FILE, coordinator_id, call)

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

    async def describe_producers(
        self, coordinator_id: int, wanted: Sequence[PartitionKey]
    ) -> list[calls.ProducersOfPartition]:
        return await self.call(transactions.DESCRIBE_PRODUCERS, coordinator_id, wanted)

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
