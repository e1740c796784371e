"""Diskless partitions, their WAL, remote metadata and stores. All of them are in memory, and leaders use
them.

Every call to a port is a *step*. A test can kill a leader before or after a step. After each step, the test
checks that all records can be read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from wal_batches import Sent, wal_batches

from moldau.coordinators.diskless.calls import (
    FENCE_ONLY,
    BatchCoordinate,
    DeletedRecords,
    FindBatchesCall,
    FoundPartition,
    OffsetToDelete,
    PruneCall,
    PrunedPartition,
)
from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.metrics import Meters
from moldau.objects import MemoryStorage
from moldau.objects.storage import ObjectNotFoundError
from moldau.protocol.partitions import PartitionKey
from moldau.records.batch import iter_headers
from moldau.runtime import ErrorCode, InlineWorkers, SeededEntropy
from moldau.runtime.byte_quota import ByteRateQuota, QuotaSettings
from moldau.tiered.consolidation.engine import BrokerEngine, EngineSettings, RemoteCopies
from moldau.tiered.consolidation.leader import ConsolidationLeader
from moldau.tiered.consolidation.ports import LedPartition
from moldau.tiered.consolidation.reconciler import SegmentEvents, SegmentReconciler
from moldau.tiered.metadata.lifecycle import (
    IllegalTransitionError,
    check_segment_move,
)
from moldau.tiered.metadata.manager import MetadataPosition
from moldau.tiered.metadata.segment_cache import SegmentCache
from moldau.tiered.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from moldau.tiered.meters import TieredMeters
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager
from moldau.tiered.storage.segment_builder import BatchRun, build_segment
from moldau.tiered.storage.storage_manager import RemoteResourceNotFoundError

T = TypeVar("T")

TOPIC = TopicIdPartition(UUID(int=7), "t", 0)


class Killed(BaseException):
    """Raised at a step of a leader to simulate a kill of the leader's process."""


class FakeClock:
    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> float:
        return float(self.time_ms)


class World:
    """The state that remains when a leader ends: objects, the coordinator's state, and the log of remote
    metadata."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStorage(self.clock)  # type: ignore[arg-type]
        self.shard = DisklessShard()
        self.batches: dict[TopicIdPartition, list[BatchCoordinate]] = {}
        self.records: dict[TopicIdPartition, list[tuple[bytes, bytes]]] = {}
        """Each batch as it was sent, and as consumers receive it."""
        self.events: list[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate] = []
        self.files = 0

    # -- produced batches -----------------------------------------------------------------------

    async def commit(self, *sent: Sent, partition: TopicIdPartition = TOPIC) -> None:
        """Commit one object with the batches ``sent``."""
        state = self.state(partition)
        self.files += 1
        key = f"wal/{self.files:08}"
        parts = wal_batches(sent, state.next)
        content, position = b"", 0
        for run, batch in parts:
            self.batches[partition].append(
                BatchCoordinate(
                    partition.topic_id,
                    partition.partition,
                    run.base_offset,
                    run.last_offset,
                    key,
                    position,
                    len(batch),
                    self.clock.time_ms,
                    sent[0].timestamp_ms,
                    int(run.append_time_ms >= 0),
                )
            )
            self.records[partition].append((batch, bytes(build_segment([(run, batch)]).log)))
            content += batch
            position += len(batch)
        state.next = parts[-1][0].last_offset + 1
        await self.store.upload(key, content, len(content))

    def state(self, partition: TopicIdPartition = TOPIC) -> PartitionState:
        found = self.shard.partitions.find(partition.topic_id, partition.partition)
        if found is None:
            found = PartitionState(
                len(self.batches), PartitionKey(partition.topic_id, partition.partition), partition.topic
            )
            self.shard.partitions.add(found)
            self.batches[partition], self.records[partition] = [], []
        return found

    def view(self, partition: TopicIdPartition = TOPIC) -> SegmentCache:
        """The metadata after all events."""
        cache = SegmentCache()
        for event in self.events:
            if event.topic_id_partition == partition:
                _apply(cache, event)
        return cache

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return [one for partition in self.batches for one in self.view(partition).list()]

    # -- the check ------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that every committed record that was not deleted can be read at the place that the
        coordinator names."""
        storage = ObjectStorageManager(self.store)
        for partition, wanted in self.records.items():
            cache = self.view(partition)
            state = self.state(partition)
            for coordinate, (sent, expected) in zip(self.batches[partition], wanted, strict=True):
                if coordinate.last_offset < state.log_start:
                    continue
                if coordinate.last_offset >= state.wal_start:
                    view = await self.store.fetch(
                        coordinate.object_key, coordinate.byte_offset, coordinate.size_bytes
                    )
                    assert view == sent
                    continue
                segment = cache.segment_for(0, max(coordinate.base_offset, state.log_start))
                assert segment is not None, f"offset {coordinate.base_offset} is nowhere"
                log = await storage.fetch_log_segment(segment, 0)
                positions = {header.base_offset: at for at, header in iter_headers(log)}
                at = positions[coordinate.base_offset]
                assert log[at : at + len(expected)] == expected

    async def forget_pruned_objects(self) -> None:
        """Delete the objects, as the coordinator does after the grace period."""
        needed = {
            batch.object_key
            for partition, batches in self.batches.items()
            for batch in batches
            if batch.last_offset >= self.state(partition).wal_start
        }
        gone = [info.key async for page in self.store.list("wal/") for info in page if info.key not in needed]
        await self.store.delete(gone)

    async def tiered_keys(self) -> set[str]:
        return {info.key async for page in self.store.list("tiered/") for info in page}


