"""Classic partitions on this broker. Each of them has a local log."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from moldau.cluster.image.partition import PartitionRegistration as PartitionMetadata
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import STATE_TOPICS, StateRetention
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.core.policy import policy_of
from moldau.replication.disk_reads import THREAD_COUNT
from moldau.replication.leading import ReplicaListener
from moldau.replication.partition_interface import StopReason
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server.context import BrokerContext
from moldau.server.topics.partition_kinds import PartitionKind
from moldau.storage.log.config import LogConfig
from moldau.storage.log_manager import LogManager
from moldau.storage.snapshots.snapshot_log import SnapshotLog


def _loop_clock() -> Callable[[], int]:
    """Return a function that returns the time of the running event loop, in milliseconds. The loop is found
    only once, because finding it takes longer than reading the time."""
    time_s = asyncio.get_running_loop().time
    return lambda: int(time_s() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHost:
    """The parts of a broker that its replicas need."""

    machine: Machine
    logs: LogManager
    local_id: int
    arrivals: WaitingRoom[PartitionKey]
    """Wakes the requests that wait for a change of a partition."""
    meters: BrokerTopicMeters

    @classmethod
    def of(cls, context: BrokerContext) -> "ReplicaHost":
        """Make this object from the context of a broker."""
        return cls(
            machine=context.machine,
            logs=context.logs,
            local_id=context.identity.node_id,
            arrivals=context.arrivals,
            meters=context.meters.topics,
        )


class ClassicKind(PartitionKind[ClassicPartition]):
    """Opens logs through the log manager and gives each partition its role."""

    def __init__(
        self,
        host: ReplicaHost,
        log_config: Callable[[str], LogConfig],
        min_in_sync: Callable[[str], int],
        *,
        has_snapshots: bool = False,
        listener: ReplicaListener[ClassicPartition] | None = None,
    ) -> None:
        """``log_config`` and ``min_in_sync`` return the values of a topic. ``listener`` is notified of each
        replica's roles.

        ``has_snapshots`` means that the partitions have snapshots. Records before a snapshot are removed from
        the log, so a log may begin at a snapshot.
        """
        self._has_snapshots = has_snapshots
        self._machine = host.machine
        self._logs = host.logs
        disk_read_workers = host.machine.workers.apart(THREAD_COUNT, "moldau-disk-reads")
        self._replicas = ReplicaContext(
            host.machine,
            host.local_id,
            host.arrivals,
            host.meters,
            listener,
            _loop_clock(),
            disk_read_workers,
        )
        self._log_config = log_config
        self._min_in_sync = min_in_sync

    def log_config(self, topic: Topic) -> LogConfig | None:
        return None if self._is_refused(topic) else self._log_config(topic.name)

    def open(self, topic: Topic, index: int) -> ClassicPartition:
        if self._is_refused(topic):
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"the log of {topic.name} is shortened by snapshots, and no kind of partitions here has them",
            )
        name = TopicPartition(topic.name, index)
        log = self._logs.use(name, self._log_config(topic.name))
        snapshots = None
        watermark = self._logs.checkpointed_high_watermark(name)
        if self._has_snapshots:
            snapshots = SnapshotLog(self._machine, log)
            snapshots.truncate_to_latest_snapshot_now()
            watermark = log.high_watermark
        return ClassicPartition(
            self._replicas,
            PartitionKey(topic.topic_id, index),
            log,
            min_in_sync=self._min_in_sync(topic.name),
            high_watermark=watermark,
            policy=policy_of(topic.name),
            snapshots=snapshots,
        )

    def _is_refused(self, topic: Topic) -> bool:
        """Whether the topic needs a kind of partition that this broker does not have."""
        state = STATE_TOPICS.get(topic.name)
        needs_snapshots = state is not None and state.retention is StateRetention.SNAPSHOTS
        return needs_snapshots and not self._has_snapshots

    def apply_role(self, partition: ClassicPartition, topic: Topic, applied: Callable[[], None]) -> None:
        metadata = topic.partitions[partition.key.partition]
        partition.when_uncut(partial(self._apply_role, partition, metadata, applied))

    def _apply_role(
        self, partition: ClassicPartition, metadata: PartitionMetadata, applied: Callable[[], None]
    ) -> None:
        # The controller decided on the in-sync set with this minimum. If the leader used an older, smaller
        # minimum with this set, it could commit records that an eligible leader replica lacks (KIP-966).
        partition.min_in_sync = self._min_in_sync(partition.topic)
        if metadata.leader == self._replicas.local_id:
            partition.become_leader(
                metadata.leader_epoch, metadata.replicas, metadata.isr, metadata.partition_epoch
            )
        elif metadata.has_leader:
            partition.follow(metadata.leader_epoch, metadata.leader)
        else:
            partition.resign(metadata.leader_epoch)
        applied()

    def reconfigure(self, partition: ClassicPartition) -> None:
        partition.log.config = self._log_config(partition.topic)
        partition.min_in_sync = self._min_in_sync(partition.topic)

    def close(self, partition: ClassicPartition, reason: StopReason) -> None:
        partition.end()
        if reason.removes_replica:
            self._logs.delete(TopicPartition(partition.topic, partition.key.partition))

    def may_suspend(self, partition: ClassicPartition) -> bool:
        # After the exchange, a leader leads in the same epoch again, with the in-sync set in the metadata. If
        # the controller has committed or will commit another set, the watermark could pass the end of the log
        # of an in-sync replica.
        return partition.leading.is_settled and not partition.following.is_cutting

    def coordinator_replica(self, partition: ClassicPartition) -> ClassicPartition:
        return partition
