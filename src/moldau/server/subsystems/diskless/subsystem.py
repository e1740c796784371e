"""Diskless topics: their coordinators, their kinds of partitions, and their shared manager."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any
from uuid import UUID

from moldau.backup.saved_ends import SavedEnds
from moldau.cluster.decisions.kinds.diskless import DISKLESS, DISKLESS_FEATURE
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.cluster.image.partition import NO_OWNER
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC
from moldau.coordinators.diskless.calls import RetentionPolicy
from moldau.coordinators.diskless.hosted import DisklessCoordinatorKind
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.diskless.batch_coordinator import BatchCoordinator, load_batch_coordinator
from moldau.diskless.manager import ClusterContext, CoordinatorsContext, DisklessManager
from moldau.diskless.partition.partition import DisklessPartition
from moldau.diskless.racks import RackView
from moldau.diskless.routing import RoutingBatchCoordinator
from moldau.objects import StorageError
from moldau.protocol.api import ApiKey
from moldau.protocol.partitions import PartitionKey
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server.context import BrokerContext
from moldau.server.coordinators.entry import entry_of
from moldau.server.deletion_hold import DeletionHold
from moldau.server.settings import log_config, saves_logs
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.diskless import settings as diskless_settings
from moldau.server.subsystems.diskless.back_pressure import BackPressure
from moldau.server.subsystems.diskless.coordinator_calls import ClusterCoordinators
from moldau.server.subsystems.diskless.kind import DisklessKind, diskless_off_kind
from moldau.server.subsystems.diskless.metadata_kind import MetadataReplicas, metadata_kind_of
from moldau.server.subsystems.diskless.rack_peers import RackPeerCalls, rack_handlers
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.topic_creation_subsystem import TopicsSubsystem
from moldau.server.topics.partition_kinds import KindClaim

logger = logging.getLogger(__name__)


class DisklessSubsystem(Subsystem):
    """Diskless topics on a broker with an object store.

    Raises ``KafkaError(kafka_storage_error)``. The error names the key or the store that cannot be used.
    """

    def __init__(
        self, context: BrokerContext, partitions: PartitionsSubsystem, topics: TopicsSubsystem
    ) -> None:
        machine, metadata, meters = context.machine, context.metadata, context.meters
        self._machine = machine
        self._topics = topics
        self._view = context.view
        self._configs = metadata.configs
        self._logs = context.logs
        self._authorizer = context.authorizer
        self._partitions = context.partitions
        config = self._configs.broker
        self._metadata_topic = diskless_settings.metadata_topic(config)
        self._loads: set[asyncio.Task[None]] = set()
        self._waits_for_level = False
        self._is_count_checked = False
        """Whether the configured number of coordinators was compared with their actual number."""
        times = diskless_settings.coordinator_times(config)
        self.coordinators = DisklessCoordinator(
            machine, times, opener=machine.open_sqlite, cluster_now_ms=metadata.clock.controller_now_ms
        )
        self._has_foreign_coordinator = diskless_settings.has_foreign_coordinator(config)
        network = (context.view, context.config.inter_broker_listener_name, machine.entropy)
        self._cluster = ClusterCoordinators(self.coordinators, *network, meters.registry)
        self._rack_peers = RackPeerCalls(*network)
        self.coordinator = self._new_batch_coordinator(machine)
        self.saved_ends = SavedEnds() if saves_logs(config) else None
        """The offsets up to which the coordinators' logs are saved; ``None`` if they are not saved. Objects
        are deleted only when the logs are saved up to the records that allow the deletion."""
        deletions = DeletionHold(context.logs.report, diskless_settings.deletion_hold_ms(config), "objects")
        try:
            self.manager = DisklessManager(
                machine,
                diskless_settings.manager_settings(config),
                self._cluster_context(context, deletions),
                CoordinatorsContext(
                    batches=self.coordinator,
                    local=self.coordinators,
                    everywhere=self._cluster,
                    ids=self._witnesses,
                ),
                context.arrivals,
                meters.registry,
                meters.topics,
            )
        except (StorageError, ValueError) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        self.pressure = BackPressure(self.coordinators, machine.clock, meters.registry, self.manager.writer)
        self._make_kinds(context, partitions)

    def _cluster_context(self, context: BrokerContext, deletions: DeletionHold) -> ClusterContext:
        metadata = context.metadata
        return ClusterContext(
            cluster_id=context.identity.cluster_id,
            broker_id=context.identity.node_id,
            topics=lambda: list(filter(DISKLESS.is_kind_of, self._view.image.topics)),
            policies=self._policies,
            until_current=metadata.until_current,
            deletions_are_held=deletions.is_on,
            is_fenced=self._is_fenced,
            has_wrong_clock=lambda: metadata.clock.is_large,
            now_ms=metadata.clock.controller_now_ms,
            is_saved=self._is_saved,
            racks=self._rack_view(),
            fail=context.fail,
            folder=self._configs.broker.metadata_log_dir,
        )

    def _make_kinds(self, context: BrokerContext, partitions: PartitionsSubsystem) -> None:
        context.meters.registry.scoped("moldau.diskless", "Clock").gauge(
            "DifferenceMs",
            lambda: context.metadata.clock.difference_ms,
            "Milliseconds by which this broker's clock is ahead of the active controller's.",
        )
        self.kind = DisklessKind(
            context.logs,
            context.identity.node_id,
            self.manager,
            lambda topic: log_config(self._configs.topic(topic)),
            partitions.kinds.reader_hooks,
        )
        self.metadata_kind = metadata_kind_of(
            context,
            lambda: self._configs.topic(DISKLESS_METADATA_TOPIC).min_insync_replicas,
            MetadataReplicas(partitions.replication, self.coordinators),
        )

    def _new_batch_coordinator(self, machine: Machine) -> BatchCoordinator:
        """Make the batch coordinator that ``diskless.batch.coordinator.class.name`` names, or the built-in
        batch coordinator.

        Raises ``KafkaError(invalid_config)``. The error names the key.
        """
        config = self._configs.broker
        class_name = config.optional_text("diskless.batch.coordinator.class.name")
        if class_name is not None:
            return load_batch_coordinator(class_name, config.static, machine)
        logs = self._logs
        return RoutingBatchCoordinator(self._owner_of, lambda _: self._cluster, lambda: logs.broker_epoch)

    def contribution(self) -> Contribution:
        coordinators = DisklessCoordinatorKind(
            self._metadata_topic,
            self.coordinators,
            self._authorizer,
            lambda topic_id: self._view.image.topic_name(topic_id),
            self._coordinator_changed,
            self._view,
        )
        return Contribution(
            calls=[rack_handlers(self.manager.rack_objects, self._authorizer)],
            kinds=[
                KindClaim(self.kind, DISKLESS.is_kind_of, self.kind.passages.find),
                KindClaim(self.metadata_kind, lambda topic: topic.name == DISKLESS_METADATA_TOPIC),
            ],
            coordinators=[entry_of(coordinators)],
            throttles={ApiKey.PRODUCE: self.pressure.throttle_s},
            checks={"coordinators": self.coordinators.problem, "objects": self.manager.problem},
            notices={"objects": self.manager.notice},
            in_hand=self._in_hand,
        )

    def _in_hand(self) -> dict[str, int]:
        waiting = sum(one.waiting_bytes for one in self._readers())
        return {"bytes for unknown partitions": waiting, **self.manager.in_hand()}

    def _readers(self) -> Iterator[DisklessPartition]:
        """Return the diskless partitions that have a replica on this broker."""
        return (one for one in self._partitions if isinstance(one, DisklessPartition))

    def reconfigure(self) -> None:
        self.manager.writer.configure(diskless_settings.writer_settings(self._configs.broker))
        self.kind.passages.reconfigure()

    async def serve(self) -> None:
        """Create the coordinators' topic.

        The creation waits until the cluster's feature level allows diskless topics.
        """
        self._waits_for_level = not DISKLESS.level(self._view.image)
        if self._waits_for_level:
            logger.info("diskless topics are enabled, but %s is 0", DISKLESS_FEATURE)
            return
        await self._topics.ensure_soon(self._metadata_topic)

    def _check_partition_count(self) -> None:
        """When the topic of the coordinators exists, warn once if the configured number of coordinators
        differs from their actual number."""
        if self._is_count_checked:
            return
        topic = self._view.image.topics.get(DISKLESS_METADATA_TOPIC)
        if topic is None:
            return
        self._is_count_checked = True
        if len(topic.partitions) != self._metadata_topic.partition_count:
            logger.warning(
                "diskless.metadata.topic.num.partitions is %d, but %s has %d partitions, and these count",
                self._metadata_topic.partition_count,
                DISKLESS_METADATA_TOPIC,
                len(topic.partitions),
            )

    async def start(self) -> None:
        had_coordinators = any(log.topic_partition.topic == DISKLESS_METADATA_TOPIC for log in self._logs)
        try:
            await self.manager.start(had_coordinators=had_coordinators)
        except StorageError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    async def stop(self) -> None:
        """Complete the pending produce requests, then stop the coordinators, which save their state.

        If the coordinator of a partition has not created the partition yet, pending batches for the partition
        cannot be committed and are refused.
        """
        for one in self._readers():
            one.refuse_waiting()
        self.kind.passages.close_all()
        await self.manager.stop()
        loads = list(self._loads)
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self.coordinators.close()
        await self._cluster.close()
        await self._rack_peers.close()

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply newer metadata to the coordinators that this broker leads."""
        if self._waits_for_level and DISKLESS.level(image):
            self._waits_for_level = False
            self._run(self._topics.ensure_soon(self._metadata_topic))
        current = (image.topics.get(topic.name) for topic in delta.topics.changed.values())
        changed = [topic for topic in current if topic is not None]
        self.manager.topics_changed(changed, delta.topics.removed.values())
        self.kind.passages.removed(delta.topics.removed.values())
        if any(kind == ResourceType.TOPIC for kind, _ in delta.configs.entries):
            self.kind.passages.reconfigure()
        if delta.brokers.entries or any(topic.name == DISKLESS_METADATA_TOPIC for topic in changed):
            for coordinator_id in self._cluster.on_image(image):
                self.manager.coordinator_moved(coordinator_id)
        self._check_partition_count()

    def _coordinator_changed(self, coordinator_id: int) -> None:
        """Begin or end the leadership of a coordinator on this broker."""
        self.manager.coordinator_changed(coordinator_id)
        if coordinator_id in self.coordinators.coordinator_ids:
            self._run(self._when_loaded(coordinator_id))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _when_loaded(self, coordinator_id: int) -> None:
        await self.coordinators.until_loaded(coordinator_id)
        self.manager.coordinator_changed(coordinator_id)

    def _rack_view(self) -> RackView:
        racks = self._view.racks
        return RackView(
            own_rack=lambda: racks.own_rack,
            has_peers=lambda: racks.has_peers,
            has_rack_readers=lambda: racks.has_rack_readers,
            nearest_broker=self._nearest_broker,
            reader_of=racks.reader_of,
            peers=self._rack_peers,
        )

    def _nearest_broker(self, key: PartitionKey, client_rack: str) -> int:
        topic = self._view.image.topics.get_by_id(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            return -1
        return self._view.racks.nearest_broker(topic, key.partition, client_rack)

    def _is_fenced(self) -> bool:
        own = self._view.image.brokers.get(self._view.local_id)
        return own is None or own.fenced

    def _is_saved(self, coordinator_id: int, end_offset: int) -> bool:
        topic = self._view.image.topics.get(DISKLESS_METADATA_TOPIC)
        if self.saved_ends is None:
            return True
        return topic is not None and self.saved_ends.covers(
            PartitionKey(topic.topic_id, coordinator_id), end_offset
        )

    def _owner_of(self, topic_id: UUID, index: int) -> int:
        partition = self._view.image.topics.partition(topic_id, index)
        if partition is None or partition.owner == NO_OWNER:
            # The error for requests by topic name. The topic may be deleted while its records are written.
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "there is no such diskless partition")
        return partition.owner

    def _witnesses(self) -> Sequence[int]:
        """Return the coordinators that know which objects are in use. The result is empty if a plug-in is the
        batch coordinator."""
        if self._has_foreign_coordinator:
            return ()
        topic = self._view.image.topics.get(DISKLESS_METADATA_TOPIC)
        return range(len(topic.partitions)) if topic is not None else ()

    def _policies(self, coordinator_id: int) -> Sequence[RetentionPolicy]:
        policies: list[RetentionPolicy] = []
        for topic in self._view.image.topics:
            if DISKLESS.is_kind_of(topic):
                policies += self._policies_of(topic, coordinator_id)
        return policies

    def _policies_of(self, topic: Topic, coordinator_id: int) -> list[RetentionPolicy]:
        config = self._configs.topic(topic.name)
        ms, size_bytes = (config.retention_ms, config.retention_bytes) if config.deletes else (-1, -1)
        return [
            RetentionPolicy(topic.topic_id, index, ms, size_bytes)
            for index, partition in enumerate(topic.partitions)
            if partition.owner == coordinator_id
        ]


class DisklessOff(Subsystem):
    """Refuses diskless topics on a broker that is not configured for them."""

    def contribution(self) -> Contribution:
        kind = diskless_off_kind()
        return Contribution(
            kinds=[
                KindClaim(kind, DISKLESS.is_kind_of),
                KindClaim(kind, lambda topic: topic.name == DISKLESS_METADATA_TOPIC),
            ]
        )
