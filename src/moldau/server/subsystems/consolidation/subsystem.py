"""Diskless topics on a broker with remote storage. Records move from the WAL to remote segments. Consumers
can still read them there. When a topic is deleted, its remote segments are deleted, too."""

from collections.abc import Awaitable, Callable

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.diskless.partition.partition import DisklessPartition
from moldau.network.own_serving import BrokerCallHandlers, CallHandlers
from moldau.replication.partition_interface import StopReason
from moldau.runtime.repeating import Repeating
from moldau.server.context import BrokerContext
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.consolidation.remote_part import DisklessRemotePart
from moldau.server.subsystems.diskless.kind import ConsolidatedKind
from moldau.server.subsystems.diskless.settings import consolidation_engine, consolidation_rules
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.server.subsystems.tiered.settings import remote_place
from moldau.server.subsystems.tiered.subsystem import TieredSubsystem
from moldau.server.topics.partition_kinds import KindClaim
from moldau.storage.log.config import LogConfig
from moldau.tiered.consolidation.calls import CALLS, ConsolidationCalls, LocalConsolidation
from moldau.tiered.consolidation.engine import BrokerEngine, RemoteCopies
from moldau.tiered.consolidation.leader import ConsolidationLeader
from moldau.tiered.consolidation.orphans import SegmentOrphanScan
from moldau.tiered.consolidation.ports import LedPartition
from moldau.tiered.consolidation.reconciler import SegmentEvents, SegmentReconciler
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.metadata.topic import metadata_partition_of
from moldau.tiered.removal.remote_retention import Retention

_MEASURING_INTERVAL_MS = 1_000


