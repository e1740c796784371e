"""The APIs of a broker's client listeners: every handler family with what it needs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from moldau.cluster.controller_channel import ControllerChannel
from moldau.cluster.decisions.topic_names import check_name
from moldau.cluster.publisher import MetadataPublisher
from moldau.config.broker import BrokerConfig
from moldau.config.listeners import Voter
from moldau.coordinators.groups.service import GroupService
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.own import DISKLESS_COORDINATOR_KEY_TYPE
from moldau.quorum.description import QuorumDescription
from moldau.replication.append_turn import AppendTurn
from moldau.replication.partition import PartitionKey
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server import settings, tiered_settings
from moldau.server.authorization import Authorizer
from moldau.server.cluster_view import CONSUMER_OFFSETS_TOPIC, ClusterView
from moldau.server.diskless_node import DisklessNode
from moldau.server.dispatch import DirectTable, Handler, HandlerTable, routes
from moldau.server.fetch_sessions import FetchSessions
from moldau.server.handlers.config_changes import ConfigChangeHandlers
from moldau.server.handlers.configs import ConfigHandlers
from moldau.server.handlers.consolidation import ConsolidationHandlers
from moldau.server.handlers.coordinators import GROUP, CoordinatorHandlers, CoordinatorKind
from moldau.server.handlers.diskless import (
    DisklessHandlers,
    check_cluster_action,
    coordinator_of_key,
)
from moldau.server.handlers.fetch import FetchHandlers
from moldau.server.handlers.forwarded import ForwardedHandlers
from moldau.server.handlers.groups import GroupHandlers
from moldau.server.handlers.log_dirs import LogDirHandlers
from moldau.server.handlers.metadata import MetadataHandlers
from moldau.server.handlers.offsets import OffsetHandlers
from moldau.server.handlers.produce import ProduceHandlers
from moldau.server.handlers.producers import ProducerHandlers
from moldau.server.handlers.quorum import describe_quorum
from moldau.server.handlers.tiered import TieredHandlers
from moldau.server.handlers.topic_partitions import TopicPartitionHandlers
from moldau.server.handlers.versions import VersionHandlers
from moldau.server.producer_ids import ProducerIds
from moldau.server.registry import PartitionRegistry
from moldau.server.tiered_node import TieredNode
from moldau.server.topic_configs import EffectiveConfigs
from moldau.server.topic_creation import InternalTopic, TopicCreator
from moldau.storage.log_manager import LogManager
from moldau.tiered.consolidation.leader import ConsolidationLeader

FORWARDED: Final = (
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.UPDATE_FEATURES,
    ApiKey.UNREGISTER_BROKER,
)

TOPIC_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What the handlers of a broker are made from."""

    config: BrokerConfig
    view: ClusterView
    channel: ControllerChannel
    publisher: MetadataPublisher
    partitions: PartitionRegistry
    arrivals: WaitingRoom[PartitionKey]
    groups: GroupService
    producer_ids: ProducerIds
    configs: EffectiveConfigs
    authorizer: Authorizer
    entropy: Entropy
    logs: LogManager
    settled: Callable[[], Awaitable[None]]
    """Returns when this broker's partitions are as the image says."""
    quorum: Callable[[], QuorumDescription]
    voters: Callable[[], Sequence[Voter]]
    diskless: DisklessNode | None
    """``None`` where diskless topics are off."""
    consolidation: ConsolidationLeader | None
    """``None`` unless there are both diskless topics and a remote tier."""
    tiered: TieredNode | None
    """``None`` where there is no remote tier."""


