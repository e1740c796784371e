"""Converts Kafka's configuration keys to the settings of each package."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from moldau.cluster.decisions import features
from moldau.cluster.decisions.kinds.table import enabled_kinds, kind_of_config
from moldau.cluster.decisions.view import ControllerSettings
from moldau.cluster.image.registrations import FeatureRanges, SupportedFeature
from moldau.cluster.internal_topics import (
    INTERNAL_TOPICS,
    STATE_TOPICS,
    StateRetention,
    replication_factors,
)
from moldau.config.broker import BROKER, BrokerConfig
from moldau.config.definition import ConfigError
from moldau.config.key_fields import values_of
from moldau.config.keys.without_effect import WAITS_FOR
from moldau.config.node_combinations import ANY_ADDRESS
from moldau.config.topic_config import TopicConfig
from moldau.network.limits import Listener, NetworkLimits
from moldau.quorum.core.voters import KRAFT_VERSION_FEATURE, KRAFT_VERSION_MAX
from moldau.quorum.driver import DriverConfig
from moldau.quorum.settings import RaftSettings
from moldau.quorum.snapshot_pruning import SnapshotRetention
from moldau.quorum.wire.requests import RequestCodec
from moldau.records.compression import Compression
from moldau.records.recompression import TargetCompression
from moldau.storage.cleaner.cleaner import CleanerSettings
from moldau.storage.critical_logs.inventory import CriticalTopic
from moldau.storage.log.config import LogConfig
from moldau.storage.log_manager_settings import LogManagerSettings

GZIP_LEVEL_DEFAULT = -1
LZ4_LEVEL_DEFAULT = 9
LZ4_LEVEL_FAST = 0
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
DEVELOPMENT_LISTENER = "PLAINTEXT"
LOOPBACK: Final = "127.0.0.1"
SUPPORTED_FEATURES: Final[FeatureRanges] = {
    **{each.name: (each.min_level, each.max_level) for each in features.SUPPORTED_FEATURES},
    KRAFT_VERSION_FEATURE: (0, KRAFT_VERSION_MAX),
}


def development_config(
    data: str,
    port: int,
    properties: Mapping[str, str],
    *,
    host: str = LOOPBACK,
    diskless: bool = False,
) -> BrokerConfig:
    """Return the configuration of a single combined node with one folder, which needs no configuration file.

    Internal topics have one replica, and consumer groups form almost immediately. ``remote.storage.enable``
    works without further settings, on an object store in ``data``. With ``diskless``, topics are diskless by
    default, on the same store. A node that listens on all addresses advertises the loopback address. Values
    in ``properties`` replace these values. Raises ``ConfigError`` if a value is not valid.
    """
    node_id = properties.get("node.id", "1")
    base = {
        "process.roles": "broker,controller",
        "node.id": node_id,
        # The port 0 is replaced later: the port that the system assigned to the listener is advertised.
        "controller.quorum.voters": f"{node_id}@{host}:0",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{DEVELOPMENT_LISTENER}://{host}:{port},CONTROLLER://{host}:0",
        "log.dirs": data,
        **replication_factors(1),
        "offsets.topic.num.partitions": "4",
        "remote.log.storage.system.enable": "false" if "," in properties.get("log.dirs", "") else "true",
        "remote.log.metadata.topic.num.partitions": "4",
        "rsm.config.url": f"file://{quote(data)}/objects",
        # The delay is not 0, because of kafka-python. This client joins a group while it still waits for the
        # topic's metadata. If the response to the join comes first, the client assigns no partitions and
        # keeps the empty assignment for a long time.
        "group.initial.rebalance.delay.ms": "100",
    }
    if host == ANY_ADDRESS and "listeners" not in properties:
        base["advertised.listeners"] = f"{DEVELOPMENT_LISTENER}://{LOOPBACK}:{port}"
    if diskless:
        base |= {
            "diskless.system.enable": "true",
            "log.diskless.enable": "true",
            "diskless.metadata.topic.num.partitions": "1",
            "diskless.storage.url": f"file://{quote(data)}/objects",
        }
    return BrokerConfig.from_properties({**base, **properties})


def is_whole_cluster(config: BrokerConfig) -> bool:
    """Whether this node is a broker, and is configured as the only controller."""
    return config.is_broker and [voter.node_id for voter in config.quorum_voters] == [config.node_id]


def consolidates(config: BrokerConfig) -> bool:
    """Whether this broker has diskless and tiered storage, so that the records of diskless partitions can be
    moved from the WAL to the remote tier."""
    return config.flag("diskless.system.enable") and config.flag("remote.log.storage.system.enable")


def saves_logs(config: BrokerConfig) -> bool:
    """Whether this broker saves the cluster's own logs. It can save them only if the object store of diskless
    topics is configured, because the logs are saved in this store."""
    return config.flag("backup.enable") and config.flag("diskless.system.enable")


def check_supported(config: BrokerConfig) -> None:
    """Raise ``ConfigError`` if the configuration requests a feature that Moldau does not support. The error
    names the key."""
    for endpoint in config.listeners:
        protocol = config.security_protocols[endpoint.name]
        if protocol != "PLAINTEXT":
            raise ConfigError(
                "listener.security.protocol.map",
                f"listener {endpoint.name} has the security protocol {protocol}; only PLAINTEXT is supported",
            )
    if config.optional_text("authorizer.class.name"):
        # A configuration with ``authorizer.class.name`` is refused. If the key was ignored, every client
        # would have all rights, although the operator has configured restrictions.
        raise ConfigError(
            "authorizer.class.name",
            "authorizer.class.name must not be set: access control is not supported yet",
        )
    selector = config.optional_text("replica.selector.class")
    if selector and selector not in (RACK_AWARE_SELECTOR, LEADER_SELECTOR):
        raise ConfigError(
            "replica.selector.class",
            f"replica.selector.class must be {RACK_AWARE_SELECTOR} or {LEADER_SELECTOR}: other Java classes"
            " cannot be loaded",
        )
    for key, purpose in _RULES_OF_JAVA_CLASSES.items():
        if config[key]:
            raise ConfigError(key, f"{key} must not be set: {purpose}, and a Java class cannot be loaded")


_RULES_OF_JAVA_CLASSES: Final = {
    "create.topic.policy.class.name": "it names rules for new topics",
    "alter.config.policy.class.name": "it names rules for changed configurations",
    "client.quota.callback.class": "it names rules for quotas",
    "config.providers": "it names sources of other values",
}
"""Keys that name Java classes. These classes implement an operator's rules. Without the rules a node would do
things that its operator has forbidden."""
_OF_LISTENER: Final = "listener.name."
_REPORTERS: Final = ("metric.reporters", "kafka.metrics.reporters", "security.providers")
_KAFKAS_OWN_REPORTER: Final = "org.apache.kafka.common.metrics.JmxReporter"


def without_effect(config: BrokerConfig) -> dict[str, str]:
    """Return the keys that have no effect although they are set. Each key has the reason."""
    waiting = {
        key: f"has no effect yet, it waits for {WAITS_FOR[key]}"
        for key in sorted(WAITS_FOR)
        if key in BROKER and config.is_set(key)
    }
    ignored = {
        key: "has no effect: a Java class cannot be loaded (see metrics.listener for metrics)"
        for key in _REPORTERS
        if config.is_set(key) and config[key] and config[key] != (_KAFKAS_OWN_REPORTER,)
    }
    return waiting | ignored | _without_effect_on_listeners(config)


def _without_effect_on_listeners(config: BrokerConfig) -> dict[str, str]:
    """Return the keys that have no effect, because only the form ``listener.name.NAME.KEY`` of these keys is
    read."""
    names = {listener.name.lower() for listener in config.listeners}
    found = {}
    for key in sorted(config.static):
        name, _, of_listener = key.removeprefix(_OF_LISTENER).partition(".")
        if not key.startswith(_OF_LISTENER):
            continue
        if of_listener != "max.connections":
            found[key] = "has no effect: of the keys of a single listener only max.connections is read"
        elif name.lower() not in names:
            found[key] = f"has no effect: no listener is named {name}"
    return found


def log_config(topic: TopicConfig) -> LogConfig:
    """The configuration of a partition's log. It comes from the configuration of the topic."""
    return LogConfig(
        **values_of(LogConfig, topic),
        # Each of the following fields depends on several keys, or on a key of the broker.
        compression=target_compression(topic),
        producer_id_expiration_ms=topic.broker.integer("producer.id.expiration.ms"),
        remote_storage_enable=topic.is_tiered and kind_of_config(topic).has_remote_tier,
        local_retention_ms=topic.local_retention_ms,
        local_retention_bytes=topic.local_retention_bytes,
    )