def _apply(
    cache: SegmentCache, event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate
) -> Exception | None:
    known = cache.get(event.id.id)
    try:
        if isinstance(event, RemoteLogSegmentMetadata):
            check_segment_move(None if known is None else known.state, event.state)
            cache.put(event)
        elif known is None:
            return RemoteResourceNotFoundError(f"{event.id} is not known")
        else:
            cache.put(known.with_update(event))
    except IllegalTransitionError as error:
        return error
    return None


class Steps:
    """Counts the calls of a leader and kills the leader at one of them. Other leaders run between
    the calls."""

    def __init__(
        self, world: World, kill_at: int | None = None, *, after: bool = False, seed: int = 0
    ) -> None:
        self.world = world
        self.kill_at = kill_at
        self.after = after
        self.count = 0
        self.chance = SeededEntropy(seed) if seed else None
        self.is_dead = False

    async def step(self, act: Callable[[], Awaitable[T]], *, changes: bool = True) -> T:
        """Run ``act`` as one step. Raises :class:`Killed` if the leader is killed at this step. With
        ``changes``, the step may change state, so the state is checked after it."""
        if self.is_dead:
            raise Killed
        self.count += 1
        dies = self.count == self.kill_at
        self.is_dead = dies
        if dies and not self.after:
            raise Killed
        await self._pause()
        result = await act()
        if changes:
            await self.world.check()
        if dies:
            raise Killed
        await self._pause()
        return result

    async def _pause(self) -> None:
        """Let other leaders run for a random number of iterations of the event loop. Most waits are short,
        but some are long enough for all work of the other leaders."""
        if self.chance is not None:
            turns = self.chance.randrange(300) if self.chance.randrange(25) == 0 else self.chance.randrange(4)
            for _ in range(turns):
                await asyncio.sleep(0)


class Wal:
    """The calls of a leader to the coordinator."""

    def __init__(self, world: World, steps: Steps) -> None:
        self._world, self._steps = world, steps

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        async def find() -> Sequence[FoundPartition]:
            (wanted,) = call.partitions
            partition = self._partition(wanted.topic_id, wanted.partition_index)
            state = self._world.state(partition)
            found = FoundPartition(
                wanted.topic_id,
                wanted.partition_index,
                log_start_offset=state.log_start,
                wal_start_offset=state.wal_start,
                high_watermark=state.next,
            )
            if wanted.offset < state.wal_start:
                return [found._replace(moved_to_tier=True)]
            batches = [one for one in self._world.batches[partition] if one.last_offset >= wanted.offset]
            return [found._replace(batches=batches[: min(3, call.max_batches_per_partition)])]

        return await self._steps.step(find, changes=False)

    def _partition(self, topic_id: UUID, index: int) -> TopicIdPartition:
        return next(p for p in self._world.batches if (p.topic_id, p.partition) == (topic_id, index))

    async def _decide(self, effects: Any) -> Any:
        for record in effects.records:
            self._world.shard.replay(0, record, None)  # type: ignore[arg-type]
        ((_, answer),) = effects.replies
        return answer

    async def prune(self, call: PruneCall) -> PrunedPartition:
        async def prune() -> PrunedPartition:
            found: PrunedPartition = await self._decide(self._world.shard.prune(call, 1))
            partition = self._partition(call.topic_id, call.partition_index)
            left = [
                one for one in self._world.batches[partition] if one.last_offset >= found.wal_start_offset
            ]
            size_bytes = sum(one.size_bytes for one in left)
            return found._replace(wal_size_bytes=size_bytes, wal_batches=len(left))

        return await self._steps.step(prune)

    async def delete_records(self, offsets: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]:
        async def delete() -> Sequence[DeletedRecords]:
            deleted: list[DeletedRecords] = await self._decide(self._world.shard.delete_records(offsets, 1))
            return deleted

        return await self._steps.step(delete)


