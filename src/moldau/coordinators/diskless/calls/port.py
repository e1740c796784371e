"""The interface with the operations of diskless coordinators. The declarations of calls refer to these
operations, and ``DisklessCoordinator`` implements them."""

from collections.abc import Awaitable, Sequence
from typing import Protocol
from uuid import UUID

from moldau.coordinators.diskless import calls
from moldau.protocol.partitions import PartitionKey


class Backlogs(Protocol):
    """The WAL backlogs of coordinators."""

    def size_bytes(self, coordinator_id: int) -> int:
        """The WAL backlog of a coordinator; -1 if it was not measured."""
        ...


class ServedCalls(Protocol):
    """The coordinators that handle calls. The first argument of each operation names its coordinator (the
    partition of ``__diskless_metadata``).

    If an operation fails as a whole, it raises :class:`moldau.runtime.KafkaError`.
    """

    @property
    def backlogs(self) -> Backlogs: ...

    def commit_file(
        self, coordinator_id: int, call: calls.CommitFileCall
    ) -> Awaitable[calls.CommitFileResult]: ...

    async def delete_records(
        self, coordinator_id: int, offsets: Sequence[calls.OffsetToDelete]
    ) -> list[calls.DeletedRecords]: ...

    async def create_partitions(
        self, coordinator_id: int, topics: Sequence[calls.PartitionsToCreate]
    ) -> list[calls.TopicResult]: ...

    async def delete_topics(
        self, coordinator_id: int, topic_ids: Sequence[UUID]
    ) -> list[calls.TopicResult]: ...

    async def prune(self, coordinator_id: int, call: calls.PruneCall) -> calls.PrunedPartition: ...

    async def guard_transactions(
        self, coordinator_id: int, wanted: Sequence[calls.GuardToIssue]
    ) -> list[calls.IssuedGuard]: ...

    async def end_transactions(
        self, coordinator_id: int, markers: Sequence[calls.MarkerToWrite]
    ) -> list[calls.EndedTransactionPart]: ...

    async def describe_producers(
        self, coordinator_id: int, wanted: Sequence[PartitionKey]
    ) -> list[calls.ProducersOfPartition]: ...

    async def find_batches(
        self, coordinator_id: int, call: calls.FindBatchesCall
    ) -> list[calls.FoundPartition]: ...

    async def list_offsets(
        self, coordinator_id: int, timestamps: Sequence[calls.TimestampToList]
    ) -> list[calls.ListedOffset]: ...

    async def describe_topics(
        self, coordinator_id: int, topic_ids: Sequence[UUID] | None = None
    ) -> list[calls.DescribedPartition]: ...

    async def describe_topics_and_objects(
        self, coordinator_id: int, call: calls.DescribeTopicsCall
    ) -> calls.DescribedTopics: ...

    async def describe_coordinator(self, coordinator_id: int) -> calls.DescribedCoordinator: ...

    async def describe_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> list[calls.DescribedFile]: ...

    async def list_files(
        self, coordinator_id: int, after_key: str = "", limit: int = 1000
    ) -> list[calls.DescribedFile]: ...

    async def oldest_file(self, coordinator_id: int) -> int | None: ...

    async def close_files(
        self, coordinator_id: int, object_keys: Sequence[str]
    ) -> list[calls.ClosedFile]: ...

    async def take_over(self, coordinator_id: int, file: calls.FileToHandOver) -> None: ...
