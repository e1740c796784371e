"""Fakes for tests of reading: a coordinator in memory, the objects to which it refers, and the reading part
of a broker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    AbortedRange,
    BatchCoordinate,
    CommittedBatch,
    DeletedRecords,
    FindBatchesCall,
    FoundPartition,
    ListedOffset,
    OffsetToDelete,
    TimestampToList,
)
from moldau.diskless.byte_budget import ByteBudget
from moldau.diskless.cache.cacher import Cacher, CacherSettings
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.partition.moving_coordinators import MovingCoordinators
from moldau.diskless.partition.partition import DisklessPartition
from moldau.diskless.partition.services import PartitionServices
from moldau.diskless.partition.traffic import RackTraffic, TopicTraffic
from moldau.diskless.reading.cold_reads import ColdReads, ColdReadSettings
from moldau.diskless.reading.list_offsets import WalOffsetLookup
from moldau.diskless.reading.object_reads import ObjectReads, ObjectSource
from moldau.diskless.reading.read_meters import ColdReadMeters, FetchMeters
from moldau.diskless.reading.recent_objects import RecentObjects
from moldau.diskless.writing.own_commits import OwnCommits
from moldau.diskless.writing.wal_file import FileShare
from moldau.metrics import BrokerTopicMeters, Meters
from moldau.objects import FaultyStorage, MemoryStorage
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records import Record, build_batch, iter_records, parse_header
from moldau.records.batch import iter_headers
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome, ReadOutcome, ReadRequest
from moldau.replication.waiters import Deadlines, WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog


@dataclass
class Known:
    """The state of a partition at the coordinator."""

    log_start: int = 0
    wal_start: int = 0
    next: int = 0
    batches: list[BatchCoordinate] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    open_from: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedRange] = field(default_factory=list)
    remote_position: int = -1
    """The position in the remote metadata behind which ``wal_start`` is known."""

    @property
    def last_stable(self) -> int:
        return min(self.open_from.values(), default=self.next)


AWAY = (ErrorCode.coordinator_not_available, "away")


class MemoryCoordinator:
    """Responds like a real coordinator. A test may make it unavailable, or remove batches from its state."""

    def __init__(self) -> None:
        self.partitions: dict[PartitionKey, Known] = {}
        self.is_away = False
        self.finds = 0
        self.distance_s = 0.0
        """The time until each answer arrives."""
        self._committed = asyncio.Event()

    def create(self, key: PartitionKey) -> Known:
        return self.partitions.setdefault(key, Known())

    def committed(self) -> None:
        self._committed.set()
        self._committed = asyncio.Event()

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        self.finds += 1
        found = await self._await_batches(call)
        if self.distance_s:
            await asyncio.sleep(self.distance_s)
        return found

    async def _await_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + call.max_wait_ms / 1000
        while True:
            if self.is_away:
                raise KafkaError(*AWAY)
            found = self._find(call)
            if (
                sum(batch.size_bytes for partition in found for batch in partition.batches) >= call.min_bytes
                or any(
                    partition.error is not ErrorCode.none or partition.moved_to_tier for partition in found
                )
                or loop.time() >= deadline
            ):
                return found
            committed = asyncio.ensure_future(self._committed.wait())
            await asyncio.wait([committed], timeout=deadline - loop.time())
            committed.cancel()

    def _find(self, call: FindBatchesCall) -> list[FoundPartition]:
        found = []
        budget = call.max_bytes
        first = True
        for topic_id, index, offset, max_bytes in call.partitions:
            known = self.partitions.get(PartitionKey(topic_id, index))
            if known is None:
                found.append(FoundPartition(topic_id, index, ErrorCode.unknown_topic_or_partition, "unknown"))
                continue
            offsets = (known.log_start, known.wal_start, known.next)
            if not known.log_start <= offset <= known.next:
                code = ErrorCode.offset_out_of_range
                found.append(FoundPartition(topic_id, index, code, "out", *offsets))
                continue
            if offset < known.wal_start:
                moved = FoundPartition(topic_id, index, ErrorCode.none, None, *offsets, True)
                found.append(moved._replace(remote_metadata_position=known.remote_position))
                continue
            batches = []
            room = min(max_bytes, budget)
            for coordinate in known.batches:
                if coordinate.last_offset < offset:
                    continue
                if coordinate.size_bytes > room and not first:
                    break
                first = False
                room -= coordinate.size_bytes
                budget -= coordinate.size_bytes
                batches.append(coordinate)
                if len(batches) == (call.max_batches_per_partition or 1 << 60):
                    break
            end = batches[-1].last_offset + 1 if batches else offset
            touched = [one for one in known.aborted if one.last_offset >= offset and one.first_offset < end]
            answer = FoundPartition(topic_id, index, ErrorCode.none, None, *offsets, False, batches)
            found.append(
                answer._replace(
                    last_stable_offset=known.last_stable,
                    aborted=touched,
                    remote_metadata_position=known.remote_position,
                )
            )
        return found

    async def list_offsets(self, timestamps: Sequence[TimestampToList]) -> Sequence[ListedOffset]:
        if self.is_away:
            return [ListedOffset(*asked[:2], *AWAY) for asked in timestamps]
        return [self._list(*asked) for asked in timestamps]

    def _list(self, topic_id: UUID, index: int, timestamp_ms: int) -> ListedOffset:
        known = self.partitions.get(PartitionKey(topic_id, index))
        if known is None:
            return ListedOffset(topic_id, index, ErrorCode.unknown_topic_or_partition, "unknown")
        answer = ListedOffset(
            topic_id,
            index,
            log_start_offset=known.log_start,
            wal_start_offset=known.wal_start,
            last_stable_offset=known.last_stable,
            remote_metadata_position=known.remote_position,
        )
        if timestamp_ms == -1:
            return answer._replace(offset=known.next)
        if timestamp_ms == -2:
            return answer._replace(offset=known.log_start)
        live = [batch for batch in known.batches if batch.last_offset >= known.log_start]
        if timestamp_ms == -3:
            latest = max(live, key=lambda batch: (batch.max_timestamp_ms, -batch.base_offset), default=None)
            return answer._replace(batch=latest, offset=latest.base_offset if latest else -1)
        for batch in live:
            if batch.max_timestamp_ms >= timestamp_ms >= 0 and batch.timestamp_type:
                offset = max(batch.base_offset, known.log_start)
                return answer._replace(offset=offset, timestamp_ms=batch.max_timestamp_ms)
            if batch.max_timestamp_ms >= timestamp_ms >= 0:
                return answer._replace(batch=batch, offset=batch.base_offset)
        return answer

    async def delete_records(self, offsets: Sequence[OffsetToDelete]) -> Sequence[DeletedRecords]:
        if self.is_away:
            return [DeletedRecords(*asked[:2], *AWAY) for asked in offsets]
        results = []
        for topic_id, index, offset in offsets:
            known = self.partitions[PartitionKey(topic_id, index)]
            target = known.next if offset == -1 else offset
            if not 0 <= target <= known.next:
                code = ErrorCode.offset_out_of_range
                results.append(DeletedRecords(topic_id, index, code, "above the high watermark"))
                continue
            known.log_start = max(known.log_start, target)
            known.wal_start = max(known.wal_start, known.log_start)
            results.append(DeletedRecords(topic_id, index, low_watermark=known.log_start))
        return results


class NoWriter:
    """Writes nothing, and records the calls."""

    def __init__(self) -> None:
        self.appended: list[tuple[PartitionKey, bytes, int]] = []

    def append(
        self,
        key: PartitionKey,
        records: memoryview,
        header: object,
        *,
        timeout_ms: int,
        timestamp_type: int = 0,
        request_id: int = 0,
        guard: int = 0,
    ) -> AppendAnswer:
        self.appended.append((key, bytes(records), timestamp_type))
        return AppendOutcome(ErrorCode.none, len(self.appended) - 1, -1, 0)


class ReadingBroker:
    """A broker's cacher and partitions. They use a store and a coordinator to which other brokers write."""

    def __init__(
        self,
        machine: Machine,
        *,
        settings: CacherSettings | None = None,
        cold: ColdReadSettings | None = None,
        folder: str = "/cache",
    ) -> None:
        self.machine = machine
        self.memory = MemoryStorage(machine.clock)
        self.storage = FaultyStorage(self.memory, machine.entropy)
        self.coordinator = MemoryCoordinator()
        self.folder = folder
        self.settings = settings or CacherSettings()
        self.cold_settings = cold or ColdReadSettings()
        self.objects = 0
        self.partitions: dict[PartitionKey, DisklessPartition] = {}
        self.writer = NoWriter()
        self.start()

    def start(self) -> None:
        """Start or restart the reading part of the broker. The broker's disk stays unchanged."""
        self.meters = Meters()
        self.recent = RecentObjects(1 << 24)
        self.arrivals: WaitingRoom[PartitionKey] = WaitingRoom()
        self.cacher = Cacher(
            self.machine,
            self.coordinator,
            ObjectSource(self.storage, self.recent),
            self.arrivals,
            self.meters,
            self.settings,
            broker_id=1,
        )
        self.own_commits = OwnCommits(self.recent, self.cacher, self.machine.workers, self.machine.unexpected)
        self.cold_meters = ColdReadMeters(self.meters)
        unexpected = self.machine.unexpected
        budget = ByteBudget(self.cold_settings.budget_bytes)
        reads = ObjectReads(ObjectSource(self.storage, self.recent), budget, self.cold_meters, unexpected)
        self.cold_reads = ColdReads(self.coordinator, reads, self.cold_meters, self.cold_settings, unexpected)
        self.moving = MovingCoordinators()
        self.lookup = WalOffsetLookup(self.coordinator, reads, self.machine, self.moving)
        self.fetch_meters = FetchMeters(self.meters)

    def open(
        self,
        key: PartitionKey,
        config: LogConfig | None = None,
        *,
        is_read: bool = True,
        has_log: bool = True,
    ) -> DisklessPartition:
        """Open a partition. With ``is_read``, a client has just read it. Without ``has_log``, this broker has
        no replica of the partition."""
        name = TopicPartition(f"t{key.topic_id.int >> 64}", key.partition)
        log: PartitionLog | None = None
        if has_log:
            log = PartitionLog.open(
                self.machine,
                f"{self.folder}/{name}",
                name,
                LogConfig(segment_bytes=4096, retention_ms=-1),
                topic_id=key.topic_id,
            )
        cache = PartitionCache(key, name.topic, 0, log)
        partition = DisklessPartition(
            cache,
            PartitionServices(
                writer=self.writer,
                transactions=cast(Any, self.coordinator),
                deleter=self.coordinator,
                cold_reads=self.cold_reads,
                lookup=self.lookup,
                moving=self.moving,
                opening=self.machine.opening,
                deadlines=Deadlines(),
                clock=self.machine.clock,
                meters=self.fetch_meters,
                unexpected=self.machine.unexpected,
            ),
            config or LogConfig(),
            TopicTraffic(BrokerTopicMeters(self.meters), name.topic, RackTraffic(self.meters)),
        )
        self.partitions[key] = partition
        self.cacher.add(cache)
        if is_read:
            cache.note_read(asyncio.get_running_loop().time())
        return partition

    async def stop(self) -> None:
        await self.cacher.close()
        await self.cold_reads.close()
        for partition in self.partitions.values():
            self.cacher.remove(partition.cache)
            if partition.cache.has_log and not partition.cache.log.is_offline:
                partition.cache.log.close()
        self.partitions.clear()

    async def commit(
        self,
        *rows: tuple[PartitionKey, Sequence[bytes]],
        timestamp_type: int = 0,
        timestamps: Sequence[int] = (),
        own: bool = False,
        at_once: bool = False,
        written_by: int | None = None,
    ) -> str:
        """Write an object with one batch for each row. With ``own``, this broker writes the object; otherwise
        another broker. ``written_by`` is the id of a broker, for the name of the object; this broker has the
        id 1.

        With ``at_once``, this broker's cacher gets the batches directly. In this case the call returns when
        the cacher has the batches.
        """
        self.objects += 1
        now_ms = self.machine.clock.now_ms()
        object_key = f"wal/{self.objects:06d}"
        if written_by is not None:
            object_key = new_object_key(now_ms, written_by, self.machine.entropy)
        content = bytearray()
        share, outcomes = FileShare(cast(Any, SimpleNamespace(key=object_key)), 0), []
        for key, values in sorted(rows, key=lambda row: row[0]):
            known = self.coordinator.create(key)
            times = timestamps or [1_000 + known.next + number for number in range(len(values))]
            records = [Record(number, times[number], None, value, ()) for number, value in enumerate(values)]
            batch = build_batch(records)
            header = parse_header(batch)
            end = known.next + len(values)
            known.batches.append(
                BatchCoordinate(
                    *key,
                    *(known.next, end - 1, object_key, len(content), len(batch)),
                    *(now_ms, now_ms if timestamp_type else header.max_timestamp, timestamp_type),
                )
            )
            committed = SimpleNamespace(
                key=key, byte_offset=len(content), header=header, timestamp_type=timestamp_type
            )
            share.batches.append(cast(Any, committed))
            outcomes.append(CommittedBatch(ErrorCode.none, known.next, now_ms if timestamp_type else -1))
            known.next = end
            known.values += values
            content += batch
        share.outcomes = outcomes
        await self.memory.upload(object_key, content, len(content))
        if own or at_once:
            self.recent.put(object_key, content, len(content))
        cached = asyncio.Event()
        if at_once:
            self.own_commits.committed(share, lambda _: cached.set())
        self.coordinator.committed()
        if at_once:
            await cached.wait()
        return object_key

    def rounds(self) -> int:
        """The number of rounds of the cacher that found batches to read."""
        scope = self.meters.scoped("moldau.diskless", "Read")
        return int(sum(scope.value("RoundsPerSec", path=path) or 0 for path in ("tail", "catch-up")))

    def gets(self) -> int:
        """Number of requests to the store by all kinds of readers together."""
        scope = self.meters.scoped("moldau.diskless", "Read")
        return int(
            sum(scope.value("ObjectGetsPerSec", path=path) or 0 for path in ("tail", "catch-up", "cold"))
        )

    async def until_cached(self, partition: DisklessPartition, end: int) -> None:
        """Wait until the cache reaches an offset."""
        for _ in range(2_000):
            if partition.cache.local_end_offset >= end:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the cache ends at {partition.cache.local_end_offset}, not at {end}")


