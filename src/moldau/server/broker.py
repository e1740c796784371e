"""The broker's half of a node: partitions, coordinators, handlers, listeners, registration."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from uuid import UUID

from moldau.cluster.broker_lifecycle import BrokerIdentity, BrokerLifecycle
from moldau.cluster.controller_channel import ControllerChannel
from moldau.cluster.delta import MetadataDelta
from moldau.cluster.image import MetadataImage, ResourceType
from moldau.cluster.registrations import Endpoint, SupportedFeature
from moldau.cluster.topics_image import Topic
from moldau.config.broker import BrokerConfig
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.groups.service import GroupService
from moldau.diskless.partition import DisklessPartition
from moldau.network.server import SocketServer
from moldau.protocol.api import Scope
from moldau.replication.partition import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.machine import Machine
from moldau.server import diskless_settings, settings, tiered_settings
from moldau.server.api import BrokerApi, BrokerParts
from moldau.server.authorization import AllowEveryone
from moldau.server.classic_kind import ClassicKind
from moldau.server.cluster_view import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    ClusterView,
)
from moldau.server.consolidation_node import ConsolidationNode, ConsolidationSurroundings
from moldau.server.deletion_hold import DeletionHold
from moldau.server.diskless_kind import DisklessOffKind
from moldau.server.diskless_node import DisklessNode, DisklessSurroundings
from moldau.server.dispatch import Dispatcher
from moldau.server.hosting import PartitionHosting, PartitionKind
from moldau.server.identity import Address, Identity
from moldau.server.internal_topics import CoordinatorLeadership, CoordinatorService
from moldau.server.metadata_node import MetadataNode
from moldau.server.meters import NodeMeters
from moldau.server.monitoring import (
    HealthCheck,
    Monitoring,
    health_checks,
    replicas_check,
    watch_cluster,
    watch_groups,
    watch_partitions,
)
from moldau.server.producer_ids import ProducerIds
from moldau.server.registry import PartitionRegistry
from moldau.server.tiered_kind import TieredOffKind
from moldau.server.tiered_node import MetadataTopicLeadership, TieredNode, TieredSurroundings
from moldau.server.topic_directory import ImageTopicDirectory
from moldau.storage.log_manager import LogManager
from moldau.storage.recovery_report import RepairKind

logger = logging.getLogger(__name__)

CONTROLLED_SHUTDOWN_TIMEOUT_MS = 2_000
NETWORK_GRACE_S = 3.0
SECURITY_PROTOCOL_PLAINTEXT = 0


class Broker:
    """The broker's half of a node."""

    def __init__(
        self,
        machine: Machine,
        config: BrokerConfig,
        identity: Identity,
        metadata: MetadataNode,
        channel: ControllerChannel,
        logs: LogManager,
    ) -> None:
        """``channel`` leads to the active controller, wherever it is."""
        self._machine = machine
        self._config = config
        self._identity = identity
        self._metadata = metadata
        self._channel = channel
        self._meters = NodeMeters()
        self.monitoring_port: int | None = None
        publisher = metadata.publisher
        self._view = ClusterView(
            identity.cluster_id, identity.node_id, lambda: publisher.image, lambda: publisher.leader_id
        )
        self._arrivals: WaitingRoom[PartitionKey] = WaitingRoom()
        self.partitions = PartitionRegistry(lambda: publisher.image)
        self._groups = GroupService(
            machine.clock,
            machine.entropy,
            settings.group_settings(config),
            ImageTopicDirectory(lambda: publisher.image),
            machine.unexpected,
        )
        self._producer_ids = ProducerIds(channel, identity.node_id)
        self._logs = logs
        self._deletions = DeletionHold(
            logs.report, config.integer("diskless.coordinator.orphan.scan.grace.period.ms")
        )
        self._diskless = self._new_diskless() if diskless_settings.is_enabled(config) else None
        self._tiered = self._new_tiered() if tiered_settings.is_enabled(config) else None
        self._consolidation = self._new_consolidation()
        self._hosting = self._new_hosting(logs)
        self._api = BrokerApi(self._parts())
        self._dispatcher = Dispatcher(
            self._api.table(),
            Scope.BROKER,
            self._meters.requests,
            self._api.direct(),
            self._api.turn,
            machine.workers,
            machine.unexpected,
        )
        self._server = SocketServer(
            self._dispatcher,
            settings.broker_listeners(config),
            settings.network_limits(config),
            end_turn=self._dispatcher.end_turn,
        )
        self._lifecycle: BrokerLifecycle | None = None
        self._incarnation_id: UUID | None = None
        self._monitoring = self._new_monitoring(logs)

    @property
    def coordinators(self) -> DisklessCoordinator | None:
        """The diskless coordinators led here; None without diskless topics."""
        return None if self._diskless is None else self._diskless.coordinators

    def in_hand(self) -> Mapping[str, int]:
        """Batches and bytes that were taken and not given back."""
        waiting = sum(one.waiting_bytes for one in self.partitions if isinstance(one, DisklessPartition))
        found = {"bytes for unknown partitions": waiting}
        return found if self._diskless is None else {**found, **self._diskless.runtime.in_hand()}

    @property
    def tiered(self) -> TieredNode | None:
        """The remote tier; None without one."""
        return self._tiered

    def _new_diskless(self) -> DisklessNode:
        return DisklessNode(
            DisklessSurroundings(
                machine=self._machine,
                local_id=self._identity.node_id,
                cluster_id=self._identity.cluster_id,
                configs=self._metadata.configs,
                image=lambda: self._metadata.publisher.image,
                until_current=self._metadata.until_current,
                logs=self._logs,
                deletions=self._deletions,
                arrivals=self._arrivals,
                meters=self._meters,
            )
        )

    def _new_tiered(self) -> TieredNode:
        return TieredNode(
            TieredSurroundings(
                machine=self._machine,
                view=self._view,
                until_current=self._metadata.until_current,
                configs=self._metadata.configs,
                partitions=self.partitions,
                deletions=self._deletions,
                arrivals=self._arrivals,
                meters=self._meters,
                ensure_topic=lambda topic: self._api.ensure_topic(topic),
            )
        )

    def _new_consolidation(self) -> ConsolidationNode | None:
        """None unless there are both diskless topics and remote storage."""
        if self._diskless is None or self._tiered is None:
            return None
        node = ConsolidationNode(
            ConsolidationSurroundings(
                machine=self._machine,
                view=self._view,
                configs=self._metadata.configs,
                meters=self._meters.registry,
                diskless=self._diskless,
                tiered=self._tiered,
            )
        )
        self._diskless.kind.remote = node
        return node

    def _new_hosting(self, logs: LogManager) -> PartitionHosting:
        configs = self._metadata.configs
        classic = ClassicKind(
            self._machine,
            logs,
            self._identity.node_id,
            self._arrivals,
            lambda topic: settings.classic_log_config(topic, configs.topic(topic)),
            lambda topic: configs.topic(topic).min_insync_replicas,
            self._meters.topics,
        )
        diskless = self._diskless
        tiered = None if self._tiered is None else self._tiered.kind(classic)

        def kind_of(topic: Topic) -> PartitionKind:
            if topic.is_diskless:
                return DisklessOffKind() if diskless is None else diskless.kind
            if topic.name == DISKLESS_METADATA_TOPIC and diskless is not None:
                return diskless.metadata_kind
            if (
                tiered is None
                and settings.classic_log_config(topic.name, configs.topic(topic.name)).remote_storage_enable
            ):
                return TieredOffKind()
            return tiered or classic

        services: dict[str, CoordinatorService] = {CONSUMER_OFFSETS_TOPIC: self._groups}
        if self._tiered is not None:
            services[REMOTE_LOG_METADATA_TOPIC] = MetadataTopicLeadership(self._tiered)
        return PartitionHosting(
            self._identity.node_id,
            self.partitions,
            kind_of,
            CoordinatorLeadership(services),
            logs,
            self._is_registered,
        )

    def _parts(self) -> BrokerParts:
        return BrokerParts(
            config=self._config,
            view=self._view,
            channel=self._channel,
            publisher=self._metadata.publisher,
            partitions=self.partitions,
            arrivals=self._arrivals,
            groups=self._groups,
            producer_ids=self._producer_ids,
            configs=self._metadata.configs,
            authorizer=AllowEveryone(),
            entropy=self._machine.entropy,
            logs=self._logs,
            settled=self._hosting.settled,
            quorum=self._metadata.driver.describe,
            voters=self._metadata.voters,
            diskless=self._diskless,
            consolidation=None if self._consolidation is None else self._consolidation.leader,
            tiered=self._tiered,
        )

    def _new_monitoring(self, logs: LogManager) -> Monitoring | None:
        watch_cluster(self._meters, self._metadata)
        watch_partitions(self._meters, self.partitions, self._hosting, logs)
        watch_groups(self._meters, self._groups)
        self._meters.watch_network(
            (listener.name for listener in self._server.listeners), self._server.counters
        )
        listener = self._config.optional_text("metrics.listener")
        if listener is None:
            return None
        checks = health_checks(self._metadata, logs)
        checks["partitions"] = replicas_check(self._hosting)
        checks["topics"] = self._api.topic_problem
        checks["broker"] = lambda: None if self._lifecycle is None else self._lifecycle.problem()
        checks["errors"] = self._machine.unexpected.problem
        checks["groups"] = self._groups.runtime.problem
        notices: dict[str, HealthCheck] = {
            "groups": self._groups.runtime.notice,
            "recovery": partial(logs.report.summary, RepairKind.TORN_TAIL, RepairKind.REBUILT),
        }
        if self._diskless is not None:
            checks["coordinators"] = self._diskless.coordinators.problem
            checks["objects"] = self._diskless.runtime.problem
        if self._tiered is not None:
            checks["remote"] = self._tiered.problem
            notices["remote"] = self._tiered.notice
        return Monitoring(listener, self._meters, checks, notices)

    async def start(self) -> Address:
        publisher = self._metadata.publisher
        if self._diskless is not None:
            await self._diskless.start()
        if self._tiered is not None:
            await self._tiered.start()
        if self._consolidation is not None:
            self._consolidation.start()
        publisher.subscribe(self)
        ports = await self._server.start()
        if self._monitoring is not None:
            self.monitoring_port = await self._monitoring.start()
        addresses = self._advertised(ports)
        self._lifecycle = self._new_lifecycle(addresses)
        await self._hosting.settled()
        ended = self._lifecycle.start()
        self._lifecycle.ready()
        unfenced = asyncio.ensure_future(self._lifecycle.unfenced.wait())
        await asyncio.wait((ended, unfenced), return_when=asyncio.FIRST_COMPLETED)
        if not unfenced.done():
            unfenced.cancel()
            await ended
        await publisher.until(lambda: self._view.controller_for_clients() == self._identity.node_id)
        self._put_strays_aside()
        if self._diskless is not None:
            await self._api.ensure_topic_soon(self._diskless.metadata_topic)
            self._diskless.warn_of_other_partition_count()
        await self._hosting.settled()
        return Address(addresses[0].host, addresses[0].port)

    def _put_strays_aside(self) -> None:
        """Take out logs whose partition is not in the metadata, all of which is known by now; keep them."""
        for log in self._logs:
            name = log.topic_partition
            topic = self._view.image.topics.get(name.topic)
            is_hosted = (
                topic is not None
                and name.partition < len(topic.partitions)
                and self._identity.node_id in topic.partitions[name.partition].replicas
            )
            if not is_hosted:
                self._logs.put_aside(name)

    def _advertised(self, ports: dict[str, int]) -> list[Endpoint]:
        return [
            Endpoint(
                endpoint.name,
                endpoint.host or "127.0.0.1",
                endpoint.port or ports[endpoint.name],
                SECURITY_PROTOCOL_PLAINTEXT,
            )
            for endpoint in self._config.advertised_listeners
        ]

    def _new_lifecycle(self, endpoints: list[Endpoint]) -> BrokerLifecycle:
        publisher = self._metadata.publisher
        self._incarnation_id = self._machine.entropy.uuid4()
        return BrokerLifecycle(
            BrokerIdentity(
                broker_id=self._identity.node_id,
                cluster_id=self._identity.cluster_id,
                incarnation_id=self._incarnation_id,
                endpoints=endpoints,
                features=[
                    SupportedFeature(name, low, high)
                    for name, (low, high) in settings.SUPPORTED_FEATURES.items()
                ],
                log_dirs=self._identity.directory_ids,
                rack=self._config.rack,
            ),
            self._channel,
            self._machine.entropy,
            lambda: publisher.image.provenance.offset,
            heartbeat_interval_ms=self._config.integer("broker.heartbeat.interval.ms"),
            registration_timeout_ms=self._config.integer("initial.broker.registration.timeout.ms"),
            on_registered=self._producer_ids.set_broker_epoch,
        )

    def _is_registered(self, image: MetadataImage) -> bool:
        """Whether the cluster knows this process, and not only an earlier one of the same broker."""
        known = image.brokers.get(self._identity.node_id)
        return known is not None and known.incarnation_id == self._incarnation_id

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The metadata has changed: bring partitions and configurations in line."""
        changed = [topic.name for topic in delta.topics.changed.values()]
        removed = list(delta.topics.removed.values())
        # Before the configurations: a topic that goes takes its own along, and must not obey the defaults.
        self._hosting.apply(image, changed, removed)
        if delta.configs.entries:
            self._apply_configs(delta)
        if self._diskless is not None:
            self._diskless.on_image(delta, image)
        if self._tiered is not None:
            self._tiered.on_image(delta, image)
        if removed:
            gone = {topic.name for topic in removed if image.topics.get(topic.name) is None}
            for name in gone:
                self._meters.topics.remove(name)
            self._forget_offsets(gone)
        if self._lifecycle is not None:
            self._lifecycle.metadata_moved()

    def _apply_configs(self, delta: MetadataDelta) -> None:
        resources = list(delta.configs.entries)
        if any(kind == ResourceType.BROKER for kind, _ in resources):
            self._hosting.reconfigure(None)
            broker = self._metadata.configs.broker
            self._server.limits = settings.network_limits(broker)
            self._logs.cleaner.settings = settings.cleaner_settings(broker)
            if self._diskless is not None:
                self._diskless.reconfigure()
            if self._tiered is not None:
                self._tiered.reconfigure()
            if self._consolidation is not None:
                self._consolidation.reconfigure()
        else:
            self._hosting.reconfigure(name for kind, name in resources if kind == ResourceType.TOPIC)

    def _forget_offsets(self, topics: set[str]) -> None:
        if topics:
            self._api.in_background(self._groups.forget_topics(partial(_is_in, topics)))

    async def stop(self) -> None:
        if self._lifecycle is not None:
            await self._lifecycle.controlled_shutdown(CONTROLLED_SHUTDOWN_TIMEOUT_MS)
        await self._groups.close()
        if self._monitoring is not None:
            await self._monitoring.stop()
        stopping = asyncio.ensure_future(self._server.stop(NETWORK_GRACE_S))
        await asyncio.sleep(0)
        # Nothing is read any more: whoever waits for records is answered now instead of at his deadline.
        self._arrivals.release_all()
        await stopping
        await self._dispatcher.close()
        if self._consolidation is not None:
            await self._consolidation.stop()
        if self._tiered is not None:
            await self._tiered.stop()
        if self._diskless is not None:
            await self._diskless.stop()
        await self._producer_ids.close()
        await self._api.close()
        await self._hosting.stop()


def _is_in(topics: set[str], topic: str, partition: int) -> bool:
    return topic in topics