class BrokerApi:
    """The handler table of a broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._background: set[asyncio.Task[None]] = set()
        view = parts.view
        self._creator = TopicCreator(
            view,
            parts.channel,
            self._until_served,
            _name_error,
            auto_create=parts.config.flag("auto.create.topics.enable"),
            internal=[self._group_topic(), tiered_settings.metadata_topic(parts.config)],
        )
        self.turn = AppendTurn()
        self._produce = ProduceHandlers(parts.partitions, parts.authorizer, self.turn, self._congestion())
        self._table = self._assemble()

    def table(self) -> dict[int, Handler]:
        """Handlers by API key."""
        return self._table

    def direct(self) -> DirectTable:
        """Quick ways for what comes most often, by API key."""
        return {ApiKey.PRODUCE: self._produce.direct}

    def _assemble(self) -> dict[int, Handler]:
        parts, view, publisher = self._parts, self._parts.view, self._parts.publisher
        sessions = FetchSessions(
            parts.config.integer("max.incremental.fetch.session.cache.slots"),
            lambda: parts.entropy.randrange(2**31 - 1) + 1,
        )
        versions = VersionHandlers(
            Scope.BROKER, lambda: self._table, settings.SUPPORTED_FEATURES, self._finalized_features
        )
        return routes(
            versions.table(),
            self._produce.table(),
            FetchHandlers(
                parts.partitions,
                parts.arrivals,
                sessions,
                parts.authorizer,
                parts.config.integer("fetch.max.bytes"),
            ).table(),
            OffsetHandlers(parts.partitions, parts.authorizer).table(),
            MetadataHandlers(view, self._creator, parts.authorizer).table(),
            ForwardedHandlers(
                parts.channel,
                FORWARDED,
                publisher.until,
                parts.settled,
                self._partition_count,
            ).table(),
            TopicPartitionHandlers(
                view,
                self._creator,
                parts.authorizer,
                parts.config.integer("max.request.partition.size.limit"),
            ).table(),
            LogDirHandlers(parts.logs, parts.authorizer).table(),
            {ApiKey.DESCRIBE_QUORUM: partial(describe_quorum, parts.quorum, parts.voters, parts.config)},
            ProducerHandlers(parts.producer_ids, parts.partitions).table(),
            CoordinatorHandlers(view, self._creator, self._coordinator_kinds()).table(),
            self._diskless_handlers(),
            self._tiered_handlers(),
            ConsolidationHandlers(
                parts.consolidation, parts.authorizer, tiered_settings.remote_place(parts.config)
            ).table(),
            GroupHandlers(parts.groups, parts.authorizer).table(),
            ConfigHandlers(view, parts.configs).table(),
            ConfigChangeHandlers(view.local_id, parts.channel, parts.authorizer).table(),
        )

    async def _until_served(self, topic: str) -> None:
        view = self._parts.view
        await self._parts.publisher.until(lambda: view.image.topics.get(topic) is not None)
        await self._parts.settled()

    def _partition_count(self, topic: str) -> int:
        found = self._parts.view.image.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def _coordinator_kinds(self) -> dict[int, CoordinatorKind]:
        parts = self._parts
        kinds = {GROUP: CoordinatorKind(self._group_topic(), parts.groups.partition_of)}
        if parts.diskless is not None:
            kinds[DISKLESS_COORDINATOR_KEY_TYPE] = CoordinatorKind(
                parts.diskless.metadata_topic,
                coordinator_of_key,
                partial(check_cluster_action, parts.authorizer),
            )
        return kinds

    def _congestion(self) -> Callable[[], float | None] | None:
        diskless = self._parts.diskless
        return None if diskless is None else lambda: diskless.congestion

    def _diskless_handlers(self) -> HandlerTable:
        parts = self._parts
        if parts.diskless is None:
            return {}
        return DisklessHandlers(parts.diskless.coordinators, parts.authorizer).table()

    def _tiered_handlers(self) -> HandlerTable:
        parts = self._parts
        metadata = None if parts.tiered is None else parts.tiered.metadata
        return TieredHandlers(
            parts.partitions, metadata, lambda name: parts.configs.topic(name).is_tiered, parts.authorizer
        ).table()

    def _group_topic(self) -> InternalTopic:
        config = self._parts.config
        return InternalTopic(
            CONSUMER_OFFSETS_TOPIC,
            config.integer("offsets.topic.num.partitions"),
            config.integer("offsets.topic.replication.factor"),
            "offsets.topic.replication.factor",
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.integer("offsets.topic.segment.bytes")),
            },
        )

    def _finalized_features(self) -> tuple[int, dict[str, int]]:
        image = self._parts.publisher.image
        return image.provenance.offset, {name: int(level) for name, level in image.features.items()}

    async def ensure_topic(self, topic: InternalTopic) -> None:
        """Return when an internal topic exists. Raises ``KafkaError(coordinator_not_available)``."""
        await self._creator.ensure(topic)

    async def ensure_topic_soon(self, topic: InternalTopic) -> None:
        """Create an internal topic; while that is refused, go on trying in the background."""
        try:
            await self._creator.ensure(topic)
        except KafkaError:
            self.in_background(self._ensure_later(topic))

    async def _ensure_later(self, topic: InternalTopic) -> None:
        while True:
            await asyncio.sleep(TOPIC_RETRY_S)
            with contextlib.suppress(KafkaError):
                await self._creator.ensure(topic)
                return

    def topic_problem(self) -> str | None:
        """An internal topic that was needed and could not be created, for the health page."""
        refused = self._creator.refusals.items()
        return next((f"{name} cannot be created yet: {reason}" for name, reason in refused), None)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that nobody waits for; it ends with the node."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._creator.close()


def _name_error(name: str) -> ErrorCode | None:
    try:
        check_name(name)
    except KafkaError as error:
        return error.code
    return None
