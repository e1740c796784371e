"""The diskless part of a broker: the object store, the writer, the readers and the background work.

The start has this order. First, the settings are checked. Then a request is sent to the store. If the bucket,
a credential or the address is wrong, this request fails and the start ends. Then the writer and the readers
start, and last the background work. At a stop the writer first finishes the requests for which producers
wait. Then the other parts stop, and the store is closed last.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moldau.cluster.folders.meta_properties import FILE_NAME as META_PROPERTIES
from moldau.cluster.image.topics_image import Topic
from moldau.coordinators.diskless.calls import FileToHandOver, RetentionPolicy
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes
from moldau.diskless.batch_coordinator import BatchCoordinator
from moldau.diskless.bill import watch_bill
from moldau.diskless.byte_budget import ByteBudget
from moldau.diskless.cache.cacher import Cacher
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.image_sync import ImageSync, TopicKeeper
from moldau.diskless.known_store import KnownStore
from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.partition.gateway_partition import DisklessPassage
from moldau.diskless.partition.local_guards import GuardKeeper, GuardsOfLedCoordinators
from moldau.diskless.partition.moving_coordinators import MovingCoordinators
from moldau.diskless.partition.partition import DisklessPartition
from moldau.diskless.partition.services import PartitionServices
from moldau.diskless.partition.traffic import RackTraffic, TopicTraffic
from moldau.diskless.racks import RackView
from moldau.diskless.reading.cold_reads import ColdReads
from moldau.diskless.reading.list_offsets import WalOffsetLookup
from moldau.diskless.reading.object_reads import ObjectReads, ObjectSource
from moldau.diskless.reading.rack_objects import RackObjects, RackReadSettings, SharedColdObjects
from moldau.diskless.reading.read_meters import ColdReadMeters, FetchMeters, RackReadMeters
from moldau.diskless.reading.spilled_objects import SpillSettings
from moldau.diskless.settings import DisklessSettings
from moldau.diskless.store_claim import StoreClaim
from moldau.diskless.store_opening import StoreOpening
from moldau.diskless.upkeep.coordinator_upkeep import CoordinatorUpkeep, UpkeptCoordinators
from moldau.diskless.upkeep.file_deletion import FileKeeper, FileReclaimer
from moldau.diskless.upkeep.orphans import FileWitness, OrphanScan, OrphanSettings
from moldau.diskless.upkeep.unowned_files import UnownedFileScan, UnownedFileStore
from moldau.diskless.writing.own_commits import OwnCommits
from moldau.diskless.writing.writer import DisklessWriter
from moldau.diskless.writing.writer_memory import OwnObjects, WriterMemory
from moldau.metrics import BrokerTopicMeters, Meters
from moldau.objects import HealthState, StorageHealth, open_storage
from moldau.protocol.partitions import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.repeating import Repeating
from moldau.storage.log.config import LogConfig

logger = logging.getLogger(__name__)


class LocalCoordinators(TopicKeeper, FileKeeper, UnownedFileStore, UpkeptCoordinators, GuardKeeper, Protocol):
    """The coordinators that this broker leads (``DisklessCoordinator``)."""

    @property
    def settings(self) -> CoordinatorTimes: ...


class AllCoordinators(FileWitness, Protocol):
    """Every coordinator of the cluster, on this broker or on others."""

    async def take_over(self, coordinator_id: int, file: FileToHandOver) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorsContext:
    """The dependencies of the manager's parts: the coordinators, and functions of the broker."""

    batches: BatchCoordinator
    """Commits and finds batches. It may be a plug-in."""
    local: LocalCoordinators
    everywhere: AllCoordinators
    ids: Callable[[], Sequence[int]]
    """Ids of all coordinators of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """The information of this broker's metadata that the manager needs."""

    cluster_id: str
    broker_id: int
    topics: Callable[[], Iterable[Topic]]
    policies: Callable[[int], Sequence[RetentionPolicy]]
    """Returns the retention of a coordinator's partitions."""
    until_current: Callable[[], Awaitable[None]]
    """Waits until the metadata are current; see :class:`ImageSync`."""
    deletions_are_held: Callable[[], bool]
    """Returns whether deletions are blocked. While they are blocked, no object is deleted. Topics that are
    missing in the metadata are not deleted either."""
    racks: RackView = field(default_factory=RackView)
    is_fenced: Callable[[], bool] = lambda: False
    """Whether this broker is fenced. A fenced broker does not scan for orphans."""
    has_wrong_clock: Callable[[], bool] = lambda: False
    """Whether this broker's clock differs too much from the clocks of the controllers. Such a broker does not
    scan for orphans."""
    is_saved: Callable[[int, int], bool] = lambda coordinator_id, end_offset: True
    """Returns whether a coordinator's log is saved in the store up to an offset. An object is deleted only
    after the record that made the object unneeded is saved."""
    now_ms: Callable[[], int] | None = None
    """Returns the time of the cluster for the creation times of objects; by default it is the machine's
    clock."""
    fail: Callable[[str], None] = lambda reason: None
    """Stops the broker, with a reason."""
    folder: str = "."
    """The folder with the cluster id (``meta.properties``)."""


