"""The remote tier of a broker as its node sees it: managers, tasks, reader, the kind of its partitions."""

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from moldau.cluster.delta import MetadataDelta
from moldau.cluster.image import MetadataImage
from moldau.coordinators.log import CoordinatorLog
from moldau.replication.partition import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.machine import Machine
from moldau.server import tiered_settings
from moldau.server.classic_kind import ClassicKind
from moldau.server.cluster_view import REMOTE_LOG_METADATA_TOPIC, ClusterView
from moldau.server.deleted_topics import DeletedTopics
from moldau.server.deletion_hold import DeletionHold
from moldau.server.meters import NodeMeters
from moldau.server.registry import PartitionRegistry
from moldau.server.remote_metadata_topic import HostedMetadataTopic
from moldau.server.tiered_kind import TieredKind
from moldau.server.topic_configs import EffectiveConfigs
from moldau.server.topic_creation import InternalTopic
from moldau.tiered.index_cache import RemoteIndexCache
from moldau.tiered.log_manager import RemoteLogManager
from moldau.tiered.meters import TieredMeters
from moldau.tiered.object_storage_manager import ObjectStorageManager
from moldau.tiered.quota import ByteRateQuota
from moldau.tiered.reader import RemoteReader
from moldau.tiered.remover import RemotePartitionRemover
from moldau.tiered.segments import TopicIdPartition
from moldau.tiered.tasks.surroundings import Surroundings
from moldau.tiered.topic_metadata_manager import TopicBasedRemoteLogMetadataManager

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredSurroundings:
    """What a node lends to its remote tier."""

    machine: Machine
    view: ClusterView
    until_current: Callable[[], Awaitable[None]]
    configs: EffectiveConfigs
    partitions: PartitionRegistry
    deletions: DeletionHold
    arrivals: WaitingRoom[PartitionKey]
    meters: NodeMeters
    ensure_topic: Callable[[InternalTopic], Awaitable[None]]


class TieredNode:
    """Made before partitions are opened, on the loop; started before them, stopped after the listeners.

    Raises ``ConfigError`` naming the key or the class that cannot be used.
    """

    def __init__(self, around: TieredSurroundings) -> None:
        self._view = around.view
        self._configs = around.configs
        self._partitions = around.partitions
        config, machine, registry = around.configs.broker, around.machine, around.meters.registry
        cluster_id = around.view.cluster_id
        self.meters = TieredMeters(registry, lambda name: around.view.image.topics.get(name) is not None)
        topic = HostedMetadataTopic(
            machine,
            around.view,
            around.partitions,
            around.arrivals,
            tiered_settings.metadata_topic(config),
            around.ensure_topic,
        )
        self.storage = tiered_settings.storage_manager(config, cluster_id, machine, registry)
        self.metadata = tiered_settings.metadata_manager(config, cluster_id, machine, registry, topic)
        self.indexes = RemoteIndexCache(
            machine,
            self.storage,
            f"{config.log_dirs[0]}/{tiered_settings.INDEX_CACHE_FOLDER}",
            tiered_settings.index_cache_bytes(config),
        )
        self.reader = RemoteReader(
            self.metadata, self.storage, self.indexes, tiered_settings.reader_settings(config), self.meters
        )
        self.manager = RemoteLogManager(
            Surroundings(
                machine=machine,
                broker_id=around.view.local_id,
                metadata=self.metadata,
                storage=self.storage,
                meters=self.meters,
                copy_quota=ByteRateQuota(tiered_settings.copy_quota(config)),
                custom_metadata_max_bytes=config.integer("remote.log.metadata.custom.metadata.max.bytes"),
                on_segment_deleted=self.indexes.remove,
                deletions_are_held=around.deletions.is_on,
            ),
            tiered_settings.log_manager_settings(config),
        )
        self._deleted_topics = DeletedTopics(
            lambda: around.view.image,
            around.until_current,
            tiered_settings.deletion_grace_s(config),
            lambda: self.remover.look_soon(),
        )
        self.remover = RemotePartitionRemover(self.manager, self._deleted)
        if isinstance(self.metadata, TopicBasedRemoteLogMetadataManager):
            self.remover.owns = self.metadata.owns
            self.metadata.on_caught_up = self.remover.look_soon

    def kind(self, classic: ClassicKind) -> TieredKind:
        """The kind of classic topics where there is a remote tier."""
        return TieredKind(classic, self.manager, self.remover, self.reader, self._partitions)

    def problem(self) -> str | None:
        """What is wrong, in one sentence, for the health page; managers of somebody else's say nothing."""
        if isinstance(self.storage, ObjectStorageManager) and self.storage.problem is not None:
            return self.storage.problem
        if isinstance(self.metadata, TopicBasedRemoteLogMetadataManager):
            for index, reason in self.metadata.problems.items():
                name = REMOTE_LOG_METADATA_TOPIC if index < 0 else f"{REMOTE_LOG_METADATA_TOPIC}-{index}"
                return f"{name} cannot be followed: {reason}"
        return None

    def notice(self) -> str | None:
        """What was skipped of the metadata, for the health page."""
        if isinstance(self.metadata, TopicBasedRemoteLogMetadataManager) and self.metadata.skipped:
            return f"{self.metadata.skipped} broken records of {REMOTE_LOG_METADATA_TOPIC} were skipped"
        return None

    async def start(self) -> None:
        await self.indexes.start()

    async def stop(self) -> None:
        """End reads and tasks where they are: all of them may be begun anew."""
        await self.reader.close()
        await self.remover.close()
        await self.manager.close()
        await self.indexes.close()
        await self.metadata.close()
        await self.storage.close()

    def reconfigure(self) -> None:
        """The broker's dynamic configuration has changed."""
        config = self._configs.broker
        self.reader.settings = tiered_settings.reader_settings(config)
        self.manager.settings = tiered_settings.log_manager_settings(config)
        self.manager.around.copy_quota.settings = tiered_settings.copy_quota(config)
        self.indexes.resize(tiered_settings.index_cache_bytes(config))

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The metadata has changed: gone topics take their meters along."""
        if not isinstance(self.metadata, TopicBasedRemoteLogMetadataManager):
            # Nobody else tells when there may be removals to go on with.
            self.remover.start()
            self.remover.look_soon()
        for topic in delta.topics.removed.values():
            if image.topics.get(topic.name) is None:
                self.meters.remove(topic.name)

    async def _deleted(self, partitions: Collection[TopicIdPartition]) -> list[TopicIdPartition]:
        deleted = await self._deleted_topics.among({each.topic_id for each in partitions})
        return [each for each in partitions if each.topic_id in deleted]


class MetadataTopicLeadership:
    """Tells the metadata manager which partitions of its topic are led here: it ends deletions in them."""

    def __init__(self, node: TieredNode) -> None:
        self._node = node

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> None:
        self._tell(partition, leads=True)
        self._node.remover.start()

    def unload(self, partition: int, epoch: int | None = None) -> None:
        self._tell(partition, leads=False)

    def _tell(self, partition: int, *, leads: bool) -> None:
        manager = self._node.metadata
        if isinstance(manager, TopicBasedRemoteLogMetadataManager):
            manager.on_metadata_partition_leadership(partition, leads=leads)
