"""Diskless coordinators on the node that leads them: their stores, their reads, their snapshots, and their
measured WAL backlogs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from moldau.coordinators.diskless.calls import METADATA_MAX_MESSAGE_BYTES, Backlog
from moldau.coordinators.diskless.reads.store_reader import StoreReader
from moldau.coordinators.diskless.store.snapshot_format import SnapshottedLog
from moldau.coordinators.diskless.store.snapshots import Snapshotter
from moldau.coordinators.diskless.store.store import DisklessStore
from moldau.coordinators.log import CoordinatorLog, SnapshottedCoordinatorLog
from moldau.coordinators.shard import CommittedRecord
from moldau.replication.classic_partition import ClassicPartition


class DisklessMetadataLog(CoordinatorLog, SnapshottedLog, Protocol):
    """The log of a diskless coordinator."""


def open_log(partition: ClassicPartition) -> SnapshottedCoordinatorLog:
    """The log of the coordinator that leads a partition of ``__diskless_metadata``."""
    return SnapshottedCoordinatorLog(partition, max_batch_bytes=METADATA_MAX_MESSAGE_BYTES)


class LedCoordinator:
    """Implements the runtime's ``ShardStore`` by passing each call to ``store``."""

    def __init__(self, epoch: int, store: DisklessStore) -> None:
        self.epoch = epoch
        self.store = store
        self.reader = StoreReader(store)
        self.snapshotter = Snapshotter(store)

    async def restore(self, shard: object) -> int | None:
        return await self.store.restore(shard)

    def committed(self, records: Sequence[CommittedRecord], up_to_offset: int) -> None:
        self.store.committed(records, up_to_offset)

    async def close(self) -> None:
        await self.store.close()


class MeasuredBacklogs:
    """The WAL backlogs of the coordinators that a broker leads, as of the last measurement. The responses to
    commits contain these backlogs, so that the committing brokers know them."""

    def __init__(self) -> None:
        self._size_bytes: dict[int, int] = {}

    def measured(self, backlogs: Mapping[int, Backlog]) -> Backlog:
        """Store the backlogs of all coordinators that this broker leads, and return their sum."""
        self._size_bytes = {coordinator_id: one.size_bytes for coordinator_id, one in backlogs.items()}
        ages = [one.oldest_created_ms for one in backlogs.values() if one.oldest_created_ms is not None]
        batches = sum(one.batches for one in backlogs.values())
        return Backlog(sum(self._size_bytes.values()), batches, min(ages, default=None))

    def size_bytes(self, coordinator_id: int) -> int:
        """The backlog of a coordinator; -1 if it was not measured. Backlogs are measured only if diskless
        records move to remote storage."""
        return self._size_bytes.get(coordinator_id, -1)
