"""The partitions of this broker. They are opened, led and closed according to the metadata. A partition is
classic unless another kind serves its topic."""

from functools import partial

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.internal_topics import STATE_TOPICS, StateRetention
from moldau.config.broker import BrokerConfig
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import Partition
from moldau.runtime.byte_quota import QuotaSettings
from moldau.server import settings
from moldau.server.context import BrokerContext
from moldau.server.extensions import Extensions
from moldau.server.handlers.records.snapshots import SnapshotHandlers
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.partitions.classic_kind import ClassicKind, ReplicaHost
from moldau.server.subsystems.partitions.directory_assignments import DirectoryAssignments
from moldau.server.subsystems.partitions.hosting import PartitionHosting
from moldau.server.subsystems.partitions.replica_gauges import ReplicaGauges
from moldau.server.subsystems.partitions.replica_moves import ReplicaMoves
from moldau.server.subsystems.partitions.replication import Replication
from moldau.server.topics.partition_kinds import KindClaim
from moldau.storage.critical_logs.inventory import check_critical_owners
from moldau.storage.critical_logs.recovery_report import RepairKind


class PartitionsSubsystem(Subsystem):
    """Hosts partitions of all kinds, and the logs of the broker."""

    def __init__(self, context: BrokerContext, extensions: Extensions) -> None:
        """``extensions`` contain the kinds of partitions, and the kinds of coordinators. This broker has a
        coordinator for each partition of a coordinator's topic that it leads."""
        self._context = context
        self._logs = context.logs
        self.kinds = extensions.kinds
        """All kinds of partitions, complete before the first subsystem starts."""
        configs = context.metadata.configs
        self.replication = Replication(context)
        """The fetches of followers and the in-sync sets, for the kinds of partitions that brokers
        replicate."""
        self.classic = ClassicKind(
            ReplicaHost.of(context),
            lambda topic: settings.classic_log_config(topic, configs.topic(topic)),
            lambda topic: configs.topic(topic).min_insync_replicas,
            listener=self.replication,
        )
        self._assignments = DirectoryAssignments(
            context.identity.node_id,
            context.channel,
            lambda: self.replication.local_epoch,
            context.machine.unexpected,
        )
        self._hosting = PartitionHosting(
            context.identity.node_id,
            context.partitions,
            extensions.kinds.of,
            extensions.coordinators,
            context.logs,
            self._is_registered,
            self._assignments,
        )
        self.moves = ReplicaMoves(
            context.logs,
            self._hosting,
            _has_snapshots,
            move_quota(context.config),
            context.machine.unexpected,
        )
        """Moves of replicas between the log folders."""
        context.logs.offline_listeners.append(self._hosting.directory_failed)
        self._watch()

    def contribution(self) -> Contribution:
        context = self._context
        snapshots = SnapshotHandlers(context.partitions.get, context.machine.workers, context.authorizer)
        return Contribution(
            handlers=snapshots.table(),
            kinds=[KindClaim(self.classic)],
            checks={"partitions": self._problem},
            notices={"replication": self.replication.notice},
        )

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition of this broker. It is for tools and checks in the node's process."""
        return self._context.partitions.get(topic, index)

    async def settled(self) -> None:
        """Wait until every partition has the state of the last image and this state is durable."""
        await self._hosting.settled()

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the image to partitions before the configurations change. A deleted topic no longer has a
        configuration, so its partitions keep their last configuration."""
        changed = [topic.name for topic in delta.topics.changed.values()]
        removed = list(delta.topics.removed.values())
        if delta.brokers.entries:
            self.replication.brokers_changed(image)
            self._assignments.wake()
        self._hosting.apply(image, changed, removed)
        names = [name for kind, name in delta.configs.entries if kind == ResourceType.TOPIC]
        if names:
            self._hosting.reconfigure(names)
        self.replication.throttle([*names, *(topic.name for topic in removed)])
        for topic in removed:
            if image.topics.get(topic.name) is None:
                self._context.meters.topics.remove(topic.name)

    def reconfigure(self) -> None:
        self._hosting.reconfigure(None)
        self._limit_moves()
        self.replication.reconfigure()
        self._logs.cleaner.settings = settings.cleaner_settings(self._context.metadata.configs.broker)

    async def serve(self) -> None:
        """Rename the folders of those partitions that this broker does not host according to the metadata.
        This is done here because the metadata are complete at this step. The renamed folders are not deleted
        at once, but kept for a long time.

        Raises ``DamagedLogError`` when a log with the cluster's own state has the id of another topic.
        """
        topics, local_id = self._context.view.image.topics, self._context.identity.node_id
        check_critical_owners(self._logs, settings.CRITICAL_TOPICS, topics.name_of)

        def is_hosted(name: TopicPartition) -> bool:
            topic = topics.get(name.topic)
            return (
                topic is not None
                and name.partition < len(topic.partitions)
                and local_id in topic.partitions[name.partition].replicas
            )

        for log in self._logs:
            name = log.topic_partition
            topic = topics.get(name.topic)
            if is_hosted(name) or (topic is not None and self.kinds.of(topic).retire(topic, name.partition)):
                continue
            self._logs.put_aside(name)
        await self._logs.put_unused_aside(is_hosted)
        await self.moves.resume_unfinished()

    async def start(self) -> None:
        self.replication.start()
        self._assignments.start()
        self.moves.start()
        self._limit_moves()

    def freeze(self) -> None:
        self._hosting.freeze()

    async def stop(self) -> None:
        # The fetchers stop last. Until the hosting has stopped, a partition can still become a follower and
        # start a fetch.
        await self.moves.stop()
        await self._assignments.stop()
        await self._hosting.stop()
        await self.replication.stop()

    def _is_registered(self, image: MetadataImage) -> bool:
        """Whether the metadata contain the registration of this process. If they contain the registration of
        an earlier process of this broker, the result is False."""
        known = image.brokers.get(self._context.identity.node_id)
        return known is not None and known.incarnation_id == self._context.incarnation_id

    def _limit_moves(self) -> None:
        config = self._context.metadata.configs.broker
        self.moves.limit(config.integer("replica.alter.log.dirs.io.max.bytes.per.second"))

    def _problem(self) -> str | None:
        count = len(self._hosting.offline)
        return f"{count} partitions are offline" if count else None

    def _watch(self) -> None:
        """Register the gauges of this broker's replicas and folders."""
        meters, logs = self._context.meters, self._logs
        ReplicaGauges(self._context, self._hosting.offline)
        meters.gauge(
            "kafka.log",
            "LogManager",
            "OfflineLogDirectoryCount",
            lambda: sum(not directory.is_online for directory in logs.directories),
        )
        scope, repairs = meters.registry.scoped("moldau.storage", "Recovery"), logs.report.count
        for name, kind, help_text in (
            ("TornTails", RepairKind.TORN_TAIL, "Logs whose last, incomplete batch was cut off."),
            ("LostRecords", RepairKind.LOST, "Repairs of logs that have lost records."),
            ("RebuiltFiles", RepairKind.REBUILT, "Files that were computed again from other files."),
        ):
            scope.gauge(name, partial(repairs, kind), help_text)
        scope.gauge(
            "StrayFolders", lambda: logs.stray_count, "Folders of partitions that are not in the metadata."
        )


def _has_snapshots(topic: str) -> bool:
    state = STATE_TOPICS.get(topic)
    return state is not None and state.retention is StateRetention.SNAPSHOTS


def move_quota(config: BrokerConfig) -> QuotaSettings:
    """Return the quota of moves between log folders. The quota has no limit at first."""
    return QuotaSettings(
        window_count=config.integer("alter.log.dirs.replication.quota.window.num"),
        window_s=config.integer("alter.log.dirs.replication.quota.window.size.seconds"),
        window_count_min=1,
    )