class Metadata:
    """A metadata manager that reads the log of the world. Its state is as outdated as the rules allow."""

    def __init__(self, world: World, steps: Steps) -> None:
        self._world, self._steps = world, steps
        self._caches = {partition: SegmentCache() for partition in world.batches}
        self._applied = 0
        self._apply_to(len(world.events))

    def _apply_to(self, end: int) -> Exception | None:
        error = None
        while self._applied < end:
            event = self._world.events[self._applied]
            error = _apply(self._caches[event.topic_id_partition], event)
            self._applied += 1
        return error

    async def _append(self, event: Any) -> MetadataPosition:
        async def append() -> MetadataPosition:
            self._world.events.append(event)
            offset = len(self._world.events) - 1
            error = self._apply_to(offset + 1)
            if error is not None:
                raise error
            return MetadataPosition(0, offset)

        return await self._steps.step(append)

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> MetadataPosition:
        return await self._append(metadata)

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> MetadataPosition:
        return await self._append(update)

    def list_remote_log_segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        return self._caches[partition].list()

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return True

    async def wait_applied(self, position: MetadataPosition) -> None:
        self._apply_to(position.offset + 1)


class Stepped:
    """A storage manager or an object store. Each of its calls is a step."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._steps.step(lambda: method(*args, **kwargs), changes=name != "fetch")

        return call


class Leader:
    """The part of a broker that leads partitions, from its start to its end."""

    def __init__(
        self,
        world: World,
        epoch: int = 1,
        steps: Steps | None = None,
        *,
        settings: EngineSettings | None = None,
        storage: Any = None,
        **led: Any,
    ) -> None:
        self.world = world
        self.steps = steps or Steps(world)
        self.wal = Wal(world, self.steps)
        self.metadata = Metadata(world, self.steps)
        self.storage = Stepped(storage or ObjectStorageManager(world.store), self.steps)
        self.led = {partition: LedPartition(partition, epoch, **led) for partition in world.batches}
        self.reconciler = SegmentReconciler(
            self.wal,
            self.metadata,  # type: ignore[arg-type]
            self.storage,
            SegmentEvents(epoch, world.clock),  # type: ignore[arg-type]
            lambda _: 0,
        )
        self.leader = ConsolidationLeader(
            self.reconciler,
            self.wal,
            lambda: self.led,
            world.clock,  # type: ignore[arg-type]
            SeededEntropy(1000 * epoch + 1),
        )
        self.engine = BrokerEngine(
            self.leader,
            Stepped(world.store, self.steps),
            RemoteCopies(
                storage=self.storage,
                quota=ByteRateQuota(QuotaSettings()),
                meters=TieredMeters(Meters()),
            ),
            InlineWorkers(),
            Meters(),
            settings,
        )

    async def run_once(self) -> int | None:
        """Run one round. Returns None if the broker was killed."""
        try:
            return await self.engine.run_once()
        except Killed:
            return None
        except BaseExceptionGroup as failures:
            if failures.subgroup(Killed) is None:
                raise
            return None


__all__ = [
    "FENCE_ONLY",
    "TOPIC",
    "BatchRun",
    "ErrorCode",
    "Killed",
    "Leader",
    "ObjectNotFoundError",
    "Sent",
    "Steps",
    "World",
]