def classic_log_config(name: str, topic: TopicConfig) -> LogConfig:
    """Return the log configuration of an internal topic, as :func:`log_config` does for other topics.
    Internal topics never have a remote tier, even if their configs request it."""
    config = log_config(topic)
    return replace(config, remote_storage_enable=False) if name in INTERNAL_TOPICS else config


def target_compression(topic: TopicConfig) -> TargetCompression | None:
    """Return the codec with which a topic stores its batches. None means that the batches keep the producer's
    codec."""
    name = topic.text("compression.type")
    if name == "producer":
        return None
    codec = Compression.of_name(name)
    match codec:
        case Compression.GZIP:
            level = topic.integer("compression.gzip.level")
            return TargetCompression(codec, None if level == GZIP_LEVEL_DEFAULT else level)
        case Compression.LZ4:
            level = topic.integer("compression.lz4.level")
            # In Kafka, the default level of LZ4 selects the fast compressor, although its number (9) is also
            # a level of the slow compressor.
            return TargetCompression(codec, LZ4_LEVEL_FAST if level == LZ4_LEVEL_DEFAULT else level)
        case Compression.ZSTD:
            return TargetCompression(codec, topic.integer("compression.zstd.level"))
        case _:
            return TargetCompression(codec)


def log_manager_settings(config: BrokerConfig) -> LogManagerSettings:
    """The settings of the log manager's periodic work."""
    return LogManagerSettings(
        log_retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        log_retention_initial_delay_ms=min(
            config.integer("log.initial.task.delay.ms"), config.integer("log.retention.check.interval.ms")
        ),
        producer_id_expiration_check_interval_ms=config.integer("producer.id.expiration.check.interval.ms"),
        log_flush_scheduler_interval_ms=min(3_000, config.integer("log.flush.scheduler.interval.ms")),
        log_flush_offset_checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
        replica_high_watermark_checkpoint_interval_ms=config.integer(
            "replica.high.watermark.checkpoint.interval.ms"
        ),
        stray_delete_delay_ms=config.integer("log.stray.delete.delay.ms"),
        num_recovery_threads=config.integer("num.recovery.threads.per.data.dir"),
        cleaner=cleaner_settings(config),
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Settings of compaction that apply to all topics."""
    return CleanerSettings(
        enable=config.flag("log.cleaner.enable"),
        backoff_ms=config.integer("log.cleaner.backoff.ms"),
        dedupe_buffer_bytes=config.integer("log.cleaner.dedupe.buffer.size"),
        io_buffer_load_factor=config.number("log.cleaner.io.buffer.load.factor"),
        io_max_bytes_per_second=config.number("log.cleaner.io.max.bytes.per.second"),
    )


def network_limits(config: BrokerConfig) -> NetworkLimits:
    """Limits of the socket server."""
    queued_bytes = config.integer("queued.max.request.bytes")
    return NetworkLimits(
        max_request_bytes=config.integer("socket.request.max.bytes"),
        queued_max_request_bytes=None if queued_bytes < 0 else queued_bytes,
        max_connections=config.integer("max.connections"),
        max_connections_by_listener=config.max_connections_by_listener,
        protected_listener=config.inter_broker_listener_name if config.is_broker else None,
        max_connections_per_ip=config.integer("max.connections.per.ip"),
        max_connections_per_ip_overrides=config.max_connections_per_ip_overrides,
        connections_max_idle_ms=config.integer("connections.max.idle.ms"),
        backlog=config.integer("socket.listen.backlog.size"),
        send_buffer_bytes=config.integer("socket.send.buffer.bytes")
        if config.is_set("socket.send.buffer.bytes")
        else -1,
        receive_buffer_bytes=config.integer("socket.receive.buffer.bytes")
        if config.is_set("socket.receive.buffer.bytes")
        else -1,
    )


def broker_listeners(config: BrokerConfig) -> list[Listener]:
    """The listeners for clients."""
    return [
        Listener(endpoint.name, endpoint.host, endpoint.port, config.security_protocols[endpoint.name])
        for endpoint in config.broker_listeners
    ]


def controller_settings(
    config: BrokerConfig, cluster_id: str, features: FeatureRanges = SUPPORTED_FEATURES
) -> ControllerSettings:
    """Settings of the controller's decisions. ``features`` are the levels that the controller may set."""
    return ControllerSettings(
        cluster_id=cluster_id,
        supported_features=tuple(
            SupportedFeature(name, low, high)
            for name, (low, high) in features.items()
            if name != KRAFT_VERSION_FEATURE  # Only the quorum can change this level.
        ),
        first_probed_listener=config.inter_broker_listener_name,
        leader_balance_interval_ms=_leader_balance_interval_ms(config),
        enabled_kinds=enabled_kinds(config.flag),
        **values_of(ControllerSettings, config),
    )


def _leader_balance_interval_ms(config: BrokerConfig) -> int:
    if not config.flag("auto.leader.rebalance.enable"):
        return 0
    return 1000 * config.integer("leader.imbalance.check.interval.seconds")


def quorum_config(config: BrokerConfig, cluster_id: str) -> DriverConfig:
    """Return the timing of the metadata quorum, and the id of its cluster."""
    linger = "controller.quorum.append.linger.ms"
    return DriverConfig(
        wire=RequestCodec(cluster_id=cluster_id),
        bootstrap_servers=() if config.quorum_voters else config.quorum_bootstrap_servers,
        raft=RaftSettings(
            election_timeout_ms=config.integer("controller.quorum.election.timeout.ms"),
            fetch_timeout_ms=config.integer("controller.quorum.fetch.timeout.ms"),
            election_backoff_max_ms=config.integer("controller.quorum.election.backoff.max.ms"),
            request_timeout_ms=config.integer("controller.quorum.request.timeout.ms"),
            retry_backoff_ms=config.integer("controller.quorum.retry.backoff.ms"),
        ),
        append_linger_ms=config.integer(linger) if config.is_set(linger) else 0,
        retention=SnapshotRetention(
            max_bytes=config.integer("metadata.max.retention.bytes"),
            max_age_ms=config.integer("metadata.max.retention.ms"),
        ),
    )


CRITICAL_TOPICS: Final = {
    topic.name: CriticalTopic(
        is_compacted=topic.retention is StateRetention.COMPACTED,
        has_snapshots=topic.retention is StateRetention.SNAPSHOTS,
    )
    for topic in STATE_TOPICS.values()
}
"""Topics that contain the cluster's own state. If their records were lost, other records would be hidden or
deleted."""


def metadata_log_config(config: BrokerConfig) -> LogConfig:
    """The segment settings of the metadata log."""
    return LogConfig(
        segment_bytes=config.integer("metadata.log.segment.bytes"),
        segment_ms=config.integer("metadata.log.segment.ms"),
        retention_ms=-1,
        retention_bytes=-1,
        max_message_bytes=2**31 - 1,
    )
