"""The replication of a broker's classic partitions. Followers fetch, and leaders propose in-sync sets."""

from collections.abc import Iterable, Mapping
from functools import partial

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.config.broker import BrokerConfig
from moldau.metrics.replication import InSyncMeters
from moldau.network.client.node_connection import NodeAddress
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.fetching.fetch_session import FetchLimits
from moldau.replication.fetching.fetcher_context import FetcherContext, FetcherSettings
from moldau.replication.fetching.replica_fetcher_manager import ReplicaFetcherManager
from moldau.replication.in_sync_requests import InSyncSets
from moldau.replication.leading import nearest_replica
from moldau.replication.throttling import ReplicationQuota
from moldau.server.context import BrokerContext
from moldau.server.settings import RACK_AWARE_SELECTOR


class Replication:
    """Fetches from leaders, and monitors followers. Partitions notify this object of their roles.

    It is a :class:`moldau.replication.leading.ReplicaListener`, and it gives the fetchers information about
    the cluster.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        local_id, config = context.identity.node_id, context.config
        self._listener_name = config.inter_broker_listener_name
        self._knows_racks = config.optional_text("replica.selector.class") == RACK_AWARE_SELECTOR
        self._rack = config.rack
        window_count = config.integer("replication.quota.window.num")
        window_s = config.integer("replication.quota.window.size.seconds")
        self._leader_quota = ReplicationQuota(local_id, window_count=window_count, window_s=window_s)
        self._follower_quota = ReplicationQuota(local_id, window_count=window_count, window_s=window_s)
        machine, quota = context.machine, self._follower_quota
        self._fetchers = ReplicaFetcherManager(
            FetcherContext(
                local_id, fetcher_settings(config), self, machine.entropy, machine.unexpected, quota
            )
        )
        self._in_sync = InSyncSets(
            local_id,
            context.channel,
            lambda: self.local_epoch,
            config.integer("replica.lag.time.max.ms"),
            context.machine.unexpected,
            InSyncMeters(context.meters.registry),
        )
        self._fetched = context.meters.topics.replication_bytes_in
        self._watch_rates()

    @property
    def active_brokers(self) -> Mapping[int, int]:
        return self._in_sync.active_brokers

    @property
    def leader_quota(self) -> ReplicationQuota:
        return self._leader_quota

    @property
    def local_epoch(self) -> int:
        """Epoch of this process's registration. It is -1 while the metadata do not contain the
        registration."""
        own = self._registration(self._context.identity.node_id)
        if own is None or own.incarnation_id != self._context.incarnation_id:
            return -1
        return own.epoch

    def address(self, broker_id: int) -> NodeAddress | None:
        return self._context.view.address(broker_id, self._listener_name)

    def fetched(self, size_bytes: int) -> None:
        self._fetched.value += size_bytes

    def role_changed(self, partition: ClassicPartition) -> None:
        leader_id = partition.leader_to_follow
        if leader_id is None:
            self._fetchers.leave(partition.key)
        else:
            self._fetchers.follow(partition, leader_id)
        if partition.is_leader:
            self._in_sync.lead(partition)
        else:
            self._in_sync.leave(partition)

    def nearest_replica(self, client_rack: str, end_offsets: Mapping[int, int]) -> int:
        if not self._knows_racks or client_rack == self._rack:
            return -1
        brokers = self._context.view.image.brokers
        found = filter(None, map(brokers.get, end_offsets))
        racks = {broker.broker_id: broker.rack for broker in found if broker.is_active}
        return nearest_replica(client_rack, end_offsets, racks)

    def outsider_fetched(self, partition: ClassicPartition) -> None:
        self._in_sync.consider(partition)

    def brokers_changed(self, image: MetadataImage) -> None:
        """Apply changes of registrations: addresses, epochs, and the set of active brokers."""
        active = {broker.broker_id: broker.epoch for broker in image.brokers.values() if broker.is_active}
        self._in_sync.brokers_changed(active)
        self._fetchers.brokers_changed()

    def reconfigure(self) -> None:
        """Apply a change of the broker's configs."""
        self.throttle(())
        self._fetchers.resize(self._context.metadata.configs.broker.integer("num.replica.fetchers"))

    def throttle(self, topics: Iterable[str]) -> None:
        """Apply changed configs of throttled replication (KIP-73): the rates of this broker, and the
        throttled replicas of topics."""
        configs = self._context.metadata.configs
        self._leader_quota.bytes_per_second = configs.broker.integer("leader.replication.throttled.rate")
        self._follower_quota.bytes_per_second = configs.broker.integer("follower.replication.throttled.rate")
        for name in topics:
            config = configs.topic(name)
            self._leader_quota.throttle(name, config.items("leader.replication.throttled.replicas"))
            self._follower_quota.throttle(name, config.items("follower.replication.throttled.replicas"))

    def notice(self) -> str | None:
        """Return the leaders that this broker cannot reach, for the health page."""
        return "; ".join(self._fetchers.problems()) or None

    def start(self) -> None:
        """Start sending proposals of in-sync sets to the controller."""
        self._in_sync.start()

    async def stop(self) -> None:
        """Stop following, and stop sending proposals."""
        await self._fetchers.stop()
        await self._in_sync.stop()

    def _watch_rates(self) -> None:
        """Register the byte rates of throttled replicas, under Kafka's names."""
        quotas = {"LeaderReplication": self._leader_quota, "FollowerReplication": self._follower_quota}
        for scope, quota in quotas.items():
            self._context.meters.gauge("kafka.server", scope, "byte-rate", partial(self._rate, quota))

    def _rate(self, quota: ReplicationQuota) -> float:
        return quota.rate(self._context.arrivals.loop.time())

    def _registration(self, broker_id: int) -> BrokerRegistration | None:
        return self._context.view.image.brokers.get(broker_id)


def fetcher_settings(config: BrokerConfig) -> FetcherSettings:
    """Settings of followers."""
    return FetcherSettings(
        limits=FetchLimits(
            max_bytes=config.integer("replica.fetch.max.bytes"),
            response_max_bytes=config.integer("replica.fetch.response.max.bytes"),
            wait_max_ms=config.integer("replica.fetch.wait.max.ms"),
            min_bytes=config.integer("replica.fetch.min.bytes"),
        ),
        backoff_ms=config.integer("replica.fetch.backoff.ms"),
        request_timeout_ms=config.integer("replica.socket.timeout.ms"),
        fetcher_count=config.integer("num.replica.fetchers"),
        copy_bytes_per_second=config.integer("replica.catch.up.max.bytes.per.second"),
    )
