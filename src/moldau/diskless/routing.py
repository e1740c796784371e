"""The built-in batch coordinator. It sends each call to the coordinators of the partitions that the call
names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    CommitFileCall,
    CommitFileResult,
    DeletedRecords,
    EndedTransactionPart,
    FindBatchesCall,
    FoundPartition,
    GuardToIssue,
    IssuedGuard,
    ListedOffset,
    MarkerToWrite,
    OffsetToDelete,
    PartitionToFind,
    ProducersOfPartition,
    PruneCall,
    PrunedPartition,
    TimestampToList,
)
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError

__all__ = ["CoordinatorCalls", "RoutingBatchCoordinator"]


class CoordinatorCalls(Protocol):
    """For each coordinator, the object through which it is called: in this process (``DisklessCoordinator``)
    or over the network."""

    def commit_file(self, coordinator_id: int, call: CommitFileCall) -> Awaitable[CommitFileResult]: ...

    async def find_batches(self, coordinator_id: int, call: FindBatchesCall) -> Sequence[FoundPartition]: ...

    async def list_offsets(
        self, coordinator_id: int, timestamps: Sequence[TimestampToList]
    ) -> Sequence[ListedOffset]: ...

    async def delete_records(
        self, coordinator_id: int, offsets: Sequence[OffsetToDelete]
    ) -> Sequence[DeletedRecords]: ...

    async def prune(self, coordinator_id: int, call: PruneCall) -> PrunedPartition: ...

    async def guard_transactions(
        self, coordinator_id: int, wanted: Sequence[GuardToIssue]
    ) -> Sequence[IssuedGuard]: ...

    async def end_transactions(
        self, coordinator_id: int, markers: Sequence[MarkerToWrite]
    ) -> Sequence[EndedTransactionPart]: ...

    async def describe_producers(
        self, coordinator_id: int, wanted: Sequence[PartitionKey]
    ) -> Sequence[ProducersOfPartition]: ...


Asked = TypeVar("Asked", PartitionToFind, TimestampToList, OffsetToDelete, GuardToIssue, MarkerToWrite)
RowAnswer = TypeVar(
    "RowAnswer", FoundPartition, ListedOffset, DeletedRecords, IssuedGuard, EndedTransactionPart
)
RefuseRow: TypeAlias = Callable[[UUID, int, ErrorCode, str | None], RowAnswer]


class RoutingBatchCoordinator:
    """A :class:`moldau.diskless.batch_coordinator.BatchCoordinator` that calls the coordinators of the
    partitions.

    ``owner_of`` returns a partition's coordinator (from the cluster's metadata) and may raise. ``calls_of``
    returns the object through which a coordinator is called now. If one coordinator refuses its part of a
    call, the parts of the other coordinators do not fail.
    """

    def __init__(
        self,
        owner_of: Callable[[UUID, int], int],
        calls_of: Callable[[int], CoordinatorCalls],
        commit_epoch: Callable[[], int] = lambda: -1,
    ) -> None:
        """``commit_epoch`` is the epoch of this broker's registration; -1 while it is not known."""
        self._owner_of = owner_of
        self._calls_of = calls_of
        self._commit_epoch = commit_epoch

    def commit_epoch(self) -> int:
        """Return the epoch of this broker's registration. Commits contain it, because Moldau's coordinators
        decide on commits in the order of their numbers (``CommitFileCall.place``)."""
        return self._commit_epoch()

    def coordinator_of(self, topic_id: UUID, partition_index: int) -> int:
        return self._owner_of(topic_id, partition_index)

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        return await self._calls_of(coordinator_id).commit_file(coordinator_id, call)

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        """Find batches. If the partitions belong to several coordinators, the wait ends when one of these
        coordinators has batches."""
        owners = {self._owner_or_none(asked) for asked in call.partitions}
        if len(owners) == 1 or not call.max_wait_ms:
            return _within(await self._find(call), call.max_bytes)
        found = await self._find(replace(call, min_bytes=0, max_wait_ms=0))
        if not _is_enough(found, call.min_bytes):
            await self._until_one_has_something(call)
            found = await self._find(replace(call, min_bytes=0, max_wait_ms=0))
        return _within(found, call.max_bytes)

    async def list_offsets(self, partitions: Sequence[TimestampToList]) -> Sequence[ListedOffset]:
        return await self._split(
            partitions, lambda owner, some: self._calls_of(owner).list_offsets(owner, some), ListedOffset
        )

    async def delete_records(self, offsets: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]:
        return await self._split(
            offsets, lambda owner, some: self._calls_of(owner).delete_records(owner, some), DeletedRecords
        )

    async def prune(self, call: PruneCall) -> PrunedPartition:
        owner = self._owner_of(call.topic_id, call.partition_index)
        return await self._calls_of(owner).prune(owner, call)

    async def guard_transactions(self, wanted: Sequence[GuardToIssue]) -> Sequence[IssuedGuard]:
        return await self._split(
            wanted, lambda owner, some: self._calls_of(owner).guard_transactions(owner, some), IssuedGuard
        )

    async def end_transactions(self, markers: Sequence[MarkerToWrite]) -> Sequence[EndedTransactionPart]:
        return await self._split(
            markers,
            lambda owner, some: self._calls_of(owner).end_transactions(owner, some),
            EndedTransactionPart,
        )

    async def describe_producers(self, wanted: PartitionKey) -> ProducersOfPartition:
        owner = self._owner_of(*wanted)
        (found,) = await self._calls_of(owner).describe_producers(owner, [wanted])
        return found

    async def _find(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        return await self._split(
            call.partitions,
            lambda owner, some: self._calls_of(owner).find_batches(owner, replace(call, partitions=some)),
            FoundPartition,
        )

    async def _until_one_has_something(self, call: FindBatchesCall) -> None:
        """Wait until one coordinator has found any bytes. This method does not wait for more bytes, because
        it does not know the total over all coordinators."""
        call = replace(call, min_bytes=min(1, call.min_bytes), max_bytes=1)
        parts = _by_owner(call.partitions, self._owner_or_none)
        tasks = [
            asyncio.ensure_future(self._calls_of(owner).find_batches(owner, replace(call, partitions=some)))
            for owner, some in parts.items()
            if owner is not None
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _split(
        self,
        asked: Sequence[Asked],
        ask: Callable[[int, Sequence[Asked]], Coroutine[Any, Any, Sequence[RowAnswer]]],
        refuse: "RefuseRow[RowAnswer]",
    ) -> Sequence[RowAnswer]:
        """Call all coordinators in parallel. Returns the results in the order of the request."""
        answers: dict[tuple[UUID, int], list[RowAnswer]] = {}

        async def ask_one(owner: int | None, some: Sequence[Asked]) -> None:
            try:
                if owner is None:
                    raise KafkaError(ErrorCode.unknown_topic_or_partition, "no coordinator is known for it")
                found: Iterable[RowAnswer] = await ask(owner, some)
            except KafkaError as error:
                found = [refuse(one.topic_id, one.partition_index, error.code, error.message) for one in some]
            except (OSError, TimeoutError):
                code = ErrorCode.coordinator_not_available
                found = [refuse(one.topic_id, one.partition_index, code, None) for one in some]
            for answer in found:
                answers.setdefault((answer.topic_id, answer.partition_index), []).append(answer)

        parts = _by_owner(asked, self._owner_or_none)
        if len(parts) == 1:
            await ask_one(*next(iter(parts.items())))
        else:
            await asyncio.gather(*(ask_one(owner, some) for owner, some in parts.items()))
        return [answers[one.topic_id, one.partition_index].pop(0) for one in asked]

    def _owner_or_none(
        self, asked: PartitionToFind | TimestampToList | OffsetToDelete | GuardToIssue | MarkerToWrite
    ) -> int | None:
        try:
            return self._owner_of(asked.topic_id, asked.partition_index)
        except KafkaError:
            return None


def _by_owner(
    asked: Sequence[Asked], owner_of: Callable[[Asked], int | None]
) -> dict[int | None, list[Asked]]:
    parts: dict[int | None, list[Asked]] = {}
    for owner, run in groupby(asked, owner_of):
        parts.setdefault(owner, []).extend(run)
    return parts


def _is_enough(found: Sequence[FoundPartition], min_bytes: int) -> bool:
    """Whether a waiting FindBatches returns now, because the results contain ``min_bytes`` bytes, an error,
    or a partition whose records have moved to the tier."""
    if any(one.error is not ErrorCode.none or one.moved_to_tier for one in found):
        return True
    return sum(batch.size_bytes for one in found for batch in one.batches) >= min_bytes


def _within(found: Sequence[FoundPartition], max_bytes: int) -> Sequence[FoundPartition]:
    """Apply the byte budget in the order of the partitions. This is needed because each coordinator could use
    the whole budget."""
    left = max_bytes
    bounded: list[FoundPartition] = []
    for one in found:
        kept = []
        for batch in one.batches:
            if left <= 0 or (batch.size_bytes > left and left < max_bytes):
                left = 0
                break
            kept.append(batch)
            left -= batch.size_bytes
        bounded.append(one if len(kept) == len(one.batches) else one._replace(batches=kept))
    return bounded
