"""Diskless partitions on this broker. Each partition has a cache in a log folder, and all partitions share a
manager."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.image.topics_image import Topic
from moldau.diskless.cache.cache_bound import CacheBound
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.manager import DisklessManager
from moldau.diskless.partition.gateway_partition import DisklessPassage
from moldau.diskless.partition.partition import DisklessPartition
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.partition_interface import StopReason
from moldau.server.subsystems.diskless.gateway_partitions import Passages
from moldau.server.topics.partition_kinds import PartitionKind, ReaderHooks, RefusingKind
from moldau.storage.log.config import LogConfig
from moldau.storage.log_manager import LogManager


class RemoteHooks(Protocol):
    """Callbacks for diskless partitions of a broker with remote storage."""

    def opened(self, partition: DisklessPartition) -> None: ...

    def role_applied(self, partition: DisklessPartition) -> None: ...

    def reconfigured(self, partition: DisklessPartition) -> None: ...

    def closed(self, partition: DisklessPartition, reason: StopReason) -> None: ...


class DisklessKind(PartitionKind[DisklessPartition]):
    """Opens the cached logs through the log manager, in any folder of ``log.dirs``."""

    def __init__(
        self,
        logs: LogManager,
        local_id: int,
        manager: DisklessManager,
        log_config: Callable[[str], LogConfig],
        reader_hooks: Callable[[Topic], ReaderHooks[DisklessPartition] | None],
    ) -> None:
        """On a broker with remote storage, another kind wraps this kind. ``reader_hooks`` returns the hooks
        of that other kind."""
        self._logs = logs
        self._local_id = local_id
        self._manager = manager
        self._log_config = log_config
        self.passages = Passages(self._open_passage, log_config)
        """The passages of this broker. A passage serves a partition without a replica on this broker."""
        self._reader_hooks = reader_hooks

    def log_config(self, topic: Topic) -> LogConfig:
        return self._cache_config(self._log_config(topic.name))

    def open(self, topic: Topic, index: int) -> DisklessPartition:
        self.passages.close(PartitionKey(topic.topic_id, index))
        config = self._log_config(topic.name)
        log = self._logs.use(TopicPartition(topic.name, index), self._cache_config(config))
        metadata = topic.partitions[index]
        cache = PartitionCache(
            PartitionKey(topic.topic_id, index),
            topic.name,
            metadata.owner,
            log,
            metadata.generations,
        )
        return self._manager.open_partition(cache, config)

    def _open_passage(self, topic: Topic, index: int) -> DisklessPassage:
        """Open the passage of a partition that has no replica on this broker."""
        key, metadata = PartitionKey(topic.topic_id, index), topic.partitions[index]
        owner = metadata.owner
        config = self._log_config(topic.name)

        def open_reader() -> DisklessPartition:
            cache = PartitionCache(key, topic.name, owner, None, metadata.generations)
            reader = self._manager.open_partition(cache, self._log_config(topic.name))
            if (hooks := self._reader_hooks(topic)) is not None:
                hooks.reader_opened(reader)
            return reader

        def close_reader(reader: DisklessPartition) -> None:
            self._manager.close_partition(reader)
            if (hooks := self._reader_hooks(topic)) is not None:
                hooks.reader_closed(reader)

        return self._manager.open_passage(key, topic.name, config, open_reader, close_reader)

    def _cache_config(self, config: LogConfig) -> LogConfig:
        """Return the configuration of the cached log. Its segments are evicted by the size limit of the
        cache, and not by the topic's retention, which the coordinator applies."""
        segment_bytes = CacheBound.segment_bytes(self._manager.settings.cacher.cache_max_bytes)
        return replace(
            config,
            segment_bytes=min(config.segment_bytes, segment_bytes),
            retention_ms=-1,
            retention_bytes=-1,
            cleanup_delete=False,
            cleanup_compact=False,
            is_cache=True,
        )

    def apply_role(self, partition: DisklessPartition, topic: Topic, applied: Callable[[], None]) -> None:
        metadata = topic.partitions[partition.key.partition]
        partition.leader_epoch_in_metadata = metadata.leader_epoch
        partition.is_leader_in_metadata = metadata.leader == self._local_id
        applied()

    def reconfigure(self, partition: DisklessPartition) -> None:
        partition.config = self._log_config(partition.topic)
        partition.cache.log.config = self._cache_config(partition.config)

    def close(self, partition: DisklessPartition, reason: StopReason) -> None:
        self._manager.close_partition(partition)
        if reason.removes_replica:
            self._logs.delete(TopicPartition(partition.topic, partition.key.partition))


class ConsolidatedKind(PartitionKind[DisklessPartition]):
    """Wraps :class:`DisklessKind` on a broker where records of diskless partitions move from the WAL to the
    remote tier. It calls its :class:`RemoteHooks` for each partition."""

    def __init__(self, diskless: DisklessKind, hooks: RemoteHooks) -> None:
        self._diskless = diskless
        self._hooks = hooks

    def log_config(self, topic: Topic) -> LogConfig:
        return self._diskless.log_config(topic)

    def open(self, topic: Topic, index: int) -> DisklessPartition:
        partition = self._diskless.open(topic, index)
        self._hooks.opened(partition)
        return partition

    def apply_role(self, partition: DisklessPartition, topic: Topic, applied: Callable[[], None]) -> None:
        def report() -> None:
            self._hooks.role_applied(partition)
            applied()

        self._diskless.apply_role(partition, topic, report)

    def reconfigure(self, partition: DisklessPartition) -> None:
        self._diskless.reconfigure(partition)
        self._hooks.reconfigured(partition)

    def close(self, partition: DisklessPartition, reason: StopReason) -> None:
        self._diskless.close(partition, reason)
        self._hooks.closed(partition, reason)


def diskless_off_kind() -> RefusingKind:
    """Refuses diskless topics, and the logs of their coordinators. It is used on a broker that is not
    configured for them."""

    def reason(topic: Topic) -> str:
        what = (
            "it is diskless"
            if DISKLESS.is_kind_of(topic)
            else f"{topic.name} is the state of diskless topics"
        )
        return f"{what}, and diskless.system.enable is false here"

    return RefusingKind(reason)
