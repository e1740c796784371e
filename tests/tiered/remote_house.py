"""The environment of the remote log manager's tasks: one classic partition with its log on a disk, and a
store and remote metadata in memory."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from moldau.metrics import Meters
from moldau.objects import MemoryStorage
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import parse_header
from moldau.records.builder import build_batch
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record
from moldau.replication.partition_interface import ReadOutcome
from moldau.runtime import InlineWorkers, Machine, SeededEntropy
from moldau.runtime.byte_quota import ByteRateQuota, QuotaSettings
from moldau.runtime.files.local_disk import LocalDisk
from moldau.storage.log.append_info import AppendOrigin, ReadResult
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.tiered.metadata.lifecycle import (
    RemotePartitionDeleteState,
    check_partition_delete_move,
    check_segment_move,
)
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.manager import NO_POSITION, MetadataPosition
from moldau.tiered.metadata.segment_cache import SegmentCache
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from moldau.tiered.meters import TieredMeters
from moldau.tiered.reading.index_cache import RemoteIndexCache
from moldau.tiered.reading.reader import ReaderSettings, RemoteReader
from moldau.tiered.reading.requests import RemoteRead
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError, RemoteStorageError
from moldau.tiered.tasks.cleanup_task import ExpirationTask
from moldau.tiered.tasks.context import RemoteTaskContext, TaskPartition
from moldau.tiered.tasks.copy import CopyTask

PARTITION = TopicIdPartition(UUID(int=3), "t", 0)
CONFIG = LogConfig(
    remote_storage_enable=True,
    local_retention_ms=0,
    retention_ms=-1,
    index_interval_bytes=100,
    file_delete_delay_ms=0,
)
Step = Callable[[str], Awaitable[None]]


class StandingClock:
    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms


class Faults:
    """Every call to a port is a step. A test lets one of the steps fail, before or after the call takes
    effect."""

    def __init__(self) -> None:
        self.count = 0
        self.fail_at: int | None = None
        self.after_effect = False
        self.error: Callable[[], BaseException] = lambda: RemoteStorageError("a fault")

    async def step(self, act: Callable[[], Awaitable[Any]]) -> Any:
        self.count += 1
        fails = self.count == self.fail_at
        if fails and not self.after_effect:
            raise self.error()
        result = await act()
        if fails:
            raise self.error()
        return result


class Metadata:
    """A ``RemoteLogMetadataManager`` that uses no topic."""

    def __init__(self, faults: Faults) -> None:
        self.cache = SegmentCache()
        self.events: list[Any] = []
        self.deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}
        self._faults = faults

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> MetadataPosition:
        async def act() -> None:
            known = self.cache.get(metadata.id.id)
            check_segment_move(None if known is None else known.state, metadata.state)
            self._put(metadata, metadata)

        await self._faults.step(act)
        return NO_POSITION

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> MetadataPosition:
        async def act() -> None:
            known = self.cache.get(update.id.id)
            if known is None:
                raise RemoteResourceNotFoundError(f"{update.id} is not known")
            self._put(update, known.with_update(update))

        await self._faults.step(act)
        return NO_POSITION

    def _put(self, event: Any, metadata: RemoteLogSegmentMetadata) -> None:
        self.events.append(event)
        self.cache.put(metadata)

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> MetadataPosition:
        async def act() -> None:
            known = self.deletions.get(metadata.partition)
            check_partition_delete_move(None if known is None else known.state, metadata.state)
            self.events.append(metadata)
            self.deletions[metadata.partition] = metadata
            if metadata.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self.cache = SegmentCache()

        await self._faults.step(act)
        return NO_POSITION

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self.cache.segment_for(epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self.cache.next_with_txn_index(epoch, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        return self.cache.highest_offset(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return self.cache.list(epoch)

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        return self.cache.size_bytes(epoch)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return True

    async def wait_ready(self, partition: TopicIdPartition) -> None: ...

    async def wait_applied(self, position: MetadataPosition) -> None: ...

    def remote_partition_deletions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        finished = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        return [each for each in self.deletions.values() if each.state is not finished]

    async def remote_log_partitions(self) -> Sequence[TopicIdPartition]:
        return [PARTITION] if len(self.cache) and PARTITION not in self.deletions else []

    def on_partition_leadership_changes(self, leaders: Any, followers: Any) -> None: ...

    def on_stop_partitions(self, partitions: Any) -> None: ...

    async def close(self) -> None: ...


class Storage:
    """The built-in storage manager with a store in memory and injected faults."""

    def __init__(self, faults: Faults, clock: StandingClock) -> None:
        self.objects = MemoryStorage(clock)
        self.custom_metadata: bytes | None = None
        self._manager = ObjectStorageManager(self.objects)
        self._faults = faults

    async def copy_log_segment_data(self, *arguments: Any) -> bytes | None:
        stored = await self._faults.step(lambda: self._manager.copy_log_segment_data(*arguments))
        return stored if self.custom_metadata is None else self.custom_metadata

    async def fetch_log_segment(self, *arguments: Any) -> memoryview:
        return await self._faults.step(lambda: self._manager.fetch_log_segment(*arguments))

    async def fetch_index(self, *arguments: Any) -> Any:
        return await self._faults.step(lambda: self._manager.fetch_index(*arguments))

    async def delete_log_segment_data(self, *arguments: Any) -> None:
        await self._faults.step(lambda: self._manager.delete_log_segment_data(*arguments))

    async def close(self) -> None: ...

    async def keys(self) -> list[str]:
        return [info.key async for page in self.objects.list("tiered/") for info in page]


async def all_of(partitions: Collection[TopicIdPartition]) -> list[TopicIdPartition]:
    """Return all partitions, as if their topics were deleted. Tests give this function to the remover as its
    argument ``deleted``."""
    return list(partitions)


class House:
    """The leader of one partition, with its log, its store and its remote metadata. By default each batch has
    one record."""

    def __init__(self, folder: Path, config: LogConfig = CONFIG) -> None:
        self.clock = StandingClock()
        self.faults = Faults()
        self.machine = Machine(self.clock, SeededEntropy(1), LocalDisk(), InlineWorkers())
        # The clock for deletions ignores jumps of the machine's clock. A test moves the fake clock only in
        # small steps, so the fake clock is also the clock for deletions.
        object.__setattr__(self.machine, "deletion_clock", self.clock)
        self.log = PartitionLog.open(self.machine, f"{folder}/t-0", TopicPartition("t", 0), config)
        self.metadata = Metadata(self.faults)
        self.storage = Storage(self.faults, self.clock)
        self.meters = TieredMeters(Meters())
        self.context = RemoteTaskContext(
            machine=self.machine,
            broker_id=1,
            metadata=self.metadata,
            storage=self.storage,
            meters=self.meters,
            copy_quota=ByteRateQuota(QuotaSettings()),
            custom_metadata_max_bytes=128,
        )
        self.partition = TaskPartition(PARTITION, self)
        self.copying = CopyTask(self.context, self.partition)
        self.expiring = ExpirationTask(self.context, self.partition)
        self.indexes = RemoteIndexCache(self.machine, self.storage, f"{folder}/indexes", 1 << 20)
        self.reader = self.new_reader(ReaderSettings())

    def new_reader(self, settings: ReaderSettings) -> RemoteReader:
        self.reader = RemoteReader(self.metadata, self.storage, self.indexes, settings, self.meters)
        return self.reader

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    def append(self, *values: bytes, epoch: int = 0, producer: tuple[int, int] | None = None) -> None:
        """Append one batch. ``producer`` has the producer id and the first sequence of a
        transactional batch."""
        records = [Record(0, self.clock.time_ms, None, value) for value in values]
        batch = (
            build_batch(records)
            if producer is None
            else build_batch(
                records,
                producer_id=producer[0],
                producer_epoch=0,
                base_sequence=producer[1],
                transactional=True,
            )
        )
        self.log.append_as_leader(batch, [parse_header(batch)], epoch)
        self.log.high_watermark = self.log.log_end_offset
        self.clock.time_ms += 1_000

    def end_transaction(self, producer_id: int, *, commit: bool, epoch: int = 0) -> None:
        batch = build_end_transaction_marker(
            producer_id, 0, committed=commit, coordinator_epoch=0, timestamp=self.clock.time_ms
        )
        self.log.append_as_leader(batch, [parse_header(batch)], epoch, origin=AppendOrigin.COORDINATOR)
        self.log.high_watermark = self.log.log_end_offset

    def fill(self, segments: int, batches: int = 3, epoch: int = 0) -> None:
        """Append closed segments. The active segment after them is empty."""
        for _ in range(segments):
            for _ in range(batches):
                self.append(b"value %d" % self.log.log_end_offset, epoch=epoch)
            self.log.roll()

    async def free(self) -> None:
        """Delete copied segments from the disk."""
        await self.log.delete_old_segments(self.clock.time_ms)

    def wanted(self, offset: int, max_bytes: int = 1 << 20, **how: Any) -> RemoteRead:
        log = self.log
        return RemoteRead(
            partition=PARTITION,
            lineage=LogLineage(log.leader_epochs),
            end_offset=log.local_log_start_offset,
            log_start=lambda: log.log_start_offset,
            offset=offset,
            max_bytes=max_bytes,
            aborted_behind=lambda first, end: log.aborted_transactions(first, ReadResult([], 0, end, 0, 0)),
            **how,
        )

    async def read(self, offset: int, max_bytes: int = 1 << 20, **how: Any) -> ReadOutcome:
        return await self.reader.read(self.wanted(offset, max_bytes, **how), ReadOutcome())
