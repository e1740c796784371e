"""The remote tier of a broker: its managers, tasks and reader, and the kind of its partitions."""

import asyncio
import logging
from collections.abc import Collection

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import INTERNAL_TOPICS, REMOTE_LOG_METADATA_TOPIC
from moldau.network.own_serving import BrokerCallHandlers
from moldau.protocol.partitions import PartitionKey
from moldau.runtime.byte_quota import ByteRateQuota
from moldau.server.context import BrokerContext
from moldau.server.coordinators.entry import CoordinatorEntry
from moldau.server.deletion_hold import DeletionHold
from moldau.server.settings import classic_log_config
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.tiered import settings as tiered_settings
from moldau.server.subsystems.tiered.deleted_topics import DeletedTopics
from moldau.server.subsystems.tiered.kind import TieredKind, Tiering, tiered_off_kind
from moldau.server.subsystems.tiered.metadata_topic import ClusterMetadataTopic, HostedMetadataTopic
from moldau.server.subsystems.tiered.tiered_calls import tool_calls
from moldau.server.subsystems.topic_creation_subsystem import TopicsSubsystem
from moldau.server.topics.partition_kinds import KindClaim
from moldau.tiered.metadata.calls import METADATA_CALLS, MetadataPartitionCalls
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.meters import TieredMeters
from moldau.tiered.reading.index_cache import RemoteIndexCache
from moldau.tiered.reading.reader import RemoteReader
from moldau.tiered.remote_log_manager import RemoteLogManager
from moldau.tiered.removal.pending_deletions import PendingDeletions
from moldau.tiered.removal.remover import RemotePartitionRemover
from moldau.tiered.tasks.context import RemoteTaskContext

logger = logging.getLogger(__name__)


