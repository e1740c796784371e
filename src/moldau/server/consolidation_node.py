"""Diskless topics on a broker with remote storage: they leave the WAL, are read on below it, and go whole."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from moldau.diskless.partition import DisklessPartition
from moldau.diskless.repeating import Repeating
from moldau.metrics import Meters
from moldau.replication.partition import StopReason
from moldau.runtime.machine import Machine
from moldau.server.cluster_view import REMOTE_LOG_METADATA_TOPIC, ClusterView
from moldau.server.diskless_node import DisklessNode
from moldau.server.diskless_remote_part import DisklessRemotePart
from moldau.server.diskless_settings import consolidation_engine, consolidation_rules
from moldau.server.tiered_node import TieredNode
from moldau.server.topic_configs import EffectiveConfigs
from moldau.storage.log_config import LogConfig
from moldau.tiered.consolidation.engine import BrokerEngine
from moldau.tiered.consolidation.leader import ConsolidationLeader
from moldau.tiered.consolidation.orphans import SegmentOrphanScan
from moldau.tiered.consolidation.ports import LedPartition
from moldau.tiered.consolidation.retention import Retention
from moldau.tiered.consolidation.standing import SegmentKeeper
from moldau.tiered.metadata_topic import metadata_partition_of
from moldau.tiered.object_storage_manager import ObjectStorageManager
from moldau.tiered.segments import TopicIdPartition

_MEASURING_INTERVAL_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationSurroundings:
    """What a node lends to consolidation."""

    machine: Machine
    view: ClusterView
    configs: EffectiveConfigs
    meters: Meters
    diskless: DisklessNode
    tiered: TieredNode


class ConsolidationNode:
    """Follows the diskless partitions of this broker; started after both halves, stopped before them.

    Implements the hooks of :class:`moldau.server.diskless_kind.DisklessKind`.
    """

    def __init__(self, around: ConsolidationSurroundings) -> None:
        self._around = around
        self._tiered = around.tiered
        self._led: dict[TopicIdPartition, LedPartition] = {}
        self._held: dict[TopicIdPartition, DisklessPartition] = {}
        runtime, machine = around.diskless.runtime, around.machine
        broker_id = around.view.local_id
        self.keeper = SegmentKeeper(
            around.diskless.coordinator,
            around.tiered.metadata,
            around.tiered.storage,
            machine.deletion_clock,
            broker_id,
            self._metadata_partition,
            on_deleted=around.tiered.indexes.remove,
            meters=around.tiered.meters,
        )
        self.leader = ConsolidationLeader(
            self.keeper,
            around.diskless.coordinator,
            lambda: self._led,
            machine.clock,
            machine.entropy,
            broker_id,
            unexpected=machine.unexpected,
            custom_metadata_max_bytes=around.tiered.manager.around.custom_metadata_max_bytes,
        )
        self.engine = BrokerEngine(
            self.leader,
            runtime.storage,
            around.tiered.storage,
            machine.workers,
            around.meters,
            consolidation_engine(around.configs.broker),
            tiered_meters=around.tiered.meters,
            quota=around.tiered.manager.around.copy_quota,
            is_enabled=lambda: around.configs.broker.flag("diskless.consolidation.enable"),
            unexpected=machine.unexpected,
        )
        interval_ms = around.configs.broker.integer("diskless.consolidation.interval.ms")
        self._repeating = self._repeat("consolidation", self._run_once, interval_ms)
        self._backlog = around.diskless.backlog
        self._bound_backlog()
        self._scanning = self._orphan_scan()
        self._measuring = self._repeat("WAL backlog", self._measure, _MEASURING_INTERVAL_MS)

    def start(self) -> None:
        self._repeating.start()
        self._measuring.start()
        if self._scanning is not None:
            self._scanning.start()

    async def stop(self) -> None:
        """End where it is: all of it may be begun anew."""
        if self._scanning is not None:
            await self._scanning.stop()
        await self._measuring.stop()
        await self._repeating.stop()

    async def _run_once(self) -> None:
        await self.engine.run_once()

    def _orphan_scan(self) -> Repeating | None:
        """None where the storage manager is another than the built-in one: it may not be listed."""
        around, storage = self._around, self._tiered.storage
        if not isinstance(storage, ObjectStorageManager):
            return None
        config = around.configs.broker
        scan = SegmentOrphanScan(
            self.keeper,
            storage,
            lambda: self._led,
            around.machine.deletion_clock,
            around.machine.entropy,
            around.meters,
            broker_id=around.view.local_id,
            grace_ms=config.integer("diskless.coordinator.orphan.scan.grace.period.ms"),
        )

        async def run() -> None:
            await scan.run()

        interval_ms = config.integer("diskless.coordinator.orphan.scan.interval.ms")
        return self._repeat("scan for segments' orphans", run, interval_ms)

    def _repeat(self, name: str, work: Callable[[], Awaitable[None]], interval_ms: float) -> Repeating:
        return Repeating(name, work, interval_ms, unexpected=self._around.machine.unexpected)

    async def _measure(self) -> None:
        self._backlog.refresh()

    def _bound_backlog(self) -> None:
        self._backlog.max_bytes = self._around.configs.broker.integer("diskless.wal.backlog.max.bytes")

    def nudge(self) -> None:
        """Do now what would be done at the end of the interval."""
        self._repeating.nudge()

    def reconfigure(self) -> None:
        """The broker's dynamic configuration has changed."""
        self._bound_backlog()
        self.engine.settings = consolidation_engine(self._around.configs.broker)
        for partition in list(self._held.values()):
            self.reconfigured(partition)

    # -- partitions ---------------------------------------------------------------------------

    def opened(self, partition: DisklessPartition) -> None:
        """Records below the WAL can be read on this broker."""
        name = _identity(partition)
        self._held[name] = partition
        partition.remote = DisklessRemotePart(partition.cache, self._tiered.reader)

    def role_taken(self, partition: DisklessPartition) -> None:
        """This broker leads the partition or follows it, as the metadata say."""
        name = _identity(partition)
        metadata = self._tiered.metadata
        if partition.is_leader:
            self._led[name] = self._as_led(name, partition)
            metadata.on_partition_leadership_changes([name], [])
        else:
            self._led.pop(name, None)
            self._tiered.meters.forget(name.topic, name.partition)
            metadata.on_partition_leadership_changes([], [name])

    def reconfigured(self, partition: DisklessPartition) -> None:
        """The topic's configuration has changed."""
        name = _identity(partition)
        if name in self._led:
            self._led[name] = self._as_led(name, partition)

    def closed(self, partition: DisklessPartition, reason: StopReason) -> None:
        """This broker serves the partition no more."""
        name = _identity(partition)
        self._held.pop(name, None)
        partition.remote = None
        was_led = self._led.pop(name, None) is not None
        self._tiered.meters.forget(name.topic, name.partition)
        metadata = self._tiered.metadata
        has_segments = not metadata.is_ready(name) or metadata.list_remote_log_segments(name)
        if reason is StopReason.TOPIC_DELETED and was_led and has_segments:
            self._tiered.remover.delete_partition(name)
        else:
            metadata.on_stop_partitions([name])

    def _as_led(self, name: TopicIdPartition, partition: DisklessPartition) -> LedPartition:
        config: LogConfig = partition.config
        retention = Retention()
        if config.cleanup_delete:
            retention = Retention(config.retention_ms, config.retention_bytes)
        return LedPartition(
            name,
            partition.leader_epoch,
            consolidation_rules(self._around.configs.broker, config),
            retention,
            config.index_interval_bytes,
            may_copy=not config.remote_log_copy_disable,
        )

    def _metadata_partition(self, partition: TopicIdPartition) -> int:
        topic = self._around.view.image.topics.get(REMOTE_LOG_METADATA_TOPIC)
        return metadata_partition_of(partition, len(topic.partitions) if topic is not None else 1)


def _identity(partition: DisklessPartition) -> TopicIdPartition:
    return TopicIdPartition(partition.key.topic_id, partition.topic, partition.key.partition)
