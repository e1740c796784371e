"""Converts the keys ``remote.log.*`` to the settings of the tiered packages, and constructs the configured
managers."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, cast

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA, InternalTopic
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.metrics import Meters
from moldau.runtime.byte_quota import QuotaSettings
from moldau.runtime.machine import Machine
from moldau.server.subsystems.diskless.settings import OPTION_PREFIX as DISKLESS_STORAGE_PREFIX
from moldau.tiered.metadata.hosting import HostedMetadata, NoMetadataHosting
from moldau.tiered.metadata.manager import MetadataManagerMaker, RemoteLogMetadataManager
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.metadata.topic import MetadataTopic
from moldau.tiered.metadata.topic_based_manager import (
    MetadataManagerSettings,
    TopicBasedRemoteLogMetadataManager,
)
from moldau.tiered.reading.reader import ReaderSettings
from moldau.tiered.remote_log_manager import RemoteLogManagerSettings
from moldau.tiered.storage.foreign_storage_manager import METHODS as STORAGE_METHODS
from moldau.tiered.storage.foreign_storage_manager import ForeignStorageManager
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager, open_object_storage_manager
from moldau.tiered.storage.storage_manager import (
    HostedStorageManager,
    RemotePlace,
    RemoteStorageError,
    RemoteStorageManager,
    StorageManagerMaker,
)

__all__ = [
    "INDEX_CACHE_FOLDER",
    "METADATA_FOLDER",
    "index_cache_bytes",
    "is_enabled",
    "metadata_manager",
    "metadata_topic",
    "remote_place",
    "storage_manager",
]

T = TypeVar("T")

METADATA_FOLDER: Final = "remote-log-metadata"
INDEX_CACHE_FOLDER: Final = "remote-log-index-cache"
"""Names of two folders. Both folders are in the first folder of ``log.dirs``. The second name is the same as
in Kafka."""

_STORAGE_CLASS: Final = "remote.log.storage.manager.class.name"
_METADATA_CLASS: Final = "remote.log.metadata.manager.class.name"
_METADATA_METHODS: Final = tuple(name for name in vars(RemoteLogMetadataManager) if not name.startswith("_"))
_TOPIC_BASED: Final = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


def is_enabled(config: BrokerConfig) -> bool:
    """Whether this broker has a remote tier."""
    return config.flag("remote.log.storage.system.enable")


def index_cache_bytes(config: BrokerConfig) -> int:
    """Return the maximum size, in bytes, of the indexes of remote segments on the local disk."""
    return config.integer("remote.log.index.file.cache.total.size.bytes")


def log_manager_settings(config: BrokerConfig) -> RemoteLogManagerSettings:
    """Intervals of the tier's tasks, and the number of tasks that run at the same time."""
    return RemoteLogManagerSettings(
        task_interval_ms=config.integer("remote.log.manager.task.interval.ms"),
        retry_backoff_ms=config.integer("remote.log.manager.task.retry.backoff.ms"),
        retry_backoff_max_ms=config.integer("remote.log.manager.task.retry.backoff.max.ms"),
        retry_jitter=config.number("remote.log.manager.task.retry.jitter"),
        copier_pool_size=config.integer("remote.log.manager.copier.thread.pool.size"),
        expiration_pool_size=config.integer("remote.log.manager.expiration.thread.pool.size"),
    )


def reader_settings(config: BrokerConfig) -> ReaderSettings:
    """Return the limits on the number of remote reads and on their duration."""
    return ReaderSettings(
        threads=config.integer("remote.log.reader.threads"),
        max_pending_tasks=config.integer("remote.log.reader.max.pending.tasks"),
        fetch_max_wait_ms=config.integer("remote.fetch.max.wait.ms"),
        list_offsets_timeout_ms=config.integer("remote.list.offsets.request.timeout.ms"),
        fetch_quota=_quota(config, "fetch"),
    )


def copy_quota(config: BrokerConfig) -> QuotaSettings:
    """Return the maximum rate, in bytes per second, at which segments are copied."""
    return _quota(config, "copy")


def _quota(config: BrokerConfig, what: str) -> QuotaSettings:
    prefix = f"remote.log.manager.{what}"
    return QuotaSettings(
        bytes_per_second=config.integer(f"{prefix}.max.bytes.per.second"),
        window_count=config.integer(f"{prefix}.quota.window.num"),
        window_s=config.integer(f"{prefix}.quota.window.size.seconds"),
    )


def storage_manager(
    config: BrokerConfig, cluster_id: str, machine: Machine, meters: Meters
) -> HostedStorageManager:
    """The storage manager that the configuration names. Raises ``ConfigError``, which names the wrong key."""
    prefix = config.text("remote.log.storage.manager.impl.prefix")
    configs = _passed_on(config, prefix, cluster_id)
    class_name = config.optional_text(_STORAGE_CLASS)
    if class_name is None and "url" not in configs:
        url = config.optional_text("diskless.storage.url")
        if url is None:
            raise ConfigError(
                f"{prefix}url",
                f"remote.log.storage.system.enable=true needs an object store: set {prefix}url,"
                f" diskless.storage.url or {_STORAGE_CLASS}",
            )
        # The WAL and the tier use the same bucket. The objects of the WAL are under wal/, and segments are
        # under tiered/.
        configs = {**config.passed_on(DISKLESS_STORAGE_PREFIX), **configs, "url": url}
    if class_name is None:
        try:
            return open_object_storage_manager(configs, machine, meters)
        except (RemoteStorageError, TypeError, ValueError) as error:
            raise ConfigError(f"{prefix}url", str(error)) from error  # ``error`` names the key.
    make = cast(StorageManagerMaker, _load(_STORAGE_CLASS, class_name))
    made = _made(_STORAGE_CLASS, class_name, make, configs, machine, meters, STORAGE_METHODS)
    if isinstance(made, ObjectStorageManager):
        return made
    return ForeignStorageManager(cast(RemoteStorageManager, made), class_name)


