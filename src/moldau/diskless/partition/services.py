"""The services that all diskless partitions of a broker share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moldau.coordinators.diskless.calls import (
    DeletedRecords,
    EndedTransactionPart,
    GuardToIssue,
    IssuedGuard,
    MarkerToWrite,
    OffsetToDelete,
    ProducersOfPartition,
)
from moldau.diskless.partition.local_guards import LocalGuards, NoLocalGuards
from moldau.diskless.partition.moving_coordinators import MovingCoordinators
from moldau.diskless.racks import RackView
from moldau.diskless.reading.cold_reads import ColdReads
from moldau.diskless.reading.list_offsets import WalOffsetLookup
from moldau.diskless.reading.read_meters import FetchMeters
from moldau.protocol.partitions import PartitionKey
from moldau.records.batch import BatchHeader
from moldau.replication.partition_interface import AppendAnswer
from moldau.replication.waiters import Deadlines
from moldau.runtime import Clock, UnexpectedErrors
from moldau.runtime.fair_lane import FairLane


class BatchWriter(Protocol):
    """The part of the WAL writer that a partition needs."""

    def append(
        self,
        key: PartitionKey,
        records: memoryview,
        header: BatchHeader,
        *,
        timeout_ms: int,
        timestamp_type: int = 0,
        request_id: int = 0,
        guard: int = 0,
    ) -> AppendAnswer:
        """Append a validated batch. The batch is copied before this call returns. The result is a future of
        the outcome, or a refusal.

        Batches of a partition are committed in the order of these calls.
        """
        ...


class RecordDeleter(Protocol):
    """The part of a batch coordinator that deletes records."""

    async def delete_records(self, partitions: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]: ...


class TransactionParts(Protocol):
    """The part of a batch coordinator that handles the transactions of partitions."""

    async def guard_transactions(self, wanted: Sequence[GuardToIssue]) -> Sequence[IssuedGuard]: ...

    async def end_transactions(self, markers: Sequence[MarkerToWrite]) -> Sequence[EndedTransactionPart]: ...

    async def describe_producers(self, wanted: PartitionKey) -> ProducersOfPartition: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionServices:
    """The services that write a partition's records into the WAL and read them from it."""

    writer: BatchWriter
    deleter: RecordDeleter
    transactions: TransactionParts
    guards: LocalGuards = field(default_factory=NoLocalGuards)
    cold_reads: ColdReads
    """Reads of records that are not in a local cache."""
    lookup: WalOffsetLookup
    """Lookups of offsets by timestamp."""
    opening: FairLane
    """Decompresses batches whose check takes a long time."""
    deadlines: Deadlines
    """Deadlines of requests that wait on this node."""
    clock: Clock
    meters: FetchMeters
    moving: MovingCoordinators
    racks: RackView = field(default_factory=RackView)
    unexpected: UnexpectedErrors