def key(topic_number: int = 1, partition: int = 0) -> PartitionKey:
    return PartitionKey(UUID(int=topic_number << 64 | 1), partition)


async def read(
    partition: DisklessPartition, offset: int, max_bytes: int = 1 << 20, *, min_one_batch: bool = True
) -> ReadOutcome:
    answer = partition.read(ReadRequest(offset=offset, max_bytes=max_bytes, min_one_batch=min_one_batch))
    return answer if isinstance(answer, ReadOutcome) else await answer


def values_of(outcome: ReadOutcome, from_offset: int) -> list[tuple[int, bytes]]:
    """The offsets and values that a consumer reads in one fetch."""
    found = []
    for view in outcome.views:
        for position, header in iter_headers(view):
            assert header.partition_leader_epoch == 0
            for record in iter_records(memoryview(view)[position : position + header.size_bytes]):
                if record.offset >= from_offset:
                    found.append((record.offset, record.value or b""))
    return found


async def consume(
    partition: DisklessPartition, start: int, end: int, max_bytes: int = 1 << 20
) -> dict[int, bytes]:
    """Read up to ``end`` like a client that retries."""
    got: dict[int, bytes] = {}
    offset = start
    for _ in range(5_000):
        if offset >= end:
            return got
        outcome = await read(partition, offset, max_bytes)
        if outcome.error is ErrorCode.offset_out_of_range:
            assert offset < outcome.log_start_offset, (offset, outcome)
            offset = outcome.log_start_offset
            continue
        found = values_of(outcome, offset)
        if not found:
            await asyncio.sleep(0.02)
            continue
        assert [number for number, _ in found] == list(range(offset, offset + len(found)))
        got.update(found)
        offset += len(found)
    raise AssertionError(f"stuck at {offset} of {end}: {outcome}")