def remote_place(config: BrokerConfig) -> RemotePlace:
    """The location where :func:`storage_manager` stores segments, without secrets."""
    configs = config.passed_on(config.text("remote.log.storage.manager.impl.prefix"))
    return RemotePlace(
        config.optional_text(_STORAGE_CLASS),
        configs.get("url") or config.optional_text("diskless.storage.url"),
        configs.get("prefix"),
    )


def metadata_manager(
    config: BrokerConfig,
    cluster_id: str,
    machine: Machine,
    meters: Meters,
    topic: MetadataTopic,
    on_caught_up: Callable[[], None],
    leader_epoch_of: Callable[[TopicIdPartition], int | None],
) -> HostedMetadata:
    """The configured manager. If it is the topic-based manager, it uses ``topic``.

    The topic-based manager calls ``on_caught_up`` when it has all events of a metadata partition.
    ``leader_epoch_of`` returns the epoch in which this broker leads a partition.

    Raises ``ConfigError``, which names the wrong key.
    """
    configs = _metadata_configs(config, cluster_id)
    class_name = config.text(_METADATA_CLASS)
    if class_name == _TOPIC_BASED:
        settings = MetadataManagerSettings(
            consume_wait_ms=_number(config, "remote.log.metadata.consume.wait.ms"),
            initialization_retry_interval_ms=_number(
                config, "remote.log.metadata.initialization.retry.interval.ms"
            ),
        )
        folder = f"{config.log_dirs[0]}/{METADATA_FOLDER}"
        manager = TopicBasedRemoteLogMetadataManager(
            machine, topic, folder, settings, on_caught_up, leader_epoch_of
        )
        return HostedMetadata(manager, manager)
    make = cast(MetadataManagerMaker, _load(_METADATA_CLASS, class_name))
    made = _made(_METADATA_CLASS, class_name, make, configs, machine, meters, _METADATA_METHODS)
    return HostedMetadata(cast(RemoteLogMetadataManager, made), NoMetadataHosting())


def deletion_hold_ms(config: BrokerConfig) -> int:
    """Return the time for which no remote segment is deleted after a start that truncated a log.

    The same time applies to objects of diskless topics.
    """
    return config.integer("diskless.coordinator.orphan.scan.grace.period.ms")


def deletion_grace_s(config: BrokerConfig) -> float:
    """Return the time for which a topic must be missing in the metadata before it may count as deleted.

    The time is two fetch time-outs. It must be longer than the time after which a controller that lost its
    quorum resigns, which is one and a half fetch time-outs.
    """
    return 2 * config.integer("controller.quorum.fetch.timeout.ms") / 1000


def metadata_topic(config: BrokerConfig) -> InternalTopic:
    """The properties of ``__remote_log_metadata`` at its creation."""
    return InternalTopic.of(
        REMOTE_LOG_METADATA,
        _number(config, "remote.log.metadata.topic.num.partitions"),
        _number(config, REMOTE_LOG_METADATA.factor_key),
        {
            "retention.ms": str(_number(config, "remote.log.metadata.topic.retention.ms")),
            "remote.storage.enable": "false",
        },
    )


def _metadata_configs(config: BrokerConfig, cluster_id: str) -> Mapping[str, str]:
    return _passed_on(config, config.text("remote.log.metadata.manager.impl.prefix"), cluster_id)


def _passed_on(config: BrokerConfig, prefix: str, cluster_id: str) -> dict[str, str]:
    """Return the properties for a plug-in, as in Kafka. They are the keys with the prefix, from which the
    prefix is removed, and this broker's id and address."""
    return {
        **config.passed_on(prefix),
        "broker.id": str(config.node_id),
        "cluster.id": cluster_id,
        "log.dir": config.log_dirs[0],
    }


def _number(config: BrokerConfig, name: str) -> int:
    """Return the value of a key of the topic-based manager. Kafka defines the key only with the prefix of the
    manager's keys. Moldau also accepts the key without the prefix."""
    prefix = config.text("remote.log.metadata.manager.impl.prefix")
    text = config.passed_on(prefix).get(name)
    if text is None:
        return config.integer(name)
    return BrokerConfig({**config.static, name: text}).integer(name)


def _load(key: str, class_name: str) -> object:
    module_name, _, attribute = class_name.replace(":", ".").rpartition(".")
    try:
        maker: object = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            key, f"{key} {class_name}: {error} (a Python class or function by dotted path is wanted)"
        ) from error
    except Exception as error:
        raise ConfigError(key, f"{key} {class_name}: its module cannot be loaded: {_said(error)}") from error
    if not callable(maker):
        raise ConfigError(key, f"{key} {class_name} is not callable")
    return maker


def _made(
    key: str,
    class_name: str,
    make: Callable[[Mapping[str, str], Machine, Meters], object],
    configs: Mapping[str, str],
    machine: Machine,
    meters: Meters,
    methods: Iterable[str],
) -> object:
    """Call a plug-in's factory ``make``, and check that its result has all of ``methods``. Raises
    ``ConfigError``, which names ``key``."""
    try:
        made = make(configs, machine, meters)
    except (RemoteStorageError, TypeError, ValueError) as error:
        raise ConfigError(key, f"{key} {class_name}: {error}") from error
    except Exception as error:
        raise ConfigError(key, f"{key} {class_name}: {_said(error)}") from error
    absent = [name for name in methods if not callable(getattr(made, name, None))]
    if absent:
        what = f"{class_name} made {type(made).__name__}, which has no method {', '.join(absent)}"
        raise ConfigError(key, f"{key} {what}")
    return made


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
