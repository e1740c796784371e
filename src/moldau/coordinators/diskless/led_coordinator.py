"""A diskless coordinator on the node that leads it: its store, its reads and its snapshots."""

from collections.abc import Sequence
from typing import Protocol

from moldau.coordinators.diskless.reads.store_reader import StoreReader
from moldau.coordinators.diskless.store.snapshot_format import SnapshottedLog
from moldau.coordinators.diskless.store.snapshots import Snapshotter
from moldau.coordinators.diskless.store.store import DisklessStore
from moldau.coordinators.log import CoordinatorLog
from moldau.coordinators.shard import CommittedRecord


class DisklessMetadataLog(CoordinatorLog, SnapshottedLog, Protocol):
    """The log of a diskless coordinator."""


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
