"""Partitions of ``__diskless_metadata`` on this broker: each one that is led here is a coordinator."""

from collections.abc import Callable
from typing import Final

from moldau.cluster.topics_image import Topic
from moldau.coordinators.diskless.local_log import LocalMetadataLog
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.replication.classic import ClassicPartition
from moldau.replication.partition import AppendAnswer, AppendOutcome, Partition, PartitionKey, StopReason
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.storage.log_config import LogConfig
from moldau.storage.log_manager import LogManager
from moldau.storage.snapshot_log import SnapshotLog
from moldau.storage.topic_partition import TopicPartition

DATABASE_FILE: Final = "state.sqlite"
METADATA_LOG_CONFIG: Final = LogConfig(
    segment_bytes=64 * 1024**2,
    retention_ms=-1,
    retention_bytes=-1,
    cleanup_delete=False,
    max_message_bytes=2**31 - 1,
)
"""Its start is moved by snapshots alone."""


class MetadataPartition(ClassicPartition):
    """Written by the coordinator on it and by nobody else; readable as any partition."""

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def stage(self, records: memoryview, required_acks: int) -> AppendOutcome | None:
        return None  # refused by append

    def append(self, records: memoryview, *, required_acks: int, timeout_ms: int) -> AppendAnswer:
        return AppendOutcome(
            ErrorCode.topic_authorization_failed, message=f"{self.topic} is written by coordinators only"
        )

    async def delete_records(self, before_offset: int) -> int:
        raise KafkaError(ErrorCode.policy_violation, f"{self.topic} is shortened by snapshots only")


class DisklessMetadataKind:
    """Loads and unloads coordinators as this broker begins and ends to lead their partitions."""

    def __init__(
        self,
        machine: Machine,
        logs: LogManager,
        local_id: int,
        arrivals: WaitingRoom[PartitionKey],
        coordinators: DisklessCoordinator,
        meters: BrokerTopicMeters,
        min_in_sync: Callable[[], int],
        on_change: Callable[[int], None],
    ) -> None:
        """``min_in_sync``: the topic's ``min.insync.replicas``.

        ``on_change`` is called with a coordinator that this broker begins or ends to lead.
        """
        self._machine = machine
        self._logs = logs
        self._local_id = local_id
        self._arrivals = arrivals
        self._coordinators = coordinators
        self._meters = meters
        self._min_in_sync = min_in_sync
        self._on_change = on_change
        self._led: dict[int, int] = {}

    def log_config(self, topic: Topic) -> LogConfig:
        return METADATA_LOG_CONFIG

    def open(self, topic: Topic, index: int) -> Partition:
        log = self._logs.use(TopicPartition(topic.name, index), METADATA_LOG_CONFIG)
        return MetadataPartition(
            self._machine,
            PartitionKey(topic.topic_id, index),
            topic.name,
            log,
            self._local_id,
            self._arrivals,
            min_in_sync=self._min_in_sync(),
            high_watermark=log.high_watermark,
            meters=self._meters,
        )

    def take_role(self, partition: Partition, topic: Topic) -> None:
        assert isinstance(partition, MetadataPartition)
        index = partition.key.partition
        metadata = topic.partitions[index]
        if metadata.leader != self._local_id:
            partition.resign(metadata.leader_epoch)
            self._unload(index)
            return
        partition.become_leader(metadata.leader_epoch, metadata.replicas, metadata.isr)
        if self._led.get(index) != metadata.leader_epoch:
            self._led[index] = metadata.leader_epoch
            self._load(index, metadata.leader_epoch, partition)

    def _load(self, index: int, epoch: int, partition: MetadataPartition) -> None:
        snapshots = SnapshotLog(self._machine, partition.log)
        snapshots.truncate_to_latest_snapshot()
        log = LocalMetadataLog(snapshots, epoch, partition.check_in_sync)
        self._coordinators.load(index, epoch, log, log, f"{partition.log.directory}/{DATABASE_FILE}")
        self._on_change(index)

    def _unload(self, index: int) -> None:
        if self._led.pop(index, None) is not None:
            self._coordinators.unload(index)
            self._on_change(index)

    def reconfigure(self, partition: Partition) -> None:
        """Its log does not depend on configuration."""
        assert isinstance(partition, MetadataPartition)
        partition.min_in_sync = self._min_in_sync()

    def close(self, partition: Partition, reason: StopReason) -> None:
        assert isinstance(partition, MetadataPartition)
        partition.resign(partition.leader_epoch)
        self._unload(partition.key.partition)
        if reason.removes_replica:
            self._logs.delete(TopicPartition(partition.topic, partition.key.partition))
