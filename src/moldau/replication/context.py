"""The dependencies of a broker's classic replicas."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey
from moldau.replication.disk_reads import DiskReads
from moldau.replication.leading import ReplicaListener
from moldau.replication.waiters import WaitingRoom
from moldau.runtime.machine import Machine
from moldau.runtime.workers import Workers
from moldau.storage.log.partition_log import PartitionLog


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """The context of a broker's replicas. All replicas with the same listener share it."""

    machine: Machine
    local_id: int
    """The broker's id."""
    arrivals: WaitingRoom[PartitionKey]
    meters: BrokerTopicMeters
    listener: ReplicaListener[Any] | None = None
    monotonic_ms: Callable[[], int] | None = None
    """Returns a monotonic time, by which the lag of followers is measured. The default is the wall clock."""
    disk_read_workers: Workers | None = None
    """Threads that load records from the disk for readers. The default is the threads of the machine."""

    def disk_reads(self, log: PartitionLog) -> DiskReads:
        """Make the reads of a log from the disk."""
        return DiskReads(log, self.disk_read_workers or self.machine.workers)