class ConsolidationSubsystem(Subsystem):
    """Starts and stops the consolidation of this broker's diskless partitions.

    Implements the hooks of :class:`moldau.server.subsystems.diskless.kind.ConsolidatedKind`.
    """

    def __init__(self, context: BrokerContext, diskless: DisklessSubsystem, tiered: TieredSubsystem) -> None:
        self._context = context
        self._configs = context.metadata.configs
        self._diskless = diskless
        self._tiered = tiered
        self._led: dict[TopicIdPartition, LedPartition] = {}
        """The diskless partitions that this broker leads and consolidates."""
        config, machine, meters = self._configs.broker, context.machine, context.meters.registry
        self.reconciler = SegmentReconciler(
            diskless.coordinator,
            tiered.metadata,
            tiered.storage,
            SegmentEvents(context.identity.node_id, machine.deletion_clock),
            self._metadata_partition,
            pending_deletions=tiered.manager.context.pending_deletions,
            meters=tiered.meters,
        )
        self.leader = ConsolidationLeader(
            self.reconciler,
            diskless.coordinator,
            lambda: self._led,
            machine.clock,
            machine.entropy,
            unexpected=machine.unexpected,
            custom_metadata_max_bytes=tiered.manager.context.custom_metadata_max_bytes,
        )
        self.engine = BrokerEngine(
            self.leader,
            diskless.manager.storage,
            RemoteCopies(
                storage=tiered.storage,
                quota=tiered.manager.context.copy_quota,
                meters=tiered.meters,
                unexpected=machine.unexpected,
            ),
            machine.workers,
            meters,
            consolidation_engine(config),
            lambda: self._configs.broker.flag("diskless.consolidation.enable"),
        )
        interval_ms = config.integer("diskless.consolidation.interval.ms")
        self._repeating = self._repeat("consolidation", self._run_once, interval_ms)
        self._backlog = diskless.pressure.backlog
        self._bound_backlog()
        self._scanning = self._orphan_scan()
        self._measuring = self._repeat("WAL backlog", self._measure, _MEASURING_INTERVAL_MS)

    def contribution(self) -> Contribution:
        kind = ConsolidatedKind(self._diskless.kind, self)
        return Contribution(
            calls=[_calls(self._context, self.leader)],
            kinds=[KindClaim(kind, wraps=self._diskless.kind, reader_hooks=self)],
        )

    async def start(self) -> None:
        self._repeating.start()
        self._measuring.start()
        if self._scanning is not None:
            self._scanning.start()

    async def stop(self) -> None:
        """Stop the work. This method may be called in any state, and the work can be started again
        afterwards."""
        if self._scanning is not None:
            await self._scanning.stop()
        await self._measuring.stop()
        await self._repeating.stop()

    async def _run_once(self) -> None:
        await self.engine.run_once()

    def _orphan_scan(self) -> Repeating | None:
        """Return the scan for orphans. The result is None when the storage manager is a plug-in, because some
        plug-ins cannot list their objects."""
        context, storage = self._context, self._tiered.storage.listable
        if storage is None:
            return None
        config = self._configs.broker
        scan = SegmentOrphanScan(
            self.reconciler,
            storage,
            lambda: self._led,
            context.machine.entropy,
            context.meters.registry,
            grace_ms=config.integer("diskless.coordinator.orphan.scan.grace.period.ms"),
        )

        async def run() -> None:
            await scan.run()

        interval_ms = config.integer("diskless.coordinator.orphan.scan.interval.ms")
        return self._repeat("scan for segments' orphans", run, interval_ms)

    def _repeat(self, name: str, work: Callable[[], Awaitable[None]], interval_ms: float) -> Repeating:
        return Repeating(name, work, interval_ms, unexpected=self._context.machine.unexpected)

    async def _measure(self) -> None:
        self._backlog.refresh()

    def _bound_backlog(self) -> None:
        self._backlog.max_bytes = self._configs.broker.integer("diskless.wal.backlog.max.bytes")

    def nudge(self) -> None:
        """Do the next regular work immediately, without waiting for the end of the interval."""
        self._repeating.nudge()

    def reconfigure(self) -> None:
        self._bound_backlog()
        self.engine.settings = consolidation_engine(self._configs.broker)
        for name in list(self._led):
            partition = self._context.partitions.get_by_id(name.topic_id, name.partition)
            if isinstance(partition, DisklessPartition):
                self.reconfigured(partition)

    # -- partitions ---------------------------------------------------------------------------

    def opened(self, partition: DisklessPartition) -> None:
        """Called when a replica was opened. From now on, its reads can return records that are only in the
        remote tier."""
        partition.begin_remote(self._remote_part(partition))

    def reader_opened(self, partition: DisklessPartition) -> None:
        """Called when a partition without a replica on this broker was opened for reads. From now on, its
        reads can return records that are only in the remote tier."""
        partition.begin_remote(self._remote_part(partition))
        self._tiered.metadata.on_partition_leadership_changes([], [_identity(partition)])

    def reader_closed(self, partition: DisklessPartition) -> None:
        """Stop serving reads of a partition on this broker. A replica may be opened afterwards."""
        partition.end_remote()
        self._tiered.metadata.on_stop_partitions([_identity(partition)])

    def role_applied(self, partition: DisklessPartition) -> None:
        """Notify the manager of the remote metadata that this broker leads or follows the partition."""
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
        """Apply a change of the topic's configuration."""
        name = _identity(partition)
        if name in self._led:
            self._led[name] = self._as_led(name, partition)

    def closed(self, partition: DisklessPartition, reason: StopReason) -> None:
        """Stop all work for a partition that this broker no longer serves."""
        name = _identity(partition)
        partition.end_remote()
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
            consolidation_rules(self._configs.broker, config),
            retention,
            config.index_interval_bytes,
            partition.cache.generations,
            may_copy=not config.remote_log_copy_disable,
        )

    def _remote_part(self, partition: DisklessPartition) -> DisklessRemotePart:
        return DisklessRemotePart(partition.cache, self._tiered.reader, self._metadata_partition)

    def _metadata_partition(self, partition: TopicIdPartition) -> int:
        topic = self._context.view.image.topics.get(REMOTE_LOG_METADATA_TOPIC)
        return metadata_partition_of(partition, len(topic.partitions) if topic is not None else 1)


class ConsolidationOff(Subsystem):
    """Refuses the requests of consolidation engines. It is used on a broker whose diskless topics have no
    remote tier."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def contribution(self) -> Contribution:
        return Contribution(calls=[_calls(self._context, None)])


def _calls(context: BrokerContext, leader: ConsolidationLeader | None) -> CallHandlers:
    service = LocalConsolidation(leader, remote_place(context.config))
    return BrokerCallHandlers[ConsolidationCalls](CALLS, service, context.authorizer)


def _identity(partition: DisklessPartition) -> TopicIdPartition:
    return TopicIdPartition(partition.key.topic_id, partition.topic, partition.key.partition)