class TieredSubsystem(Subsystem):
    """Remote storage for classic topics.

    Raises ``ConfigError``. The error names the key or the class that cannot be used.
    """

    def __init__(
        self, context: BrokerContext, partitions: PartitionsSubsystem, topics: TopicsSubsystem
    ) -> None:
        view, machine, registry = context.view, context.machine, context.meters.registry
        self._context = context
        self._partitions = partitions
        self._configs = context.metadata.configs
        config = self._configs.broker
        cluster_id = view.cluster_id
        self._topic = tiered_settings.metadata_topic(config)
        self.meters = TieredMeters(registry, lambda name: view.image.topics.get(name) is not None)
        self._metadata_topic = HostedMetadataTopic(machine, view)
        self._cluster_topic = ClusterMetadataTopic.of(
            context, self._topic, topics.ensure, self._metadata_topic
        )
        self.storage = tiered_settings.storage_manager(config, cluster_id, machine, registry)
        news = asyncio.Event()
        """Set when there may be remote data to remove; the remover waits for it."""
        hosted = tiered_settings.metadata_manager(
            config, cluster_id, machine, registry, self._cluster_topic, news.set, self._leader_epoch_of
        )
        self.metadata, self._hosting = hosted.manager, hosted.hosting
        self.indexes = RemoteIndexCache(
            machine,
            self.storage,
            f"{config.log_dirs[0]}/{tiered_settings.INDEX_CACHE_FOLDER}",
            tiered_settings.index_cache_bytes(config),
        )
        self.reader = RemoteReader(
            self.metadata, self.storage, self.indexes, tiered_settings.reader_settings(config), self.meters
        )
        hold_ms = tiered_settings.deletion_hold_ms(config)
        deletions = DeletionHold(context.logs.report, hold_ms, "remote segments")
        pending_deletions = PendingDeletions(self.indexes.remove)
        self.manager = RemoteLogManager(
            RemoteTaskContext(
                machine=machine,
                broker_id=view.local_id,
                metadata=self.metadata,
                storage=self.storage,
                meters=self.meters,
                copy_quota=ByteRateQuota(tiered_settings.copy_quota(config)),
                custom_metadata_max_bytes=config.integer("remote.log.metadata.custom.metadata.max.bytes"),
                on_segment_deleted=pending_deletions.deleted,
                pending_deletions=pending_deletions,
                deletions_are_held=deletions.is_on,
            ),
            tiered_settings.log_manager_settings(config),
        )
        self._deleted_topics = DeletedTopics(
            lambda: view.image,
            context.metadata.until_current,
            tiered_settings.deletion_grace_s(config),
            news.set,
        )
        self.tiering = tiering = Tiering(context.partitions, self.manager, self.reader, self._until_current)
        self.remover = RemotePartitionRemover(self.manager, self._deleted, tiering, self._hosting.owns, news)
        self.kind = TieredKind(partitions.classic, self.manager, self.remover, tiering)

    def _chunk_bytes(self, key: PartitionKey) -> int:
        """The size of a partition's inactive chunks. Each chunk is counted once."""
        partition = self._context.view.image.topics.partition(*key)
        return 0 if partition is None else sum(chunk.size_bytes for chunk in partition.chunks)

    def contribution(self) -> Contribution:
        context = self._context
        authorizer = context.authorizer
        return Contribution(
            calls=[
                tool_calls(
                    context.partitions,
                    self.metadata,
                    lambda name: self._configs.topic(name).is_tiered,
                    self._chunk_bytes,
                    authorizer,
                ),
                BrokerCallHandlers[MetadataPartitionCalls](METADATA_CALLS, self._metadata_topic, authorizer),
            ],
            # Internal topics are never tiered, even if their configs request it.
            kinds=[
                KindClaim(
                    self.kind,
                    lambda topic: topic.name not in INTERNAL_TOPICS,
                    wraps=self._partitions.classic,
                    gives_tier=True,
                )
            ],
            # The coordinators of this kind have no shard. The metadata manager reads the logs itself.
            coordinators=[
                CoordinatorEntry(
                    topic=self._topic, leaders=self._metadata_topic, on_change=self._leadership_changed
                )
            ],
            checks={"remote": self._problem},
            notices={"remote": self._hosting.notice},
        )

    def _problem(self) -> str | None:
        """The problem of the tier in one sentence. The result is None for plug-in managers, which report no
        problems."""
        return self.storage.problem or self._hosting.problem()

    async def start(self) -> None:
        await self.indexes.start()

    async def stop(self) -> None:
        """Stop reads and tasks. This method may be called in any state, and the reads and tasks can be
        started again afterwards."""
        await self.reader.close()
        await self.remover.close()
        await self.manager.close()
        await self.indexes.close()
        await self.metadata.close()
        await self._cluster_topic.close()
        await self.storage.close()

    def reconfigure(self) -> None:
        config = self._configs.broker
        self.reader.settings = tiered_settings.reader_settings(config)
        self.manager.settings = tiered_settings.log_manager_settings(config)
        self.manager.context.copy_quota.settings = tiered_settings.copy_quota(config)
        self.indexes.resize(tiered_settings.index_cache_bytes(config))

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Remove the meters of deleted topics, and let the remover look for the topics' remote data."""
        if not self._hosting.notifies_of_removals:
            # Some removals have stopped. A change of the metadata may allow them to continue. Nothing else
            # notifies the remover of this change.
            self.remover.start()
            self.remover.check_soon()
        elif delta.topics.removed:
            # This broker may have to remove the remote data of a deleted topic, even if it never had a
            # replica of this topic.
            self.remover.check_soon()
        names = {topic.name for topic in delta.topics.changed.values()}
        if delta.brokers.entries or REMOTE_LOG_METADATA_TOPIC in names:
            self._cluster_topic.leaders_changed()
        for topic in delta.topics.removed.values():
            if image.topics.get(topic.name) is None:
                self.meters.remove(topic.name)

    def _leadership_changed(self, partition: int) -> None:
        """Begin or end the leadership of a metadata partition on this broker. The leader of the partition
        completes deletions."""
        leads = self._metadata_topic.leads(partition)
        self._hosting.on_metadata_partition_leadership(partition, leads=leads)
        if leads:
            self.remover.start()

    def _leader_epoch_of(self, partition: TopicIdPartition) -> int | None:
        found = self._context.partitions.get_by_id(partition.topic_id, partition.partition)
        return None if found is None or not found.is_leader else found.leader_epoch

    async def _until_current(self) -> None:
        """Wait until this broker's partitions have applied all metadata that were committed at the time of
        the call. Partitions apply the metadata in several iterations of the event loop. Raises an exception
        if the wait fails.
        """
        await self._context.metadata.until_current()
        await self._partitions.settled()

    async def _deleted(self, partitions: Collection[TopicIdPartition]) -> list[TopicIdPartition]:
        deleted = await self._deleted_topics.among({each.topic_id for each in partitions})
        return [each for each in partitions if each.topic_id in deleted]


class TieredOff(Subsystem):
    """Refuses tiered topics and the requests of tools for the tier, on a broker without a remote tier."""

    def __init__(self, context: BrokerContext, partitions: PartitionsSubsystem) -> None:
        self._context = context
        self._classic = partitions.classic

    def contribution(self) -> Contribution:
        context, configs = self._context, self._context.metadata.configs

        def is_tiered(topic: Topic) -> bool:
            return classic_log_config(topic.name, configs.topic(topic.name)).remote_storage_enable

        calls = tool_calls(
            context.partitions,
            None,
            lambda name: configs.topic(name).is_tiered,
            lambda key: 0,
            context.authorizer,
        )
        return Contribution(
            calls=[calls],
            kinds=[KindClaim(tiered_off_kind(), is_tiered, wraps=self._classic, gives_tier=True)],
            internal_topics=[tiered_settings.metadata_topic(context.config)],
        )
