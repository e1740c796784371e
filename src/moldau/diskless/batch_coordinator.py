"""The protocol of diskless coordinators for brokers (KIP-1163's pluggable batch coordinator)."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, cast
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
    ProducersOfPartition,
    PruneCall,
    PrunedPartition,
    TimestampToList,
)
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError, Machine

__all__ = ["BatchCoordinator", "BatchCoordinatorMaker", "commit_epoch", "load_batch_coordinator"]


class BatchCoordinator(Protocol):
    """The interface to all coordinators of the cluster. The built-in implementation calls coordinators of
    this process directly.

    Every call may raise :class:`moldau.runtime.KafkaError`. The error of a single partition or batch is in
    its own ``error`` field. All calls except ``commit_file`` are split over coordinators. The results of
    these calls have the order of the request.
    """

    def coordinator_of(self, topic_id: UUID, partition_index: int) -> int:
        """The id of a partition's coordinator, which never changes.

        Raises ``UNKNOWN_TOPIC_ID`` or ``UNKNOWN_TOPIC_OR_PARTITION``.
        """
        ...

    async def commit_file(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        """Commit the batches of a file that belong to one coordinator.

        The coordinator checks the order of the batches of each idempotent producer, even if the batches come
        from different brokers. A batch with ``FOLLOWS_DROPPED`` is accepted only if its sequence follows
        directly after the producer's last batch.

        After an error that is not in ``DEFINITE_REFUSALS``, the outcome is unknown. The same call can be
        repeated and then returns the outcome, except after FORGOTTEN and NUMBER_PASSED.
        """
        ...

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]: ...

    async def list_offsets(self, partitions: Sequence[TimestampToList]) -> Sequence[ListedOffset]: ...

    async def delete_records(self, offsets: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]: ...

    async def prune(self, call: PruneCall) -> PrunedPartition:
        """Advance the WAL start of a partition by compare-and-set, or only fence older epochs."""
        ...

    async def guard_transactions(self, wanted: Sequence[GuardToIssue]) -> Sequence[IssuedGuard]:
        """Issue guards for transactional batches. The broker requests each guard before it verifies the
        transaction for which the guard is used.

        A batch is committed only with the producer's current guard. A marker makes the guard invalid.
        """
        ...

    async def end_transactions(self, markers: Sequence[MarkerToWrite]) -> Sequence[EndedTransactionPart]:
        """Append the markers of ended transactions. Returns when the markers are committed."""
        ...

    async def describe_producers(self, wanted: PartitionKey) -> ProducersOfPartition:
        """The producers of a partition with their open transactions. Raises ``KafkaError``."""
        ...


class OrderingCoordinator(Protocol):
    """An optional interface of a batch coordinator. A coordinator with this interface decides the commits of
    a broker in the order of their numbers (``CommitFileCall.place``)."""

    def commit_epoch(self) -> int:
        """The epoch of this broker's registration, for ``CommitFileCall.place``; -1 while it is not known."""
        ...


def commit_epoch(coordinator: BatchCoordinator) -> int:
    """Return the epoch for ``CommitFileCall.place``; -1 if the coordinator does not keep the order of
    commits. Such a coordinator must get only one commit at a time."""
    if not hasattr(coordinator, "commit_epoch"):
        return -1
    return cast(OrderingCoordinator, coordinator).commit_epoch()


BatchCoordinatorMaker: TypeAlias = Callable[[Mapping[str, str], Machine], BatchCoordinator]
"""The function that ``diskless.batch.coordinator.class.name`` names. It is called with the node's
properties.
"""


def load_batch_coordinator(
    class_name: str, properties: Mapping[str, str], machine: Machine
) -> BatchCoordinator:
    """Create the coordinator from the dotted path of a class or function.

    Raises ``INVALID_CONFIG``, which names the key and the reason.
    """
    module_name, _, attribute = class_name.replace(":", ".").rpartition(".")
    try:
        make = cast(BatchCoordinatorMaker, getattr(importlib.import_module(module_name), attribute))
        return make(properties, machine)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise KafkaError(
            ErrorCode.invalid_config, f"diskless.batch.coordinator.class.name {class_name}: {error}"
        ) from error