class DisklessManager:
    """Owns the writer, the readers and the background work of diskless topics, and their connection to the
    object store.

    Create this object on the event loop on which it will run. Call :meth:`start` before partitions are
    opened.
    """

    def __init__(
        self,
        machine: Machine,
        settings: DisklessSettings,
        cluster: ClusterContext,
        coordinators: CoordinatorsContext,
        arrivals: WaitingRoom[PartitionKey],
        meters: Meters,
        topic_meters: BrokerTopicMeters,
    ) -> None:
        """Raises ``StorageError`` and ``ValueError`` for invalid settings."""
        settings.check()
        self._cluster = cluster
        self._machine = machine
        local, coordinator = coordinators.local, coordinators.batches
        self._coordinator, self._local = coordinator, local
        self.settings = settings
        self.health = StorageHealth()
        self.storage = open_storage(
            settings.storage, machine, meters, policy=settings.retries, health=self.health
        )
        self._make_opening(cluster, settings)
        moving = MovingCoordinators()
        self._make_readers_and_writer(arrivals, meters, moving)
        self._fetch_meters = FetchMeters(meters)
        watch_bill(meters, self._fetch_meters)
        self._topic_meters = topic_meters
        self.rack_traffic = RackTraffic(meters, cluster.racks.own_rack)
        self._partition_services = PartitionServices(
            writer=self.writer,
            deleter=coordinator,
            transactions=coordinator,
            guards=GuardsOfLedCoordinators(coordinator.coordinator_of, local),
            cold_reads=self.cold_reads,
            lookup=self._lookup,
            moving=moving,
            opening=machine.opening,
            deadlines=arrivals.deadlines,
            clock=machine.clock,
            meters=self._fetch_meters,
            racks=cluster.racks,
            unexpected=machine.unexpected,
        )
        self.image_sync = ImageSync(local, cluster.topics, cluster.until_current, cluster.deletions_are_held)
        self._make_deleters(coordinators, meters)
        self.upkeep = CoordinatorUpkeep(
            local, cluster.policies, meters, snapshot_records=settings.snapshot_records
        )
        self._local = local
        self._syncing = self._repeat("diskless image sync", self.image_sync.run_once, 30_000, 0)
        self._repeating = self._background()

    def _make_opening(self, cluster: ClusterContext, settings: DisklessSettings) -> None:
        url, folder = settings.storage.url, cluster.folder
        self._claim = StoreClaim(self.storage, cluster.cluster_id, url, source=f"{folder}/{META_PROPERTIES}")
        known = KnownStore(self._machine.disk, folder, cluster.cluster_id, settings.storage)
        self.opening = StoreOpening(
            self.storage, self._claim, known, url, self._machine.unexpected, cluster.fail
        )

    def _make_deleters(self, coordinators: CoordinatorsContext, meters: Meters) -> None:
        settings, clock = self.settings, self._machine.deletion_clock
        local, everywhere, ids = coordinators.local, coordinators.everywhere, coordinators.ids
        self.reclaimer = FileReclaimer(
            local,
            everywhere,
            self.storage,
            clock,
            settings.file_delete_grace_ms,
            meters,
            self._cluster.is_saved,
        )
        self.orphans = OrphanScan(
            self.storage,
            everywhere,
            ids,
            clock,
            _orphan_settings(settings, local.settings),
            meters,
        )
        self.unowned_files = UnownedFileScan(local, everywhere, ids, clock, self.orphans.settings.min_age_ms)

    def _make_readers_and_writer(
        self, arrivals: WaitingRoom[PartitionKey], meters: Meters, moving: MovingCoordinators
    ) -> None:
        settings, coordinator = self.settings, self._coordinator
        machine, cluster, unexpected = self._machine, self._cluster, self._machine.unexpected
        memory = WriterMemory(settings.writer)
        recent = memory.recent
        spill = SpillSettings(cluster.folder, settings.spilled_objects_bytes)
        self.rack_objects = RackObjects(
            self.storage,
            recent,
            cluster.racks,
            cluster.broker_id,
            RackReadMeters(meters),
            machine,
            RackReadSettings(spill=spill),
        )
        recent.on_forgotten = self.rack_objects.own_forgotten
        source = ObjectSource(self.storage, recent, self.rack_objects)
        self.cacher = Cacher(
            machine, coordinator, source, arrivals, meters, settings.cacher, broker_id=cluster.broker_id
        )
        cold_meters = ColdReadMeters(meters)
        budget = ByteBudget(settings.cold_reads.budget_bytes)
        now_ms = cluster.now_ms or machine.clock.now_ms
        shared = SharedColdObjects(self.rack_objects, cluster.racks.has_peers, now_ms)
        cold_source = source._replace(rack=shared)
        reads = ObjectReads(cold_source, budget, cold_meters, unexpected)
        self.cold_reads = ColdReads(coordinator, reads, cold_meters, settings.cold_reads, unexpected)
        self._lookup = WalOffsetLookup(coordinator, reads, machine, moving)
        commits = OwnCommits(recent, self.cacher, machine.workers, unexpected, cluster.racks.has_peers)
        origin = ObjectOrigin(cluster.broker_id, now_ms, cluster.racks.has_rack_readers)
        self.writer = DisklessWriter(
            self.storage,
            coordinator,
            machine,
            meters,
            origin,
            settings=settings.writer,
            own=OwnObjects(memory, commits),
        )

    def _background(self) -> list[Repeating]:
        settings = self.settings
        retention_ms = settings.retention_check_interval_ms
        first_ms = min(settings.retention_initial_delay_ms, retention_ms)
        repeat = self._repeat
        return [
            self._syncing,
            repeat("diskless file deletion", self._reclaim, settings.reclaim_interval_ms),
            repeat("diskless retention", self.upkeep.apply_retention, retention_ms, first_ms),
            repeat("diskless upkeep", self.upkeep.snapshot_and_expire, settings.upkeep_interval_ms),
            repeat("diskless orphan scan", self._scan_for_orphans, settings.orphan_scan_interval_ms),
        ]

    def _repeat(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        interval_ms: float,
        initial_delay_ms: float | None = None,
    ) -> Repeating:
        return Repeating(
            name,
            work,
            interval_ms,
            initial_delay_ms=initial_delay_ms,
            unexpected=self._machine.unexpected,
        )

    async def start(self, *, had_coordinators: bool = False) -> None:
        """Start. Raises ``StorageError``, with a sentence for the operator, when the store cannot be used;
        see :meth:`StoreOpening.begin`."""
        await self.opening.begin(had_coordinators=had_coordinators)
        for repeating in self._repeating:
            repeating.start()

    async def stop(self) -> None:
        """Complete the pending produce requests, then stop."""
        await self.writer.close()
        await self.opening.end()
        for repeating in reversed(self._repeating):
            await repeating.stop()
        await self.cacher.close()
        await self.cold_reads.close()
        await self.rack_objects.close()
        await self.storage.close()

    # -- partitions ---------------------------------------------------------------------------

    def open_partition(self, cache: PartitionCache, config: LogConfig) -> DisklessPartition:
        """Begin to serve a partition; ``config`` is the topic's own config."""
        partition = DisklessPartition(cache, self._partition_services, config, self._traffic(cache.topic))
        self.cacher.add(cache)
        return partition

    def open_passage(
        self,
        key: PartitionKey,
        topic: str,
        config: LogConfig,
        open_reader: Callable[[], DisklessPartition],
        close_reader: Callable[[DisklessPartition], None],
    ) -> DisklessPassage:
        """Serve a partition that has no replica on this broker."""
        services, traffic = self._partition_services, self._traffic(topic)
        return DisklessPassage(key, topic, services, config, traffic, open_reader, close_reader)

    def _traffic(self, topic: str) -> TopicTraffic:
        return TopicTraffic(self._topic_meters, topic, self.rack_traffic)

    def close_partition(self, partition: DisklessPartition) -> None:
        """Stop serving a partition. The caller closes or deletes its local log."""
        self.cacher.remove(partition.cache)
        self.cold_reads.forget(partition.key)

    def topics_changed(self, changed: Iterable[Topic], removed: Iterable[Topic]) -> None:
        """Apply changed topics of the metadata to the coordinators that this broker leads."""
        if self.image_sync.topics_changed(changed, removed):
            self._syncing.nudge()

    def coordinator_changed(self, coordinator_id: int) -> None:
        """Begin or end this broker's leadership of a coordinator."""
        self.image_sync.no_longer_leads(coordinator_id)
        self._syncing.nudge()

    def coordinator_moved(self, coordinator_id: int) -> None:
        """Send requests to the new leader of a coordinator at once."""
        self.cacher.coordinator_moved(coordinator_id)
        self.writer.coordinator_moved(coordinator_id)

    def in_hand(self) -> Mapping[str, int]:
        """Return the amounts of resources that are in use for producers and consumers; all values are zero
        when the manager is idle."""
        return {**self.writer.in_hand(), **self.cacher.in_hand(), **self.cold_reads.in_hand()}

    # -- health -------------------------------------------------------------------------------

    def notice(self) -> str | None:
        """A fault that was found, for the health page, in a sentence; ``None`` if there is no fault."""
        return self.opening.notice

    def problem(self) -> str | None:
        """The problem for the health page, in a sentence; ``None`` if there is no problem."""
        report = self.health.report
        if report.state is HealthState.WORKING:
            return None
        return f"the object store is {report.state.value}: {report.last_error}"

    # -- background ---------------------------------------------------------------------------

    async def _reclaim(self) -> None:
        if self._cluster.deletions_are_held():
            return
        done = await self.reclaimer.run_once()
        if done.failed:
            reason = f"the files of {done.failed} coordinators are not deleted yet"
            raise KafkaError(ErrorCode.kafka_storage_error, reason)

    async def _scan_for_orphans(self) -> None:
        if self._cluster.deletions_are_held():
            return
        # Perhaps this broker's metadata do not contain a new coordinator yet. The scan must ask this
        # coordinator, too, because it may know some of the objects.
        await self._cluster.until_current()
        if self._cluster.is_fenced() or self._cluster.has_wrong_clock():
            return
        await self.unowned_files.run()
        # Only one broker scans the store: the leader of the first coordinator.
        if 0 in self._local.coordinator_ids and self._local.is_active(0):
            await self._claim.ensure()
            await self.orphans.run()


def _orphan_settings(settings: DisklessSettings, of_coordinators: CoordinatorTimes) -> OrphanSettings:
    return OrphanSettings(
        of_coordinators.max_commit_age_ms,
        of_coordinators.clock_skew_ms,
        settings.file_delete_grace_ms,
        prefix=settings.writer.prefix,
    )
