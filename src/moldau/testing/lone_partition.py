"""A partition whose only replica is in this process. It needs no cluster, and is for tests and benchmarks."""

from uuid import UUID

from moldau.coordinators.diskless.calls import METADATA_MAX_MESSAGE_BYTES
from moldau.coordinators.log import SnapshottedCoordinatorLog
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.core.policy import SNAPSHOTTED
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import Machine
from moldau.storage.snapshots.snapshot_log import SnapshotLog

LOCAL_ID = 1


def lead_alone(machine: Machine, snapshots: SnapshotLog, epoch: int) -> ClassicPartition:
    """Lead a log with snapshots as its only replica. ``epoch`` is the leader epoch."""
    log = snapshots.log
    partition = ClassicPartition(
        ReplicaContext(
            machine, LOCAL_ID, WaitingRoom(), BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
        ),
        PartitionKey(log.topic_id or UUID(int=1), log.topic_partition.partition),
        log,
        min_in_sync=1,
        high_watermark=log.high_watermark,
        policy=SNAPSHOTTED,
        snapshots=snapshots,
    )
    partition.become_leader(epoch, (LOCAL_ID,), (LOCAL_ID,))
    return partition


def lone_metadata_log(machine: Machine, snapshots: SnapshotLog, epoch: int) -> SnapshottedCoordinatorLog:
    """Return the log of a diskless coordinator. It uses the partition of :func:`lead_alone`."""
    partition = lead_alone(machine, snapshots, epoch)
    return SnapshottedCoordinatorLog(partition, max_batch_bytes=METADATA_MAX_MESSAGE_BYTES)
